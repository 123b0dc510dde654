"""The governor: detects the breakdown of an env, and rolls the env back to its last good state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from esper.common.domain import Stage
from esper.networks.seeds.lifecycle import LEGAL_TRANSITIONS, StageTransition
from esper.training.envs.env import Env
from esper.training.envs.env_state import env_state_tensors, load_tensors
from esper.training.envs.epoch_result import EpochResult
from esper.training.envs.fused_ops import foreach_copy_
from esper.training.envs.packing import storage_id, view_in
from esper.training.policy.agent import EnvStatus

TRAINED_MARGIN = 0.3
"""Validation score above chance, as a fraction, from which a network counts as trained."""
CHANCE_MARGIN = 0.02
"""Validation score above chance, as a fraction, below which a trained network counts as collapsed."""
LOSS_EXPLOSION_FACTOR = 2.0
"""Training loss divided by the chance loss, above which the loss counts as exploded.

The validation loss is no sign of a breakdown: it also grows without bound in a network that overfits a small training
set, while its score stays the same.
"""
COLLAPSE_STEPS = 3
"""Number of consecutive steps with a collapse after which it is a breakdown.

A collapse of one or two steps can come from running statistics of batch norm that lag behind the weights, and the next
epoch repairs it.
"""
_LOSS_SCALE_KEY = "loss_scale"
ROLLBACK_REASON = "governor"
"""Reason of the transitions of seeds that a rollback removes."""


class Breakdown(NamedTuple):
    """The reason for a rollback."""

    reason: str
    """A sentence about the env, such as "a weight is not finite"."""
    value: float
    """The measured value."""
    threshold: float | None
    """The limit that the value violates; None if the value only had to be finite."""


def find_non_finite(measured: EpochResult) -> Breakdown | None:
    """Return a breakdown if a loss, the score or a weight is not finite, which no step can repair; else None."""
    for name, value in (
        ("training loss", measured.train_loss),
        ("validation loss", measured.loss),
        ("validation score", measured.score),
    ):
        if not math.isfinite(value):
            return Breakdown(f"its {name} is not finite", value, None)
    if not measured.weights_finite:
        return Breakdown("a weight is not finite", math.nan, None)
    return None


def find_collapse(view: EnvStatus) -> Breakdown | None:
    """Return a breakdown if the env has collapsed in its last step, else None.

    The caller rolls the env back after `COLLAPSE_STEPS` consecutive collapses. A network that never beat chance is not
    rolled back: its earlier state is no better, and a new seed may help.
    """
    scale = view.score_scale
    chance, *scores = (scale.fraction(score, view.chance_score) for score in (view.chance_score, *view.scores))
    if scores[-1] < chance + CHANCE_MARGIN and max(scores) > chance + TRAINED_MARGIN:
        return Breakdown(
            f"it was trained, but its {view.score_name} has been at chance for {COLLAPSE_STEPS} steps",
            scores[-1],
            chance + CHANCE_MARGIN,
        )
    limit, loss = LOSS_EXPLOSION_FACTOR * view.chance_loss, view.train_loss
    if loss is not None and loss > limit and min(view.losses) < view.chance_loss:
        return Breakdown(f"its training loss has exceeded the limit for {COLLAPSE_STEPS} steps", loss, limit)
    return None


class LastGoodState:
    """A copy, on the env's device, of its weights, buffers, momenta and loss scale after the last healthy step.

    The loss scale is included because non-finite values halve it in every batch, although no smaller one would help.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._copies: dict[Tensor, Tensor] = {}
        """Copy of each block of the env; empty before `save`."""
        self._loss_scale: Tensor | None = None

    def save(self) -> None:
        """Save the current state as the last good one, reusing existing buffers."""
        kept = self._copies
        self._copies = {
            block: copied if (copied := kept.get(block)) is not None else torch.empty_like(block)
            for block in self._env.blocks()
        }
        foreach_copy_(list(self._copies.values()), list(self._copies))
        if self._env.scaler:
            self._loss_scale = self._env.scaler.current().clone()

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the saved tensors of the host and of the planted seeds, by the names of `env_state_tensors`."""
        copies = {storage_id(block): self._copies[block] for block in self._env.blocks() if block in self._copies}
        named = {
            name: view_in(copies[storage_id(value)], value)
            for name, value in env_state_tensors(self._env).items()
            if storage_id(value) in copies
        }
        return named if self._loss_scale is None else {**named, _LOSS_SCALE_KEY: self._loss_scale}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors that another `LastGoodState` named, and move them to the env's device.

        Raises:
            RuntimeError: A tensor is missing, or has another shape.
        """
        current = env_state_tensors(self._env)
        saved = {storage_id(value) for name, value in current.items() if name in tensors}
        self._copies = {block: torch.empty_like(block) for block in self._env.blocks() if storage_id(block) in saved}
        self._loss_scale = self._env.scaler.current().clone() if self._env.scaler else None
        load_tensors(self.named_tensors(), tensors)

    def rollback(self) -> list[StageTransition]:
        """Restore the saved state, remove every seed that is not fossilized, and return the transitions.

        A seed that was fossilized after the state was saved stays, with its saved weights.
        """
        saved = [block for block in self._env.blocks() if block in self._copies]
        foreach_copy_(saved, [self._copies[block] for block in saved])
        if self._env.scaler and self._loss_scale is not None:
            self._env.scaler.set_scale(self._loss_scale)
        moves = [
            slot.remove_seed(ROLLBACK_REASON)
            for slot in self._env.network.slots
            if Stage.CULLED in LEGAL_TRANSITIONS[slot.stage]
        ]
        self._env.sync_optimizers()
        return moves
