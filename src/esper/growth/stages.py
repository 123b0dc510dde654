"""The stages of a slot."""

from __future__ import annotations

import enum


class Stage(enum.IntEnum):
    """Stage of a slot, in the order of a successful seed, then the stages of a removed one. Numbers are on disk."""

    DORMANT = 0
    """The slot is empty."""
    GERMINATED = 1
    """The seed exists, but is not called."""
    TRAINING = 2
    """The seed is trained straight-through; the host's output is unchanged."""
    BLENDING = 3
    """Alpha is ramping to its target, or reached it in this epoch."""
    PROBATIONARY = 4
    """The seed is blended at its target and evaluated; it can be fossilized or culled."""
    FOSSILIZED = 5
    """The seed is a permanent part of the host."""
    CULLED = 6
    """The seed was removed in this epoch."""
    EMBARGOED = 7
    """The slot is empty; no seed can be planted until the embargo ends."""

    @property
    def label(self) -> str:
        """Lower-case name, used in events and on screen."""
        return self.name.lower()

    @property
    def is_blended(self) -> bool:
        """True if a seed in this stage contributes to the output of the forward pass."""
        return self in (Stage.BLENDING, Stage.PROBATIONARY, Stage.FOSSILIZED)
