"""The observation: the features of an env that the policy network receives.

It has three parts: the base features of the env; the features of each slot, in the order of the forward pass; and the
properties of each blueprint in each slot. A policy that treats all slots alike, and all blueprints, can act in envs
with any number of them.

The first feature of a slot is 1 if the env has it, and the first of a blueprint is 1 if the slot offers it; else all
others are 0. Features are scaled to the order of 1 here, and normalised by `ObservationNormaliser`. Scores and losses
are relative to those of a constant output, sizes to the host. A feature that was not measured is 0; for most features,
a flag tells this from a measured 0. Nothing depends on the test split.

Shapes: E envs, S slots, B blueprints, F features, G features of a slot, K properties of a blueprint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.domain import Curve, Op, Stage
from esper.growth.blend import RAMP_EPOCHS, Blend
from esper.growth.blueprints.properties import measure_properties
from esper.growth.site import SlotSite
from esper.growth.slot import Slot
from esper.policy.agent import EnvStatus

HISTORY_STEPS = 3
"""Number of recent losses and scores in the observation."""
OBSERVED_STAGES = tuple(stage for stage in Stage if stage is not Stage.DORMANT)
BASE_GROUPS = {
    "progress": 1,
    "validation": 2 * HISTORY_STEPS,
    "training": 4,
    "gradient norm": 1,
    "seeds": len(OBSERVED_STAGES),
    "last op": len(Op) + 1,
    "size and rent": 3,
    "host and data": 3,
}
"""Number of base features of each group, in their order, keyed by its name on the screen."""
BASE_FEATURES = sum(BASE_GROUPS.values())
PLACE_FEATURES = 4
"""Number of features of a slot's place, which come first."""
SLOT_FEATURES = PLACE_FEATURES + len(OBSERVED_STAGES) + len(Blend) + len(Curve) + 14
BLUEPRINT_FEATURES = 7
"""Number of features of a blueprint in a slot."""
MIN_RENT_WEIGHT = 1e-4
"""Lowest weight of the rent that the policy tells from 0."""


class ObservationShape(NamedTuple):
    """Numbers of slots and blueprints of an observation."""

    slots: int
    blueprints: int

    @property
    def size(self) -> int:
        """Number of features."""
        return BASE_FEATURES + self.slots * (SLOT_FEATURES + self.blueprints * BLUEPRINT_FEATURES)

    def split(self, obs_F: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return views of the parts of observations [..., F]: base, slots [..., S, G], blueprints [..., S, B, K]."""
        sizes = [BASE_FEATURES, self.slots * SLOT_FEATURES, self.slots * self.blueprints * BLUEPRINT_FEATURES]
        lead = obs_F.shape[:-1]
        base_F, slot_F, blueprint_F = torch.split(obs_F, sizes, dim=-1)
        return (
            base_F,
            slot_F.view(*lead, self.slots, SLOT_FEATURES),
            blueprint_F.view(*lead, self.slots, self.blueprints, BLUEPRINT_FEATURES),
        )


def write_observation(
    views: Sequence[EnvStatus], obs_EF: Tensor, blueprint_ES: Tensor, blueprints: tuple[str, ...]
) -> None:
    """Write the observations of every env into preallocated buffers on the CPU.

    Args:
        obs_EF: Receives the features, float32.
        blueprint_ES: Receives the blueprint of each slot, int64: 1 + its index, 0 for an empty slot.
        blueprints: Blueprints that the policy can select, in the order of the head.
    """
    codes = {name: index for index, name in enumerate(blueprints, start=1)}
    shape = ObservationShape(blueprint_ES.shape[-1], len(blueprints))
    # The arrays share the memory of the tensors.
    base_EF, slot_ESG, blueprint_ESBK = (part.numpy() for part in shape.split(obs_EF))
    code_ES = blueprint_ES.numpy()
    for env, view in enumerate(views):
        count = len(view.slots)
        base_EF[env] = _base_features(view)
        for index, slot in enumerate(view.slots):
            slot_ESG[env, index] = _slot_features(slot, view, index)
            blueprint_ESBK[env, index] = _blueprint_features(slot.site, view.host_parameters, blueprints)
            code_ES[env, index] = codes[slot.blueprint] if slot.blueprint else 0
        for absent in (slot_ESG[env, count:], blueprint_ESBK[env, count:], code_ES[env, count:]):
            absent[...] = 0


def _base_features(view: EnvStatus) -> list[float]:
    losses = _recent(view.losses)
    scores = [_gain(score, view) for score in _recent(view.scores)]
    trained = view.train_loss is not None and view.train_score is not None
    train_score = _gain(view.train_score or 0.0, view) if trained else 0.0
    norm = view.grad_norm
    stages = [slot.stage for slot in view.slots]
    return [
        view.step / view.steps,
        *(_clamp_finite(loss / view.chance_loss) for loss in losses),
        *scores,
        float(trained),
        _clamp_finite((view.train_loss or 0.0) / view.chance_loss),
        train_score,
        train_score - scores[0] if trained else 0.0,
        math.log1p(norm) if norm is not None and math.isfinite(norm) else 0.0,
        *(stages.count(stage) / len(stages) for stage in OBSERVED_STAGES),
        *(float(view.last_op == op and view.step > 0) for op in Op),
        float(view.last_moved),
        math.log(view.parameter_ratio),
        view.rent * 100,
        math.log(max(view.rent_weight, MIN_RENT_WEIGHT)),
        math.log(view.host_parameters),
        math.log(view.kernel_size),
        math.log(view.train_samples),
    ]


def _slot_features(slot: Slot, view: EnvStatus, index: int) -> list[float]:
    depth = (index + 1) / len(view.slots)
    place = [1.0, math.log(slot.site.channels), math.log(slot.site.positions), depth]
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
        math.log1p(slot.parameter_count / view.host_parameters),
        float(slot.can_advance or slot.can_fossilize),
    ]


@lru_cache(1024)
def _blueprint_features(site: SlotSite, host_parameters: int, blueprints: tuple[str, ...]) -> NDArray[np.float32]:
    """Return the properties of each blueprint in a slot, [B, K]; zeros for one that the slot does not offer."""
    found_BK = np.zeros((len(blueprints), BLUEPRINT_FEATURES), dtype=np.float32)
    for index, name in enumerate(blueprints):
        if name in site.blueprints:
            seed = measure_properties(name, site.layout, site.channels, site.is_causal, site.sizes)
            found_BK[index] = (
                1.0,
                math.log1p(seed.parameters / host_parameters),
                math.log1p(seed.parameters),
                math.log1p(seed.operations),
                seed.reach,
                seed.mixing,
                seed.layers,
            )
    return found_BK


def _gain(score: float, view: EnvStatus) -> float:
    """Return a score relative to those of a constant output, 0, and of a perfect one, 1; 0 if it is not finite."""
    if not math.isfinite(score):
        return 0.0
    return (score - view.chance_score) / max(1.0 - view.chance_score, 1e-3)


def _recent(values: Sequence[float]) -> list[float]:
    """Return the last `HISTORY_STEPS` values, newest first; missing older ones repeat the oldest value."""
    newest = list(values[: -HISTORY_STEPS - 1 : -1])
    return newest + [newest[-1]] * (HISTORY_STEPS - len(newest))


def _clamp_finite(value: float, limit: float = 5.0) -> float:
    """Clamp a value, so that a diverged env gives one bad feature and no NaN in the policy."""
    return min(value, limit) if math.isfinite(value) else limit
