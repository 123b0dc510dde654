"""Random generators, each seeded by its purpose.

No random stream continues from one step to the next, so no generator state has to be saved. A resumed run, a run on
other lanes and a run with other neighbours draw the same numbers for the same env, round and step.
"""

# PyTorch does not declare the types of `fork_rng`.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from esper.common.domain import HEADS

_CPU = torch.device("cpu")


class EpisodeKey(NamedTuple):
    """The numbers from which all random draws of an episode of an env derive, and the width of its host."""

    seed: int
    """Random seed."""
    env: int
    """Index of the env in its run."""
    round: int
    """Index of the round, from 0."""
    width: float = 1.0
    """Factor of the widths of the host, the argument of the task's `wide_model`; 1.0 is the model itself."""


def make_generator(seed: int, purpose: str, *key: int) -> torch.Generator:
    """Return a CPU generator for one use of random numbers.

    Args:
        purpose: Name of the use, e.g. `decisions`.
        key: Env, round, step, slot: the numbers that distinguish this use from others with the same purpose.
    """
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *key))


def derive_seed(seed: int, purpose: str, *key: int) -> int:
    """Return the random seed of `make_generator`, 0 to 2^63 − 1."""
    digest = hashlib.blake2b(":".join([str(seed), purpose, *map(str, key)]).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def seed_global_generators(number: int, device: torch.device = _CPU) -> None:
    """Seed the global generators that models and data augmentation may use: of torch, numpy and random.

    Args:
        number: Random seed, 0 to 2^63 − 1.
        device: Device of the env. If it is a GPU, the generator of the current GPU is seeded too, and no other: other
            threads may use theirs.
    """
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def global_states() -> tuple[object, ...]:
    """Return the states of the global generators of the CPU, of torch, numpy and random, as values that compare."""
    of_numpy: Any = np.random.get_state(legacy=True)
    _, keys, *others = of_numpy
    of_torch = torch.default_generator.get_state().numpy().tobytes()
    return of_torch, keys.tobytes(), others, random.getstate()


_generators_lock = threading.RLock()
"""Held while the global generators are seeded, because the lanes of a process reset their envs at the same time."""


@contextmanager
def restored_generators() -> Generator[None]:
    """Restore the global generators of the CPU, of torch, numpy and random, when the context ends.

    Other threads may draw from them meanwhile.
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


@contextmanager
def forked_generators(number: int, device: torch.device = _CPU) -> Generator[None]:
    """Seed the global generators with a number; restore those of the CPU when the context ends.

    Only one thread at a time can be in this context.

    Args:
        number: Random seed, 0 to 2^63 − 1.
        device: See `seed_global_generators`.
    """
    with _generators_lock, restored_generators():
        seed_global_generators(number, device)
        yield


def evaluation_seed(seed: int) -> int:
    """Return the random seed of held-out episodes; its streams differ from those of every training run.

    Args:
        seed: Number that distinguishes one set of held-out episodes from another.
    """
    return make_generator(seed, "evaluation").initial_seed()


def decision_uniforms(seed: int, envs: Iterable[int], steps: int, round_index: int) -> Tensor:
    """Return the uniform numbers in [0, 1) for the decisions of a round, [E, T, H]; every env has its own stream."""
    draws = [
        torch.rand(steps, len(HEADS), generator=make_generator(seed, "decisions", env, round_index)) for env in envs
    ]
    return torch.stack(draws)


def episode_uniforms(keys: Sequence[EpisodeKey], steps: int, envs: int) -> Tensor:
    """Return the uniform numbers for the decisions of some episodes, [E, T, H]; zeros for envs without an episode.

    Args:
        keys: Keys of the episodes of the first envs, one or more.
        envs: Number of envs.
    """
    rows = [decision_uniforms(key.seed, [key.env], steps, key.round) for key in keys]
    return torch.cat([*rows, rows[0].new_zeros(envs - len(rows), *rows[0].shape[1:])])
