"""Base class of the tables of the configuration, and annotations of their fields: limits, units and choices."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of the TOML file."""


MAX_COUNT = 1_000_000_000
"""Default upper bound of counts."""
RandomSeed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PositiveInt = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Meta(gt=0)]
NonNegativeWeight = Annotated[float, Meta(ge=0, le=1_000_000)]
"""Finite, because an infinite weight would make the weighted sum NaN. Clipping limits may be infinite."""
UnitFraction = Annotated[float, Meta(ge=0, le=1)]
SgdLearningRate = Annotated[float, Meta(gt=0, le=100)]
Momentum = Annotated[float, Meta(ge=0, lt=1)]
StepCount = Annotated[int, Meta(ge=1, le=50)]
"""Number of steps over which a rule looks back; `MAX_STEPS` of `telemetry/health_stats.py` are kept."""


def unit(name: str) -> Meta:
    """Return the annotation of a number with a unit.

    Args:
        name: Plural, e.g. `steps`.
    """
    return Meta(extra={"unit": name})


def choices(**meanings: str) -> Meta:
    """Return the annotation of a text with one explanation for each of its words."""
    return Meta(extra={"choices": meanings})
