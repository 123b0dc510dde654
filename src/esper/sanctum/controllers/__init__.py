"""Controllers: the actions of the app, one subject each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel
    from textual.screen import Screen

_Result = TypeVar("_Result")


class Notifier(Protocol):
    """Shows notifications."""

    def notify(
        self,
        message: str,
        *,
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a message for `timeout` seconds; None is Textual's default."""
        ...


class AppServices(Notifier, Protocol):
    """Services of the app that several controllers use."""

    @property
    def screen(self) -> Screen[Any]:
        """Front screen."""
        ...

    def push_screen(self, screen: Screen[_Result], callback: Callable[[_Result | None], None] | None = None) -> object:
        """Open a screen over the front screen; `callback` receives its result."""
        ...

    def refresh_view(self) -> None:
        """Update the visible screens from the state of the source."""
        ...
