"""The screens that have a number key and a tab: `bindings.PLACES` says which keys, this says what they open."""

from __future__ import annotations

from esper.sanctum.screens.base import RunScreen
from esper.sanctum.screens.devices import DevicesScreen
from esper.sanctum.screens.growth import Growth
from esper.sanctum.screens.log import LogScreen
from esper.sanctum.screens.numerics import Numerics
from esper.sanctum.screens.overview import Overview
from esper.sanctum.screens.policy import Policy

SCREENS: dict[str, type[RunScreen]] = {
    "overview": Overview,
    "policy": Policy,
    "growth": Growth,
    "numerics": Numerics,
    "devices": DevicesScreen,
    "log": LogScreen,
}
"""By the names of `PLACES`."""
