"""The stages of a seed's life."""

from __future__ import annotations

import enum


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
    def is_blended(self) -> bool:
        """Whether a seed of this stage takes part in the value of the forward pass."""
        return self in (Stage.BLENDING, Stage.PROBATIONARY, Stage.FOSSILIZED)
