"""The screens that have a number key and a tab: `bindings.PLACES` says which keys, this says what they open."""

from __future__ import annotations

from importlib import import_module

from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.panel import View

SCREENS = {
    "overview": "Overview",
    "policy": "Policy",
    "growth": "Growth",
    "numerics": "Numerics",
    "devices": "DevicesScreen",
    "log": "LogScreen",
}
"""By the names of `PLACES`: a class of the module of that name."""


def open_screen(place: str, view: View) -> RunScreen:
    """Make the screen of a place. Each is loaded when it is first opened: the first frame waits for its own only."""
    return getattr(import_module(f"esper.sanctum.screens.{place}"), SCREENS[place])(view, place)
