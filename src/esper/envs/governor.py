"""Detects an env that broke down, and rolls it back to its last good state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from esper.domain import Stage
from esper.envs.env import Env, EpochResult
from esper.envs.env_state import copy_tensors_, env_state_tensors
from esper.growth.lifecycle import LEGAL_TRANSITIONS, StageTransition
from esper.policy.agent import EnvStatus

TRAINED_MARGIN = 0.3
"""Validation accuracy above that of guessing from which a network counts as trained."""
CHANCE_MARGIN = 0.02
"""The same, below which a network that was trained counts as fallen to chance."""
LOSS_EXPLOSION_FACTOR = 2.0
"""Validation loss over that of guessing above which it has blown up."""
COLLAPSE_STEPS = 3
"""Steps in a row for which it has to be one or the other. For one or two it can be the running statistics of batch norm
that lag behind the weights, and the next epoch mends it."""
_LOSS_SCALE_KEY = "loss_scale"
ROLLBACK_REASON = "governor"
"""Why the seeds of an env that is taken back are removed."""


class Breakdown(NamedTuple):
    """Why an env is taken back."""

    reason: str
    """One sentence without its subject, the env."""
    value: float
    """What was measured."""
    threshold: float | None
    """What it had to keep to; None where it had only to be finite."""


def find_non_finite(measured: EpochResult) -> Breakdown | None:
    """What no further step can mend: something that is not finite."""
    for name, value in (("training loss", measured.train_loss), ("validation loss", measured.loss)):
        if not math.isfinite(value):
            return Breakdown(f"its {name} is not finite", value, None)
    if not measured.weights_finite:
        return Breakdown("a weight is not finite", math.nan, None)
    return None


def find_collapse(view: EnvStatus) -> Breakdown | None:
    """What is wrong with an env after its last step, and is fatal once it was for SUSTAINED steps in a row.

    A network that never was better than guessing has not blown up: what it could be taken back to is as bad, and a seed
    may be what mends it.
    """
    chance, loss, accuracy = math.exp(-view.chance_loss), view.losses[-1], view.accuracies[-1]
    if accuracy < chance + CHANCE_MARGIN and max(view.accuracies) > chance + TRAINED_MARGIN:
        return Breakdown(
            f"it was trained, and has been guessing for {COLLAPSE_STEPS} steps", accuracy, chance + CHANCE_MARGIN
        )
    limit = LOSS_EXPLOSION_FACTOR * view.chance_loss
    if loss > limit and min(view.losses) < view.chance_loss:
        return Breakdown(f"its loss has been blown up for {COLLAPSE_STEPS} steps", loss, limit)
    return None


class LastGoodState:
    """A copy of an env's weights, buffers and momenta, on its device, as they were after the last sound step.

    Of its loss scale too: what is not finite halves it in every batch, though no smaller one would mend that.

    Args:
        env: whose; it is copied when told to.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self.tensors: dict[str, Tensor] = {}
        """The copies by name."""

    def save(self) -> None:
        """What there is now is good. The copies of what was there before are written over, not made anew."""
        now = env_state_tensors(self._env)
        if self._env.scaler:
            now[_LOSS_SCALE_KEY] = self._env.scaler.current()
        self.tensors = {
            name: kept if (kept := self.tensors.get(name)) is not None and kept.shape == value.shape else value.clone()
            for name, value in now.items()
        }
        copy_tensors_(self.tensors, now)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep what another kept, on the env's device."""
        device = next(self._env.network.parameters()).device
        self.tensors = {name: value.to(device, copy=True) for name, value in tensors.items()}

    def rollback(self) -> list[StageTransition]:
        """Put it back, and remove every seed that is not permanent; how the slots moved by it.

        A seed that was made permanent in the steps that broke the env down stays, as it was before them.
        """
        now = env_state_tensors(self._env)
        copy_tensors_(now, {name: value for name, value in self.tensors.items() if name in now})
        if self._env.scaler:
            self._env.scaler.set_scale(self.tensors[_LOSS_SCALE_KEY])
        moves = [
            slot.remove_seed(ROLLBACK_REASON)
            for slot in self._env.network.slots
            if Stage.CULLED in LEGAL_TRANSITIONS[slot.stage]
        ]
        self._env.sync_optimizers()
        return moves
