"""Shared vocabulary: stages, ops, policy heads, pause causes, anomaly rule names, step numbers."""

from __future__ import annotations

import enum
from enum import IntEnum
from typing import NamedTuple

VERSION = "0.1.0"
"""Version of the package, re-exported as `esper.__version__`."""


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


class StepNumber(NamedTuple):
    """The end of a step, which is counted from 1, of a round, which is too. The start of a run is 0, 0."""

    round: int
    step: int

    @classmethod
    def from_completed(cls, rounds: int, steps: int, length: int) -> StepNumber:
        """After so many rounds of that many steps, and so many steps of the next."""
        if steps == 0:
            return cls(rounds, length if rounds else 0)
        return cls(rounds + 1, steps)


class Op(IntEnum):
    """What a policy can do to an env in one step."""

    WAIT = 0
    GERMINATE = 1
    ADVANCE = 2
    SET_ALPHA = 3
    CULL = 4
    FOSSILIZE = 5

    @property
    def label(self) -> str:
        """Name in telemetry."""
        return self.name.lower()


HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
"""Factors of an action, in the order in which they are chosen."""
