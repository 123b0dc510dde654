"""Which actions are legal. An op whose gate would refuse is illegal, so that no step is wasted on it; WAIT always is.

Shapes: E envs, O ops, S slots, Y styles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from esper.domain import Op
from esper.growth.blend import BLEND_STYLES, Blend
from esper.growth.slot import Slot
from esper.policy.agent import EnvView


class Masks(NamedTuple):
    """True where legal. The remaining heads are always free."""

    op_EO: Tensor
    slot_EOS: Tensor
    """Slots that each op may be applied to. The row of WAIT is all true: the slot is not used."""
    style_ESY: Tensor
    """Styles that SET_ALPHA may give to the seed of each slot; GERMINATE may use all."""

    @classmethod
    def empty(cls, *lead: int, slots: int) -> Masks:
        """All illegal, with leading dimensions `lead`."""
        return cls(
            torch.zeros(*lead, len(Op), dtype=torch.bool),
            torch.zeros(*lead, len(Op), slots, dtype=torch.bool),
            torch.zeros(*lead, slots, len(BLEND_STYLES), dtype=torch.bool),
        )

    def at_step(self, step: int) -> Masks:
        """Views of one step of masks with leading dimensions [E, T]."""
        return Masks(*(mask[:, step] for mask in self))


def legal_ops(slot: Slot) -> tuple[bool, ...]:
    """For each op, whether it may be applied to this slot now."""
    return (
        True,
        slot.can_germinate,
        slot.can_advance,
        slot.can_set_alpha,
        slot.can_cull,
        slot.can_fossilize,
    )


def legal_styles(slot: Slot) -> tuple[bool, ...]:
    """For each style, whether SET_ALPHA may give it to this slot's seed: a gate exists only from germination on."""
    gated = slot.blend is Blend.GATE
    return tuple((blend is Blend.GATE) == gated for _, blend in BLEND_STYLES)


def write_masks(views: Sequence[EnvView], out: Masks) -> None:
    """Fill preallocated masks from the live slots of every env."""
    slot_ESO = torch.tensor([[legal_ops(slot) for slot in view.slots] for view in views])
    out.slot_EOS.copy_(slot_ESO.transpose(1, 2))
    out.op_EO.copy_(out.slot_EOS.any(dim=-1))
    out.style_ESY.copy_(torch.tensor([[legal_styles(slot) for slot in view.slots] for view in views]))
