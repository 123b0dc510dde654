"""Baselines that do not learn: `static` never grows, `random` takes any legal action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from esper.policy.actions import HEADS, RELEVANT, WAIT, Action, Choice, Op, head_sizes
from esper.policy.masks import legal_ops, legal_styles
from esper.policy.view import EnvView

T = TypeVar("T")


class Baseline:
    """What an agent that does not learn answers where learning is asked for."""

    def begin_round(self, uniform_ETH: Tensor) -> None:
        """Nothing to prepare."""

    def reward(self, step: int, rewards: Sequence[float]) -> None:
        """Nothing to learn from."""

    def learn(self, views: Sequence[EnvView], round_index: int, generator: torch.Generator) -> None:
        """Nothing learns."""

    def tensors(self) -> dict[str, Tensor]:
        """Nothing is kept in tensors."""
        return {}

    def snapshot(self) -> dict[str, Any]:
        """Nothing is remembered from step to step."""
        return {}

    def restore(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniform_ETH: Tensor) -> None:
        """Go on as if the round had just begun."""
        self.begin_round(uniform_ETH)


class Static(Baseline):
    """Never grows: the host alone."""

    def act(self, views: Sequence[EnvView]) -> list[Choice]:
        """WAIT, for every env."""
        return [WAIT] * len(views)


class Random(Baseline):
    """Draws the op evenly from the legal ones, then the slot, then the rest.

    Args:
        blueprints: number of blueprints on offer.
    """

    def __init__(self, blueprints: int) -> None:
        self._blueprints = blueprints
        self._uniform_ETH = torch.empty(0)

    def begin_round(self, uniform_ETH: Tensor) -> None:
        """Keep the round's random numbers."""
        self._uniform_ETH = uniform_ETH

    def act(self, views: Sequence[EnvView]) -> list[Choice]:
        """One random legal action for every env."""
        return [self._choose(view, self._uniform_ETH[view.env, view.step].tolist()) for view in views]

    def _choose(self, view: EnvView, uniform_H: Sequence[float]) -> Choice:
        legal_SO = [legal_ops(slot) for slot in view.slots]
        ops = [op for op in Op if any(row[op] for row in legal_SO)]
        op = _draw(ops, uniform_H[0])
        if op is Op.WAIT:
            return WAIT._replace(op_probability=1 / len(ops))
        slot = _draw([index for index, row in enumerate(legal_SO) if row[op]], uniform_H[1])
        chosen: dict[str, int] = {"op": op, "slot": slot}
        sizes = head_sizes(len(view.slots), self._blueprints)
        for index, (head, size) in enumerate(zip(HEADS, sizes, strict=True)):
            if index < 2 or head not in RELEVANT[op]:
                continue
            legal = range(size)
            if head == "style" and op is Op.SET_ALPHA:
                legal = [style for style, allowed in enumerate(legal_styles(view.slots[slot])) if allowed]
            chosen[head] = _draw(legal, uniform_H[index])
        return Choice(Action(**chosen), op_probability=1 / len(ops))


def _draw(options: Sequence[T], uniform: float) -> T:
    return options[int(uniform * len(options))]
