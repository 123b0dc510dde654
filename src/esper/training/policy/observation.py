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
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.common.domain import AlphaCurve, Op, Stage
from esper.networks.seeds.blend import RAMP_EPOCHS, Blend
from esper.networks.seeds.blueprints.properties import measure_properties
from esper.networks.seeds.site import SlotSite
from esper.networks.seeds.slot import Slot
from esper.training.policy.agent import EnvStatus
from esper.training.policy.sites import index_arrays, stack_by_sites

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
SLOT_FEATURES = PLACE_FEATURES + len(OBSERVED_STAGES) + len(Blend) + len(AlphaCurve) + 14
BLUEPRINT_FEATURES = 7
"""Number of features of a blueprint in a slot."""
MIN_RENT_WEIGHT = 1e-4
"""Lowest weight of the rent that the policy tells from 0."""
_SEEDS_START = sum(list(BASE_GROUPS.values())[: list(BASE_GROUPS).index("seeds")])
_SEEDS = slice(_SEEDS_START, _SEEDS_START + BASE_GROUPS["seeds"])
"""Base features that count the seeds of each stage."""
_RENT = sum(list(BASE_GROUPS.values())[: list(BASE_GROUPS).index("size and rent")]) + 1
"""Index of the base feature of the rent of the last step; the next one is that of the weight."""


def _one_hot(choices: Iterable[object]) -> dict[object, tuple[float, ...]]:
    """Return the features of each choice, and those of None, which are 0."""
    known = list(choices)
    return {choice: tuple(float(choice is other) for other in known) for choice in (*known, None)}


_STAGES, _BLENDS, _CURVES, _OPS = map(_one_hot, (OBSERVED_STAGES, Blend, AlphaCurve, Op))


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
    slot_ESG[..., :PLACE_FEATURES], blueprint_ESBK[...] = stack_by_sites(
        views, lambda sites, parameters: _site_features(sites, parameters, blueprints, shape)
    )
    slot_ESG[..., PLACE_FEATURES:], code_ES[...] = 0, 0
    used = [
        (env, index)
        for env, view in enumerate(views)
        for index, slot in enumerate(view.slots)
        if slot.stage is not Stage.DORMANT
    ]
    if used:
        where, slots = index_arrays(used), [views[env].slots[index] for env, index in used]
        slot_ESG[..., PLACE_FEATURES:][where] = [
            _seed_features(slot, views[env]) for slot, (env, _) in zip(slots, used, strict=True)
        ]
        code_ES[where] = [codes[slot.blueprint] if slot.blueprint else 0 for slot in slots]
    base_EF[...] = [_base_features(view) for view in views]
    stage_ESF = slot_ESG[..., PLACE_FEATURES : PLACE_FEATURES + len(OBSERVED_STAGES)]
    base_EF[:, _SEEDS] = stage_ESF.sum(axis=1) / np.array([[len(view.slots)] for view in views], dtype=np.float32)


def set_rent(obs_TF: Tensor, rent_T: Tensor, weight: float) -> None:
    """Set the weight of the rent in observations of whole episodes, in place, and the rents that follow from it.

    Args:
        obs_TF: Observations [..., T, F], not normalised, from the first step on.
        rent_T: Rent of each step at weight 1, [..., T].
        weight: New weight of the rent.
    """
    obs_TF[..., 0, _RENT] = 0
    obs_TF[..., 1:, _RENT] = 100 * weight * rent_T[..., :-1].to(obs_TF.dtype)
    obs_TF[..., _RENT + 1] = math.log(max(weight, MIN_RENT_WEIGHT))


