"""The screens that have a number key and a tab: `bindings.PLACES` says which keys, this says what they open."""

from __future__ import annotations

from esper.sanctum.screens.base import RunScreen
from esper.sanctum.screens.overview import Overview

SCREENS: dict[str, type[RunScreen]] = {
    "overview": Overview,
}
"""By the names of `PLACES`."""
