"""The screens with a number key. Each module is imported when its screen is first opened."""

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
"""Class names, keyed by the screen names of `bindings.SCREEN_INFO`, which are also the module names."""


def open_screen(name: str, view: ViewState) -> RunScreen:
    """Return a new screen. Its module is imported here, so that the first frame waits for only one screen."""
    return getattr(import_module(f"{__name__}.{name}"), SCREEN_CLASSES[name])(view, name)
