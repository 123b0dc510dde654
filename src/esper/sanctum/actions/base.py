"""Base class of the app and of its actions: Textual's app, and what all actions use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver
from textual.events import Key
from textual.notifications import Notify
from textual.widgets import Input

from esper.sanctum.driver import BrowserDriver, ResilientDriver
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.source import RunSource
from esper.sanctum.view import ViewState

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel


class BaseApp(App[None]):
    """App for terminals and browser connections that may close, in which equal notifications do not stack.

    Args:
        source: Source of the first run.
    """

    view: ViewState
    """State that all panels share."""

    def __init__(self, source: RunSource) -> None:
        super().__init__()
        self.own_source = source
        """Source of the first run. If it trains in this process, it goes on while another run is shown."""
        self.source = source
        """Source of the shown run."""
        self._state = source.state

    def begin_run(self, view: ViewState) -> None:
        """Show another run. Each base class with state of the run replaces it."""
        self.view, self.source, self._state = view, view.source, view.source.state

    def refresh_view(self) -> None:
        """Update the visible screens from the state of the source."""
        if self.source.state is not self._state:
            self._state = self.source.state
            self.view.state_version += 1
        for screen in reversed(self.screen_stack):
            if isinstance(screen, RunScreen):
                if screen.is_mounted:  # on a busy machine, a theme or a tick comes before the panels of a new screen
                    screen.update()
                break  # a full screen hides the ones below; a dialog does not

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,  # noqa: ARG002 (Textual's signature)
    ) -> None:
        """Show a notification. It is plain text: square brackets, as in a path, are ordinary characters."""
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=False)

    @property
    def shows_notices(self) -> bool:
        """True if a notification is visible."""
        return bool(self.screen_stack and self.screen.query("Toast"))

    def action_dismiss_notices(self) -> None:
        """Remove all notifications."""
        self.clear_notifications()

    def refuse_in_browser(self, message: str) -> bool:
        """Return True, with a notification, if the dashboard is shown in a browser: no files are written then."""
        if self.is_web:
            self.notify(message, severity="warning")
        return self.is_web

    def get_driver_class(self) -> type[Driver]:
        """Return Textual's driver, or the variant of it that survives a closed terminal or browser."""
        driver = super().get_driver_class()
        if driver is LinuxDriver:
            return ResilientDriver
        return BrowserDriver if driver is WebDriver else driver

    def clear_selection(self) -> None:
        """Clear the text selection, unless there is no screen yet.

        From Python 3.12 on, Textual mounts an Input of the first screen before the screen is on the stack (issue 6444).
        """
        if self.screen_stack:
            super().clear_selection()

    def on_key(self, event: Key) -> None:
        """Insert a character that was typed before its input had the focus: it was sent to the former widget.

        A terminal sends several characters at once if the user types quickly or the dashboard is busy.
        """
        field = self.focused
        if isinstance(field, Input) and event.is_printable and event.character:  # an input keeps all that it receives
            event.prevent_default()
            field.insert_text_at_cursor(event.character)

    def on_notify(self, event: Notify) -> None:
        """Remove any notification with the same text; Textual then shows the new one."""
        new = event.notification
        for shown in list(self._notifications):
            if (shown.message, shown.title, shown.severity) == (new.message, new.title, new.severity):
                self._unnotify(shown, refresh=False)
