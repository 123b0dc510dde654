"""Contexts: what a host of a family draws for a round, and the data that follow from it."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch

from esper.common.seeding import make_generator
from esper.networks.tasks.family import Value, settings_of_family, structures_of
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Task

_SEARCHED_ROUNDS = 200


class Context(NamedTuple):
    """Structure and settings of a host in one round."""

    structure: int = 0
    """Index of the structure."""
    settings: Mapping[str, Value] = {}
    """Drawn value of each setting, keyed by name."""


def draw_context(task: Task, seed: int, host: int, round_index: int) -> Context:
    """Return the context of a host in a round. It depends on the arguments only.

    Args:
        task: The task; one that is not a family has the same context always.
    """
    structures, settings = structures_of(task), settings_of_family(task)
    if len(structures) == 1 and not settings:
        return Context()
    generator = make_generator(seed, "context", host, round_index)
    # PyTorch does not annotate `tolist`.
    draws: list[float] = cast("Any", torch.rand(1 + len(settings), generator=generator, dtype=torch.float64)).tolist()
    structure = int(draws[0] * len(structures))
    drawn: dict[str, Value] = {}
    for (name, setting), draw in zip(settings.items(), draws[1:], strict=True):
        if not setting.applies_to(structures[structure].name):
            continue
        sums = list(itertools.accumulate(setting.weights or [1.0] * len(setting.values)))
        index = bisect.bisect_right(sums, draw * sums[-1])
        drawn[name] = setting.values[min(index, len(setting.values) - 1)]
    return Context(structure, drawn)


def find_round(task: Task, seed: int, host: int, structure: int) -> int | None:
    """Return the first round in which a host has a structure; None if it is none of the first `_SEARCHED_ROUNDS`."""
    rounds = range(_SEARCHED_ROUNDS)
    return next((each for each in rounds if draw_context(task, seed, host, each).structure == structure), None)


def context_splits(task: Task, splits: Splits, context: Context, seed: int, host: int, round_index: int) -> Splits:
    """Return the data of a context: those of the task, changed by each setting in turn.

    Args:
        splits: Data of the structure of the context, on any device; they are not changed in place.
    """
    for name, setting in settings_of_family(task).items():
        if setting.data is not None and name in context.settings:
            generator = make_generator(seed, f"data of {name}", host, round_index)
            splits = setting.data(splits, context.settings[name], generator)
    return splits
