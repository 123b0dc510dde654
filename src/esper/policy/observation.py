"""The observation: the features of an env that the policy network receives.

The base features come first, then the features of each slot in the order of the forward pass. An empty slot has only
the features of its place; a slot that the env does not have is all zeros. Features are scaled to the order of 1 here,
and normalised by `RunningMeanStd`. A feature that was not measured is 0, and a separate flag marks it. Nothing depends
on the test split.

Shapes: E envs, S slots, F features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from esper.domain import Op, Stage
from esper.growth.blend import RAMP_EPOCHS, Blend, Curve
from esper.growth.slot import Slot
from esper.policy.agent import EnvStatus

HISTORY_STEPS = 3
"""Number of recent losses and accuracies in the observation."""
OBSERVED_STAGES = tuple(stage for stage in Stage if stage is not Stage.DORMANT)
BASE_FEATURES = 1 + 2 * HISTORY_STEPS + 3 + len(OBSERVED_STAGES) + len(Op) + 1 + 2 + 4
PLACE_FEATURES = 3
"""Number of features of a slot's place, which come first."""
SLOT_FEATURES = PLACE_FEATURES + len(OBSERVED_STAGES) + len(Blend) + len(Curve) + 14


def observation_size(slots: int) -> int:
    """Return the number of features of an env with this many slots."""
    return BASE_FEATURES + slots * SLOT_FEATURES


def write_observation(
    views: Sequence[EnvStatus], obs_EF: Tensor, blueprint_ES: Tensor, blueprints: Sequence[str]
) -> None:
    """Write the observations of every env into preallocated buffers on the CPU.

    Args:
        views: State of each env.
        obs_EF: Receives the features, float32.
        blueprint_ES: Receives the input of the embedding, int64: 1 + index of the blueprint, 0 for an empty slot.
        blueprints: Blueprints that the policy can select, in the order of the head.
    """
    codes = {name: index for index, name in enumerate(blueprints, start=1)}
    rows, code_rows = obs_EF.numpy(), blueprint_ES.numpy()  # they share the memory of the tensors
    for row, code_row, view in zip(rows, code_rows, views, strict=True):
        row[:BASE_FEATURES] = _base_features(view)
        for index, slot in enumerate(view.slots):
            start = BASE_FEATURES + index * SLOT_FEATURES
            row[start : start + SLOT_FEATURES] = _slot_features(slot, view)
            code_row[index] = codes[slot.blueprint] if slot.blueprint else 0
        row[BASE_FEATURES + len(view.slots) * SLOT_FEATURES :] = 0.0
        code_row[len(view.slots) :] = 0


def _base_features(view: EnvStatus) -> list[float]:
    losses = _recent(view.losses)
    accuracies = _recent(view.accuracies)
    trained = view.train_loss is not None and view.train_accuracy is not None
    stages = [slot.stage for slot in view.slots]
    return [
        view.step / view.steps,
        *(_clamp_finite(loss / view.chance_loss) for loss in losses),
        *accuracies,
        float(trained),
        _clamp_finite((view.train_loss or 0.0) / view.chance_loss),
        view.train_accuracy or 0.0,
        *(stages.count(stage) / len(stages) for stage in OBSERVED_STAGES),
        *(float(view.last_op == op and view.step > 0) for op in Op),
        float(view.last_moved),
        math.log(view.parameter_ratio),
        view.rent * 100,
        math.log(view.rent_weight) if view.rent_weight > 0 else 0.0,
        math.log(view.host_parameters),
        math.log(view.kernel_size),
        math.log(view.train_samples),
    ]


def _slot_features(slot: Slot, view: EnvStatus) -> list[float]:
    place = [1.0, math.log(slot.site.channels), math.log(slot.site.positions)]
    if slot.stage is Stage.DORMANT:
        return place + [0.0] * (SLOT_FEATURES - PLACE_FEATURES)
    schedule = slot.schedule
    left = schedule.steps - schedule.epochs_started if schedule else 0
    norm = slot.grad_norm
    return [
        *place,
        *(float(slot.stage is stage) for stage in OBSERVED_STAGES),
        *(float(slot.seed is not None and slot.blend is blend) for blend in Blend),
        *(float(schedule is not None and schedule.curve is curve) for curve in Curve),
        slot.alpha,
        schedule.target if schedule else 0.0,
        float(left > 0),
        left / RAMP_EPOCHS[-1],
        float(slot.contribution is not None),
        10 * (slot.contribution or 0.0),
        10 * (slot.contribution_velocity or 0.0),
        float(norm is not None),
        math.log1p(norm) if norm is not None and math.isfinite(norm) else 0.0,
        float(norm is not None and not math.isfinite(norm)),
        slot.age / view.steps,
        slot.epochs_in_stage / view.steps,
        slot.parameter_count / (slot.parameter_count + 1000),
        float(slot.can_advance or slot.can_fossilize),
    ]


def _recent(values: Sequence[float]) -> list[float]:
    """Return the last `HISTORY_STEPS` values, newest first; missing older ones repeat the oldest value."""
    newest = list(values[: -HISTORY_STEPS - 1 : -1])
    return newest + [newest[-1]] * (HISTORY_STEPS - len(newest))


def _clamp_finite(value: float, limit: float = 5.0) -> float:
    """Clamp a value, so that a diverged env gives one bad feature and no NaN in the policy."""
    return min(value, limit) if math.isfinite(value) else limit
