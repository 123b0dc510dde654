"""Random generators, each seeded by what it is used for.

No random stream is carried from one step to the next, so none has to be saved: a resumed run, a run on other lanes and
a run with other neighbours draw the same numbers for the same env, round and step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from esper.domain import HEADS


def make_generator(seed: int, purpose: str, *where: int) -> torch.Generator:
    """A CPU generator for one purpose in one place.

    Args:
        seed: of the run.
        purpose: what the numbers are for.
        where: env, round, step, slot: whatever tells this use from every other of the same purpose.
    """
    key = ":".join([str(seed), purpose, *map(str, where)])
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)


def evaluation_seed(seed: int) -> int:
    """The seed in place of a run's, for episodes of which no run has seen any, whatever its own seed.

    Args:
        seed: tells one set of such episodes from another.
    """
    return make_generator(seed, "evaluation").initial_seed()


def decision_uniforms(seed: int, envs: Iterable[int], steps: int, round_index: int) -> Tensor:
    """Uniform numbers in [0, 1) for a round's decisions in some envs, [E, T, H]; each env has its own."""
    draws = [
        torch.rand(steps, len(HEADS), generator=make_generator(seed, "decisions", env, round_index)) for env in envs
    ]
    return torch.stack(draws)