def _base_features(view: EnvStatus) -> list[float]:
    """Return the base features; those of the seeds are 0, because they are computed for all envs at once."""
    chance = view.chance_loss
    scores = [_gain(score, view) for score in _recent(view.scores)]
    trained = view.train_loss is not None and view.train_score is not None
    train_score = _gain(view.train_score or 0.0, view) if trained else 0.0
    return [
        view.step / view.steps,
        *[_clamp_finite(loss / chance) for loss in _recent(view.losses)],
        *scores,
        float(trained),
        _clamp_finite((view.train_loss or 0.0) / chance),
        train_score,
        train_score - scores[0] if trained else 0.0,
        _log_norm(view.grad_norm),
        *_STAGES[None],
        *_OPS[view.last_op if view.step > 0 else None],
        float(view.last_moved),
        math.log(view.parameter_ratio),
        view.rent * 100,
        math.log(max(view.rent_weight, MIN_RENT_WEIGHT)),
        math.log(view.host_parameters),
        math.log(view.kernel_size),
        math.log(view.train_samples),
    ]


def _seed_features(slot: Slot, view: EnvStatus) -> list[float]:
    """Return the features of a slot that is not DORMANT, without those of its place."""
    schedule, norm, dependence = slot.schedule, slot.grad_norm, slot.dependence
    left = schedule.steps - schedule.epochs_started if schedule else 0
    return [
        *_STAGES[slot.stage],
        *_BLENDS[slot.blend if slot.blueprint else None],
        *_CURVES[schedule.curve if schedule else None],
        schedule.value if schedule else 0.0,
        schedule.target if schedule else 0.0,
        float(left > 0),
        left / RAMP_EPOCHS[-1],
        float(dependence is not None),
        10 * view.share(dependence or 0.0),
        10 * view.share(slot.dependence_velocity or 0.0),
        float(norm is not None),
        _log_norm(norm),
        float(norm is not None and not math.isfinite(norm)),
        slot.age / view.steps,
        slot.epochs_in_stage / view.steps,
        math.log1p(slot.parameter_count / view.host_parameters),
        float(slot.can_advance or slot.can_fossilize),
    ]


@lru_cache(1024)
def _site_features(
    sites: tuple[SlotSite, ...], host_parameters: int, blueprints: tuple[str, ...], shape: ObservationShape
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the features that do not change: places of the slots [S, P], and properties of the blueprints [S, B, K].

    Those of a slot that the env does not have, and of a blueprint that the slot does not offer, are 0.
    """
    place_SP = np.zeros((shape.slots, PLACE_FEATURES), dtype=np.float32)
    found_SBK = np.zeros((*shape, BLUEPRINT_FEATURES), dtype=np.float32)
    for row, site in enumerate(sites):
        place_SP[row] = 1.0, math.log(site.channels), math.log(site.positions), (row + 1) / len(sites)
        for index, name in enumerate(blueprints):
            if name in site.blueprints:
                seed = measure_properties(name, site.layout, site.channels, site.is_causal, site.sizes)
                found_SBK[row, index] = (
                    1.0,
                    math.log1p(seed.parameters / host_parameters),
                    math.log1p(seed.parameters),
                    math.log1p(seed.operations),
                    seed.reach,
                    seed.mixing,
                    seed.layers,
                )
    return place_SP, found_SBK


def _gain(score: float, view: EnvStatus) -> float:
    """Return a score relative to those of a constant output, 0, and of a perfect one, 1; 0 if it is not finite."""
    if not math.isfinite(score):
        return 0.0
    return _clamp_finite(view.score_scale.skill(score, view.chance_score))


def _recent(values: Sequence[float]) -> list[float]:
    """Return the last `HISTORY_STEPS` values, newest first; missing older ones repeat the oldest value."""
    newest = list(values[: -HISTORY_STEPS - 1 : -1])
    return newest + [newest[-1]] * (HISTORY_STEPS - len(newest))


def _clamp_finite(value: float) -> float:
    """Clamp a value, so that a diverged env gives one bad feature and no NaN in the policy."""
    return min(value, 5.0) if math.isfinite(value) else 5.0


def _log_norm(norm: float | None) -> float:
    """Return log(1 + norm), or 0 if it was not measured or is not finite."""
    return math.log1p(norm) if norm is not None and math.isfinite(norm) else 0.0
