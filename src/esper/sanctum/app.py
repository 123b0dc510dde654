"""The dashboard app: its actions, its ticks and its screens."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.actions import ActionParseResult
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import Input

from esper.common.formatting import pluralise
from esper.recordings.files.segments import ReadError
from esper.sanctum.actions.diagnosis import DiagnosisActions
from esper.sanctum.actions.next_steps import NextStepsActions
from esper.sanctum.actions.run import RunActions
from esper.sanctum.actions.sharing import SharingActions
from esper.sanctum.actions.what_if import WhatIfActions
from esper.sanctum.actions.workspace import WORKSPACE_MODE
from esper.sanctum.driver import ResilientDriver, parse_input
from esper.sanctum.keys import ACTIONS_WITHOUT_RUN, APP_CATEGORIES, ENV_VIEW, KEYS, KeyBinding, bindings
from esper.sanctum.screens.base import FULL_COLUMNS, FULL_ROWS, MIN_COLUMNS, MIN_ROWS
from esper.sanctum.source import NoRunSource, RunSource
from esper.sanctum.symbols import CharsetFilter, detect_charset, key_name
from esper.sanctum.theme import find_theme, load_themes
from esper.sanctum.view import MAX_FRAME_S, ViewState

TICK_INTERVAL_S = 0.2
"""Seconds between two updates from the source."""
READING_INTERVAL_S = 0.01
"""Seconds between two updates while a long recording is read."""
MAX_NOTICES = 3
"""Maximum number of notices about a damaged recording that are shown."""
NOTICE_SECONDS = 10.0
"""Seconds for which a notice stays on the screen."""
_WIDTHS = [(0, "-tiny"), (MIN_COLUMNS, "-slim"), (FULL_COLUMNS, "-narrow"), (110, "-normal"), (160, "-wide")]
_HEIGHTS = [(0, "-flat"), (MIN_ROWS, "-low"), (FULL_ROWS, "-short"), (34, "-medium"), (50, "-tall")]
"""Minimum width or height, in cells, from which a screen has a CSS class; see `sanctum.tcss`."""


_ACTIONS_OF_RUN = (
    frozenset(key.action.partition("(")[0] for key in KEYS if key.category in APP_CATEGORIES) - ACTIONS_WITHOUT_RUN
)
"""Actions of the app that have no effect in the workspace."""


class SanctumApp(DiagnosisActions, RunActions, SharingActions, NextStepsActions, WhatIfActions):
    """Dashboard app. Exits when the user quits, or when the run has ended after a stop request.

    Args:
        symbols: Character set, one of `symbols.CHARSETS`.
        bell: Ring the bell of the terminal when an anomaly begins.
        notify: Escape sequence for desktop notifications, one of `NOTIFY_PROTOCOLS`; None to send none.
        env: Index of the env that is selected first.
        initial_view: View that is opened first, one of `keys.VIEW_NAMES`.
        moment: Moment of a recording to go to as soon as it was read; None to stay at the start.
        keys: Table of all keys, with the keys of the user.
        typed: Keys that the user typed before the app could read them, as the terminal sent them.

    Raises:
        ConfigError: The theme is unknown, or a theme file is invalid.
    """

    TITLE = "Esper Sanctum"
    DEFAULT_MODE = "overview"
    CSS_PATH = Path(__file__).with_name("sanctum.tcss")
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(*APP_CATEGORIES),
        Binding("escape", "dismiss_notices", "remove the notices", show=False, priority=True),
    ]
    HORIZONTAL_BREAKPOINTS = _WIDTHS
    VERTICAL_BREAKPOINTS = _HEIGHTS

    def __init__(
        self,
        source: RunSource,
        *,
        theme: str,
        symbols: str = "braille",
        bell: bool = False,
        notify: str | None = None,
        env: int = 0,
        initial_view: str = "overview",
        moment: str | None = None,
        keys: Sequence[KeyBinding] = KEYS,
        typed: str = "",
    ) -> None:
        super().__init__(source, bell=bell, notify_protocol=notify)
        charset = detect_charset(symbols)
        self._charset = CharsetFilter(charset)
        self.palettes = load_themes(ansi16=self.console.color_system == "standard")
        palette = find_theme(theme, self.palettes)
        for name in list(self.available_themes):
            self.unregister_theme(name)  # Textual's themes have no colours for stages
        for known in self.palettes.values():
            self.register_theme(known.theme)
        self.view = ViewState(source, palette, env, charset=charset, keys=keys)
        self._initial_view = initial_view
        self._initial_moment = moment
        self._typed = typed
        self.add_run_modes()
        self._ticked = 0.0
        self._num_warned = 0
        self.set_reactive(SanctumApp.theme, palette.name)
        self.stylesheet.set_variables(self.get_css_variables())  # before the first frame is drawn

    def on_load(self) -> None:
        """Bind the keys of the user."""
        if self.view.keys is not KEYS:  # all keys: Textual drops the bindings of others that had a changed key
            self.set_keymap({key.id: key.keys for key in self.view.keys})

    def on_ready(self) -> None:
        """Start the source after the first frame, because the imports of the engine take seconds."""
        if self._initial_view != self.DEFAULT_MODE:
            action = "open_env" if self._initial_view == ENV_VIEW else f"go({self._initial_view!r})"
            self.call_next(self.run_action, action)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.source.start()
        self.start_alerts()
        self._ticked = time.monotonic()
        self.set_interval(TICK_INTERVAL_S, self._tick)
        self._reading_timer = self.set_interval(READING_INTERVAL_S, self._tick, pause=True)
        if self._initial_moment is not None:
            self.go_to(self._initial_moment)
        for message in parse_input(self._typed):
            self.post_message(message)

    def _tick(self) -> None:
        if not self.is_running:  # Textual removes the widgets of an app that exits before it stops the timers
            return
        if isinstance(self._driver, ResilientDriver):
            if self._driver.closed:
                self.exit()
            elif self._driver.consume_dropped():
                self.screen.refresh()
        self.call_later(self.handle_waiting_keys)  # a widget that was removed with a key does not report it
        now = time.monotonic()
        elapsed, self._ticked = min(now - self._ticked, MAX_FRAME_S), now
        changed = self.source.tick(elapsed) | self.poll_what_if()
        if self.source is not self.own_source:
            self.own_source.tick(elapsed)
        changed |= self.tick_workspace()
        trains_here = self.own_source.live and not self.own_source.attached  # the run needs the CPU itself
        is_waiting = self.source.fraction_read is not None or self.source.curves.is_waiting
        is_reading = (is_waiting or self.is_reading_runs) and not trains_here
        (self._reading_timer.resume if is_reading else self._reading_timer.pause)()
        self.run_deferred_action()
        self.poll_resumption()
        self.work_when_idle()
        self.offer_next_steps()
        refusals = self.source.requests.pop_refusals() if self.source.requests else []
        if self.own_source.failure is not None or self.has_finished_leaving:
            self.exit()
        elif changed or refusals or not self.source.alive:
            self.refresh_view()
        self.update_stats(now)
        self._warn()
        if self.source.ghost_run is not None and (message := self.source.ghost_run.pop_message()) is not None:
            self.notify(message, timeout=NOTICE_SECONDS)
        for refusal in refusals:
            self.notify(refusal, severity="error")

    def _warn(self) -> None:
        """Notify the user of new damage in the recording, and of a past that can no longer be shown."""
        notices = self.source.notices
        texts = [*notices[self._num_warned : MAX_NOTICES], *self.source.pop_messages()]
        if len(notices) > MAX_NOTICES >= self._num_warned:
            texts.append(f"{pluralise(len(notices) - MAX_NOTICES, 'more notice')}. --no-tui prints all.")
        for text in texts:
            self.notify(text, severity="warning", timeout=NOTICE_SECONDS)
        self._num_warned = len(notices)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters, plus the translation into the character set of the terminal."""
        filters = super().get_line_filters()
        return filters if self._charset.charset == "braille" else [*filters, self._charset]

    def watch_theme(self, name: str) -> None:
        """Redraw everything in the colours of the new theme."""
        self.use_palette(self.palettes[name])
        self.refresh_view()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable keys that have no effect: in a replay those to stop and to detach, Esc for notices without a notice.

        Esc closes a dialog first.

        End is disabled at the end of a recording, and in the present of a live run unless its past is read. It has
        priority over the focused widget, so that it is also disabled in dialogs and inputs, which use it.
        """
        if action == "dismiss_notices":
            return self.shows_notices and not self.screen.is_modal
        if action == "leave_run":
            return self.view.can_leave and not self.shows_workspace
        if self.shows_workspace and action in _ACTIONS_OF_RUN:
            return False
        if action == "go" and parameters and not self.view.has_screen(str(parameters[0])):
            return False
        if action == "rejoin":
            playback = self.source.playback
            is_past = playback is not None and (self.source.live or playback.position < playback.length)
            return (is_past or self.is_loading_history) and not (
                self.screen.is_modal or isinstance(self.focused, Input)
            )
        if action in {"stop", "detach"}:
            return self.source.live
        return super().check_action(action, parameters)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action; if it cannot read the recording, notify the user."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except ReadError as error:
            self.notify(str(error), severity="error")
            return True

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the commands of the palette: keys of the app and of the focused widgets, and all themes."""
        focused = {active.binding.id for active in screen.active_bindings.values()}
        for key in self.view.keys:
            redundant = key.priority or key.action == "command_palette"  # a second key of an action; this palette
            if redundant or not self.view.is_available(key):
                continue
            if key.category in APP_CATEGORIES:
                yield SystemCommand(self._command_title(key), key.description, partial(self.run_action, key.action))
            elif key.id in focused:
                first = key.keys.partition(",")[0]
                yield SystemCommand(self._command_title(key), key.description, partial(self.simulate_key, first))
        for name in self.palettes:
            yield SystemCommand(f"Theme {name}", "change the colours", partial(setattr, self, "theme", name))

    def _command_title(self, key: KeyBinding) -> str:
        return f"{key.name.capitalize()} ({key_name(key.label, self.view.charset)})"

    def action_next_theme(self) -> None:
        """Switch to the next theme."""
        names = list(self.palettes)
        self.theme = names[(names.index(self.theme) + 1) % len(names)]
        self.notify(f"Theme {self.theme}", timeout=2)

    async def action_interrupt(self) -> None:
        """Leave as `quit` does; in a browser, copy the selected text instead."""
        if self.is_web:
            self.copy_selection()
        else:
            await self.action_quit()


class WorkspaceApp(SanctumApp):
    """Dashboard app that opens on the workspace, without a run.

    Args:
        telemetry_dir: Directory of the runs.
        options: Options of `SanctumApp`.
    """

    DEFAULT_MODE = WORKSPACE_MODE

    def __init__(self, telemetry_dir: Path, **options: Any) -> None:
        super().__init__(NoRunSource(telemetry_dir), initial_view=WORKSPACE_MODE, **options)
