"""Random generators, each seeded by its purpose.

No random stream continues from one step to the next, so no generator state has to be saved. A resumed run, a run on
other lanes and a run with other neighbours draw the same numbers for the same env, round and step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from esper.domain import HEADS


def make_generator(seed: int, purpose: str, *key: int) -> torch.Generator:
    """Return a CPU generator for one use of random numbers.

    Args:
        seed: Random seed of the run.
        purpose: Name of the use, e.g. `decisions`.
        key: Env, round, step, slot: the numbers that distinguish this use from others with the same purpose.
    """
    digest = hashlib.blake2b(":".join([str(seed), purpose, *map(str, key)]).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)


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
