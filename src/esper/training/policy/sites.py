"""Arrays that depend only on the sites of an env, for all envs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.networks.seeds.site import SlotSite
from esper.training.policy.agent import EnvStatus


def stack_by_sites(
    views: Sequence[EnvStatus], build: Callable[[tuple[SlotSite, ...], int], tuple[NDArray[Any], ...]]
) -> list[NDArray[Any]]:
    """Return arrays with one row for each env.

    Args:
        build: Function that returns the rows of an env, given its sites and the number of parameters of its bare host.
            It is called once for a sequence of envs with the same values.
    """
    kinds: list[tuple[NDArray[Any], ...]] = []
    kind_E: list[int] = []
    previous: tuple[list[SlotSite], int] | None = None
    for view in views:
        key = [slot.site for slot in view.slots], view.host_parameters
        if key != previous:
            kinds.append(build(tuple(key[0]), key[1]))
            previous = key
        kind_E.append(len(kinds) - 1)
    return [np.stack(rows)[kind_E] for rows in zip(*kinds, strict=True)]


def index_arrays(pairs: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], ...]:
    """Return the index that selects the given env and slot of each pair from an array [E, S, …]."""
    return tuple(np.array(pairs, dtype=np.int64).T)
