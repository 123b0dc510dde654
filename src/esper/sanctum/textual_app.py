"""Textual's app, with the changes that do not depend on what the dashboard shows."""

from __future__ import annotations

from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver
from textual.notifications import Notify

from esper.sanctum.driver import BrowserDriver, ResilientDriver


class TextualApp(App[None]):
    """App for terminals and browser connections that may close, in which equal notifications do not stack."""

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

    def write_to_terminal(self, sequence: str) -> None:
        """Write an escape sequence to the terminal, between two frames."""
        if self._driver is not None:
            self._driver.write(sequence)  # each frame is one call too, so that the two never mix

    def on_notify(self, event: Notify) -> None:
        """Remove any notification with the same text; Textual then shows the new one."""
        new = event.notification
        for shown in list(self._notifications):
            if (shown.message, shown.title, shown.severity) == (new.message, new.title, new.severity):
                self._unnotify(shown, refresh=False)
