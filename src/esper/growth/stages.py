"""The stages of a seed's life, and the only moves there are between them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class Stage(enum.IntEnum):
    """Where a slot stands. The order is that of a successful life, then that of a failed one."""

    DORMANT = 0
    """The slot is empty."""
    GERMINATED = 1
    """The seed exists and is not called."""
    TRAINING = 2
    """The seed learns, straight-through: the host computes as if it were not there."""
    BLENDING = 3
    """Alpha is on its way to its target, or reached it in this epoch."""
    PROBATIONARY = 4
    """Blended at its target, and on trial."""
    FOSSILIZED = 5
    """Part of the host for good."""
    CULLED = 6
    """The seed was removed in this epoch."""
    EMBARGOED = 7
    """The slot is empty and rests before it may be sown again."""

    @property
    def label(self) -> str:
        """Lower-case name, as people and telemetry read it."""
        return self.name.lower()

    @property
    def blended(self) -> bool:
        """Whether a seed of this stage takes part in the value of the forward pass."""
        return self in (Stage.BLENDING, Stage.PROBATIONARY, Stage.FOSSILIZED)


TRANSITIONS: Mapping[Stage, frozenset[Stage]] = MappingProxyType(
    {
        Stage.DORMANT: frozenset({Stage.GERMINATED}),
        Stage.GERMINATED: frozenset({Stage.TRAINING, Stage.CULLED}),
        Stage.TRAINING: frozenset({Stage.BLENDING, Stage.CULLED}),
        Stage.BLENDING: frozenset({Stage.PROBATIONARY, Stage.CULLED}),
        Stage.PROBATIONARY: frozenset({Stage.FOSSILIZED, Stage.BLENDING, Stage.CULLED}),
        Stage.FOSSILIZED: frozenset(),
        Stage.CULLED: frozenset({Stage.EMBARGOED}),
        Stage.EMBARGOED: frozenset({Stage.DORMANT}),
    }
)
"""The single source of truth: the stages that each stage may move to."""


class IllegalTransition(RuntimeError):  # noqa: N818 (it names what happened)
    """An operation was asked of a slot that its stage, or a gate, does not allow."""
