"""The table of screens; each is imported when first opened."""

from __future__ import annotations

from importlib import import_module

from esper.sanctum.screens.base import RunScreen
from esper.sanctum.view import ViewState

SCREEN_CLASSES = {
    "overview": "OverviewScreen",
    "policy": "PolicyScreen",
    "growth": "GrowthScreen",
    "numerics": "NumericsScreen",
    "devices": "DevicesScreen",
    "log": "LogScreen",
}
"""Class name of each screen with a number key. Keyed by the names of `bindings.PLACES`, which are also module names."""


def open_screen(name: str, view: ViewState) -> RunScreen:
    """Build a screen. Its module is imported here, so that the first frame waits for its own screen only."""
    return getattr(import_module(f"{__name__}.{name}"), SCREEN_CLASSES[name])(view, name)
