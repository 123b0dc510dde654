"""The screens with a number key. Each module is imported when its screen is first opened."""

from __future__ import annotations

from importlib import import_module

from esper.sanctum.screens.base import RunScreen
from esper.sanctum.view import ViewState


def open_screen(name: str, view: ViewState) -> RunScreen:
    """Return a new screen: `policy` is the class `PolicyScreen` in the module `policy`.

    The module is imported here, so that the first frame waits for only one screen.
    """
    return getattr(import_module(f"{__name__}.{name}"), f"{name.capitalize()}Screen")(view, name)
