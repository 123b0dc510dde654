"""Lessons: all alternatives of one context with their outcomes, and their files.

An alternative is a way to play an episode: a plan, a policy, or given first decisions and a plan or a policy after
them. All alternatives of a lesson start from the same hosts and see the same data in the same order, so that their
returns differ by their decisions alone. Each alternative is played in several *orders*. In each of them, the hosts have
other initial weights and see the data in another order. An alternative that is better in only one of them was lucky.

Shapes: O orders, P alternatives, T steps, F features, S slots, B blueprints, H heads.
"""

# safetensors does not declare its types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import msgspec
import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.common.configuration.config import ConfigError
from esper.common.system.disk import make_directory, write_replaced
from esper.recordings.events.codec import encode_json
from esper.training.policy.masks import ActionMasks
from esper.training.policy.observation import ObservationShape

FORMAT = 2
"""Version of the files."""
_MASK = "mask."


class LessonInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a lesson: everything that is not a tensor."""

    task: str
    """Name of the task, or of the structure of the context if the task is a family."""
    alternatives: list[str]
    """Description of each alternative; that of a plan or a policy without first decisions is its name."""
    rent: float
    """Weight of the rent that policies observed while they decided."""
    software: str
    """Versions of the package and of torch, on which the outcomes depend besides the context."""
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """Alternatives of one context, with the inputs of the policy and the outcomes.

    Attributes:
        obs_OPTF: Observations, not normalised, float32.
        blueprint_OPTS: Blueprint of each slot, 1 + its index; 0 for an empty slot; int64.
        masks: Legal actions, with leading dimensions [O, P, T].
        actions_OPTH: Actions, int64.
        score_OPT: Validation score before the first step and after each one, float64, [O, P, T + 1].
        rent_OPT: Rent of each step at weight 1, float64.
        cost_OPT: Costs of ops and penalties of each step, float64.
        valid_OPT: True for steps in which the env was active; False after a breakdown.
    """

    info: LessonInfo
    obs_OPTF: Tensor
    blueprint_OPTS: Tensor
    masks: ActionMasks
    actions_OPTH: Tensor
    score_OPT: Tensor
    rent_OPT: Tensor
    cost_OPT: Tensor
    valid_OPT: Tensor

    def rewards(self, rent: float) -> Tensor:
        """Return the net reward of each step at a weight of the rent, [O, P, T]."""
        return net_rewards(self.score_OPT, self.rent_OPT, self.cost_OPT, rent)

    def returns(self, rent: float) -> Tensor:
        """Return the net return of each episode at a weight of the rent, [O, P]."""
        return self.rewards(rent).sum(dim=-1)


_TENSORS = tuple(field.name for field in fields(Lesson) if field.name not in ("info", "masks"))
"""Names of the attributes that are tensors."""


def net_rewards(score_OPT: Tensor, rent_OPT: Tensor, cost_OPT: Tensor, rent: float) -> Tensor:
    """Return the net reward of each step at a weight of the rent, [O, P, T], from values as those of a lesson."""
    return score_OPT.diff(dim=-1) - rent * rent_OPT - cost_OPT


def write_lesson(path: Path, lesson: Lesson) -> None:
    """Write a lesson, and create its folder. A file of the same name is replaced as a whole. Raises OSError."""
    tensors: dict[str, Tensor] = {name: getattr(lesson, name) for name in _TENSORS}
    tensors |= {_MASK + name: mask for name, mask in lesson.masks._asdict().items()}
    metadata = {"info": encode_json(lesson.info).decode()}
    make_directory(path.parent)
    write_replaced(path, safetensors.torch.save({name: t.contiguous() for name, t in tensors.items()}, metadata))


def read_lesson(path: Path) -> Lesson:
    """Read a lesson.

    Raises:
        ConfigError: The file is damaged, or of another version.
        OSError: The file cannot be read.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            info = msgspec.json.decode((file.metadata() or {})["info"], type=LessonInfo)
            if info.format != FORMAT:
                raise ConfigError(f"{path} has format {info.format}, not {FORMAT}; delete it to play the lesson again")
            masks = ActionMasks(*(file.get_tensor(_MASK + name) for name in ActionMasks._fields))
            return Lesson(info=info, masks=masks, **{name: file.get_tensor(name) for name in _TENSORS})
    except (safetensors.SafetensorError, KeyError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} is damaged: {error}; delete it to play the lesson again") from error


def join_alternatives(first: Lesson, second: Lesson) -> Lesson:
    """Return the lesson with the alternatives of two lessons of the same context."""

    def join(name: str) -> Tensor:
        return torch.cat((getattr(first, name), getattr(second, name)), dim=1)

    texts = [*first.info.alternatives, *second.info.alternatives]
    return Lesson(
        info=msgspec.structs.replace(first.info, alternatives=texts),
        masks=ActionMasks(*(torch.cat(pair, dim=1) for pair in zip(first.masks, second.masks, strict=True))),
        **{name: join(name) for name in _TENSORS},
    )


def pad_lesson(lesson: Lesson, slots: int, blueprints: int) -> Lesson:
    """Return a lesson with more slots and blueprints: all their features are 0, and none of them is legal.

    Args:
        slots: Number of slots; at least that of the lesson.
        blueprints: Number of blueprints; at least that of the lesson.
    """
    shape = ObservationShape(lesson.blueprint_OPTS.shape[-1], lesson.masks.blueprint_ESB.shape[-1])
    more_slots, more_blueprints = slots - shape.slots, blueprints - shape.blueprints
    base_F, slot_SG, blueprint_SBK = shape.split(lesson.obs_OPTF)
    slot_SG = F.pad(slot_SG, (0, 0, 0, more_slots))
    blueprint_SBK = F.pad(blueprint_SBK, (0, 0, 0, more_blueprints, 0, more_slots))
    masks = lesson.masks
    return replace(
        lesson,
        obs_OPTF=torch.cat((base_F, slot_SG.flatten(-2), blueprint_SBK.flatten(-3)), dim=-1),
        blueprint_OPTS=F.pad(lesson.blueprint_OPTS, (0, more_slots)),
        masks=ActionMasks(
            masks.op_EO,
            F.pad(masks.slot_EOS, (0, more_slots)),
            F.pad(masks.blueprint_ESB, (0, more_blueprints, 0, more_slots)),
            F.pad(masks.style_ESY, (0, 0, 0, more_slots)),
        ),
    )
