"""Lessons made by hand, without episodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from research.teaching.lessons import Lesson, LessonInfo

from esper.common.domain import HEADS, Op
from esper.training.policy.masks import ActionMasks
from esper.training.policy.observation import BASE_FEATURES, ObservationShape

STEPS = 3
"""Number of steps of most of these lessons."""
FEATURE = BASE_FEATURES - 3
"""Base feature that tells the lessons of `made_lesson` apart: the logarithm of the number of the host's parameters."""


def made_lesson(
    feature: float,
    gains: Sequence[float],
    shape: ObservationShape,
    slots: int | None = None,
    steps: int = STEPS,
    seed: int = 0,
) -> Lesson:
    """Return a lesson of two orders in which alternative k plants blueprint k − 1 in step 1, and alternative 0 waits.

    Args:
        feature: Value of the observation that tells the context.
        gains: Gain of the score of each alternative, all of it in the first step.
        slots: Number of slots that the env has; None: all.
        seed: Random seed of all other features.
    """
    lead = (2, len(gains), steps)
    generator = torch.Generator().manual_seed(seed)
    obs_TF = torch.randn(steps, shape.size, generator=generator)
    obs_OPTF = obs_TF.expand(*lead, -1).clone()  # equal until the alternatives differ
    base_F, slot_SG, blueprint_SBK = shape.split(obs_OPTF)
    base_F[..., FEATURE] = feature
    slot_SG[..., 0], blueprint_SBK[..., 0] = 1.0, 1.0
    slot_SG[..., slots or shape.slots :, :] = 0
    blueprint_SBK[..., slots or shape.slots :, :, :] = 0
    masks = ActionMasks.empty(*lead, slots=shape.slots, blueprints=shape.blueprints)
    for mask in masks:
        mask.fill_(True)
    masks.op_EO[..., Op.GERMINATE + 1 :] = False
    for mask in (masks.slot_EOS.swapaxes(-1, -2), masks.blueprint_ESB, masks.style_ESY):
        mask[..., slots or shape.slots :, :] = False
    actions_OPTH = torch.zeros(*lead, len(HEADS), dtype=torch.int64)
    blueprint_OPTS = torch.zeros(*lead, shape.slots, dtype=torch.int64)
    for index in range(1, len(gains)):
        actions_OPTH[:, index, 0, :3] = torch.tensor([Op.GERMINATE, 0, index - 1])
        blueprint_OPTS[:, index, 1:, 0] = index
    planted_P = (torch.arange(len(gains)) > 0).double()
    score_OPT = torch.zeros(*lead[:2], steps + 1, dtype=torch.float64) + 0.25
    score_OPT[..., 1:] += torch.tensor(gains, dtype=torch.float64)[:, None]
    cost_OPT = torch.zeros(lead, dtype=torch.float64)
    cost_OPT[..., 0] = 0.001 * planted_P
    return Lesson(
        info=LessonInfo(task="made", alternatives=[f"plan {k}" for k in range(len(gains))], rent=0.002, software="x"),
        obs_OPTF=obs_OPTF,
        blueprint_OPTS=blueprint_OPTS,
        masks=masks,
        actions_OPTH=actions_OPTH,
        score_OPT=score_OPT,
        rent_OPT=planted_P[:, None].expand(lead).clone(),
        cost_OPT=cost_OPT,
        valid_OPT=torch.ones(lead, dtype=torch.bool),
    )
