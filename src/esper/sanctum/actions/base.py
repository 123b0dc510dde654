"""Base class of the app and of its actions: Textual's app, and what all actions use."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from textual.app import App
from textual.dom import DOMNode
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver
from textual.events import Event, Key, Paste
from textual.message import Message
from textual.notifications import Notify
from textual.screen import Screen
from textual.widgets import Input

from esper.sanctum.driver import BrowserDriver, ResilientDriver
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.source import RunSource
from esper.sanctum.view import ViewState

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel


class KeyHandled(Message):
    """Follows a key through the widgets, and reaches the app right after it, or instead of it.

    Args:
        is_last: True for the second one, which follows the messages that the key has caused, such as `Submitted`.
    """

    def __init__(self, *, is_last: bool) -> None:
        super().__init__()
        self.is_last = is_last


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
        self._waiting_keys: deque[Key | Paste] = deque()
        """Keys and pasted texts that were not handled yet."""
        self._key_target: DOMNode | None = None
        """Widget or screen that has the last key; None once the key was handled there and in all above it."""
        self._opened = WeakSet[Screen[Any]]()
        """Dialogs that have had a focus."""

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

    async def on_event(self, event: Event) -> None:
        """Handle keys and pasted texts one after another, each once the effect of the one before is there.

        Textual sends a key to the widget that has the focus when it arrives. A terminal sends several keys at once if
        the user types quickly or the dashboard is busy: those after a key that opens an input would not reach it.
        """
        if isinstance(event, (Key, Paste)) and not event.is_forwarded:
            self._waiting_keys.append(event)
            await self.handle_waiting_keys()
        else:
            await super().on_event(event)

    async def handle_waiting_keys(self) -> None:
        """Handle the waiting keys, as far as they are not to wait any longer."""
        while self._waiting_keys and not self._must_keys_wait():
            target = self.focused or self.screen
            await super().on_event(self._waiting_keys.popleft())
            if target.post_message(KeyHandled(is_last=False)):
                self._key_target = target

    def _must_keys_wait(self) -> bool:
        """Return True while a widget has a key, or a dialog with an input opens, which has no focus yet."""
        if self._key_target is not None and self._key_target.is_attached:
            return True
        screen = self.screen
        if screen.focused is not None:
            self._opened.add(screen)
        is_opening = screen.is_modal and screen not in self._opened
        return is_opening and (not screen.is_mounted or (screen.AUTO_FOCUS != "" and bool(screen.query(Input))))

    async def on_key_handled(self, message: KeyHandled) -> None:
        """Handle the next key, once the messages that the last one has caused are handled too."""
        if message.is_last or not (self._key_target and self._key_target.post_message(KeyHandled(is_last=True))):
            self._key_target = None
            await self.handle_waiting_keys()

    async def on_descendant_focus(self) -> None:
        """Handle the keys that waited for the input of a dialog."""
        await self.handle_waiting_keys()

    def on_notify(self, event: Notify) -> None:
        """Remove any notification with the same text; Textual then shows the new one."""
        new = event.notification
        for shown in list(self._notifications):
            if (shown.message, shown.title, shown.severity) == (new.message, new.title, new.severity):
                self._unnotify(shown, refresh=False)
