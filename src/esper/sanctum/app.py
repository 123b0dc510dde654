"""The Textual app: ticks, screens, and the controller that handles each action."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.actions import ActionParseResult
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.dom import DOMNode
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import Input

from esper.recording.segments import ReadError
from esper.sanctum.bindings import APP_CATEGORIES, ENV_VIEW, KEYS, KeyBinding, bindings
from esper.sanctum.controllers.diagnosis import DiagnosisActions
from esper.sanctum.controllers.harvest import HarvestActions
from esper.sanctum.controllers.run_actions import RunActions
from esper.sanctum.controllers.sharing import SharingActions
from esper.sanctum.controllers.time_travel import PlaybackActions
from esper.sanctum.driver import ResilientDriver
from esper.sanctum.screens import SCREEN_CLASSES, open_screen
from esper.sanctum.screens.base import FULL_COLUMNS, FULL_ROWS, MIN_COLUMNS, MIN_ROWS, RunScreen
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.screens.help import HelpScreen, LegendScreen
from esper.sanctum.source import RunSource
from esper.sanctum.symbols import CharsetFilter, key_name
from esper.sanctum.textual_app import TextualApp
from esper.sanctum.theme import find_theme, load_themes
from esper.sanctum.view import GoToMoment, ViewState
from esper.telemetry.sentences import pluralise

TICK_INTERVAL_S = 0.2
"""Seconds between two updates from the source."""
READING_INTERVAL_S = 0.01
"""Seconds between two updates while a long recording is read."""
MAX_NOTICES = 3
"""Maximum number of notices about a damaged recording that are shown."""
NOTICE_SECONDS = 20.0
"""Seconds for which a notice stays on the screen."""
_WIDTHS = [(0, "-tiny"), (MIN_COLUMNS, "-slim"), (FULL_COLUMNS, "-narrow"), (110, "-normal"), (160, "-wide")]
_HEIGHTS = [(0, "-flat"), (MIN_ROWS, "-low"), (FULL_ROWS, "-short"), (34, "-medium"), (50, "-tall")]
"""Minimum width or height, in cells, from which a screen has a CSS class; see `sanctum.tcss`."""


class SanctumApp(TextualApp):
    """Dashboard app. Exits when the user quits, or when the run has ended after a stop request.

    Raises:
        ThemeError: The theme is unknown, or a theme file is invalid.
    """

    TITLE = "Esper Sanctum"
    DEFAULT_MODE = "overview"
    CSS_PATH = Path(__file__).with_name("sanctum.tcss")
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(*APP_CATEGORIES)]
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
    ) -> None:
        super().__init__()
        self.source = source
        self._charset = CharsetFilter(symbols)
        self.palettes = load_themes(ansi16=self.console.color_system == "standard")
        palette = find_theme(theme, self.palettes)
        for name in list(self.available_themes):
            self.unregister_theme(name)  # Textual's themes have no colours for stages
        for known in self.palettes.values():
            self.register_theme(known.theme)
        self.view = ViewState(source, palette, env, charset=symbols, keys=keys)
        self.run_actions = RunActions(source, self.view, self)
        self.playback_actions = PlaybackActions(source, self.view, self)
        self.sharing_actions = SharingActions(source, self.view, self)
        self.harvest_actions = HarvestActions(source, self.view, self)
        self.diagnosis_actions = DiagnosisActions(source, self.view, self, bell=bell, notify_protocol=notify)
        self._initial_view = initial_view
        self._initial_moment = moment
        for name in SCREEN_CLASSES:
            self.add_mode(name, partial(open_screen, name, self.view))  # pyright: ignore[reportUnknownMemberType] (Screen[Any])
        self._ticked = 0.0
        self._num_warned = 0
        self._state = source.state
        self.set_reactive(SanctumApp.theme, palette.name)
        self.stylesheet.set_variables(self.get_css_variables())  # before the first frame is drawn

    def on_load(self) -> None:
        """Install the signal handlers before Textual changes the terminal, so that every exit restores it."""
        self.run_actions.install_signal_handlers()
        if self.view.keys is not KEYS:  # all keys: Textual drops the bindings of others that had a changed key
            self.set_keymap({key.id: key.keys for key in self.view.keys})

    def on_unmount(self) -> None:
        """Restore the signal handlers of the caller."""
        self.run_actions.restore_signal_handlers()

    def on_ready(self) -> None:
        """Start the source after the first frame, because the imports of the engine take seconds."""
        if self._initial_view != self.DEFAULT_MODE:
            action = "open_env" if self._initial_view == ENV_VIEW else f"go({self._initial_view!r})"
            self.call_next(self.run_action, action)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.source.start()
        self.diagnosis_actions.start()
        self._ticked = time.monotonic()
        self.set_interval(TICK_INTERVAL_S, self._tick)
        self._reading_timer = self.set_interval(READING_INTERVAL_S, self._tick, pause=True)
        if self._initial_moment is not None:
            self.playback_actions.go_to(self._initial_moment)

    def _tick(self) -> None:
        if not self.is_running:  # Textual removes the widgets of an app that exits before it stops the timers
            return
        if isinstance(self._driver, ResilientDriver):
            if self._driver.closed:
                self.exit()
            elif self._driver.consume_dropped():
                self.screen.refresh()
        now = time.monotonic()
        elapsed, self._ticked = now - self._ticked, now
        changed = self.source.tick(elapsed)
        trains_here = self.source.live and not self.source.attached  # a run in this process needs the CPU itself
        is_reading = self.source.fraction_read is not None and not trains_here
        (self._reading_timer.resume if is_reading else self._reading_timer.pause)()
        self.playback_actions.run_deferred_action()
        refusals = self.source.requests.pop_refusals() if self.source.requests else []
        if self.source.failure is not None or self.run_actions.has_finished_leaving:
            self.exit()
        elif changed or refusals or not self.source.alive:
            self.refresh_view()
        self.diagnosis_actions.update_stats(now)
        self._warn()
        if self.source.ghost_run is not None and (message := self.source.ghost_run.pop_message()) is not None:
            self.notify(message, timeout=NOTICE_SECONDS, markup=False)
        for refusal in refusals:
            self.notify(refusal, severity="error", markup=False)

    def _warn(self) -> None:
        """Notify the user of new damage in the recording, and of a past that can no longer be shown."""
        notices = self.source.notices
        texts = [*notices[self._num_warned : MAX_NOTICES], *self.source.pop_messages()]
        if len(notices) > MAX_NOTICES >= self._num_warned:
            texts.append(f"{pluralise(len(notices) - MAX_NOTICES, 'more notice')}. --no-tui prints all.")
        for text in texts:
            self.notify(text, severity="warning", timeout=NOTICE_SECONDS, markup=False)
        self._num_warned = len(notices)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters, plus the translation into the character set of the terminal."""
        filters = super().get_line_filters()
        return filters if self._charset.charset == "braille" else [*filters, self._charset]

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

    def watch_theme(self, name: str) -> None:
        """Redraw everything in the colours of the new theme."""
        self.view.palette = self.palettes[name]
        self.refresh_view()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable End unless the past of a live run is shown or read, and the stop and detach keys in a replay.

        End has priority over the focused widget, so that it is also disabled in dialogs and inputs, which use it.
        """
        if action == "rejoin":
            is_past = self.source.playback is not None or self.playback_actions.is_loading_history
            return self.source.live and is_past and not (self.screen.is_modal or isinstance(self.focused, Input))
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
            self.notify(str(error), severity="error", markup=False)
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

    # View

    def on_go_to_moment(self, target: GoToMoment) -> None:
        """Show the moment of an event if there is a recording, and the env or screen that it is about."""
        self.playback_actions.go_to_event(target)
        if target.env is not None:
            self.view.select(target.env)
            self.action_open_env()
        elif target.screen is not None:
            self.action_go(target.screen)
        self.refresh_view()

    def action_open_env(self) -> None:
        """Open the selected env."""
        if self.source.state.envs and not isinstance(self.screen, EnvDetailScreen):
            self.push_screen(EnvDetailScreen(self.view))

    def action_go(self, name: str) -> None:
        """Open the screen of a number key, and close all dialogs and env screens."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.switch_mode(name)

    def action_help(self) -> None:
        """Open the help screen."""
        self.push_screen(HelpScreen(self.view))

    def action_legend(self) -> None:
        """Explain the letters of the stages of a slot."""
        self.push_screen(LegendScreen(self.view))

    def action_next_theme(self) -> None:
        """Switch to the next theme."""
        names = list(self.palettes)
        self.theme = names[(names.index(self.theme) + 1) % len(names)]
        self.notify(f"Theme {self.theme}", timeout=2, markup=False)

    # Run

    def action_pause(self) -> None:
        """Pause the run, or resume it."""
        self.run_actions.toggle_pause()

    def action_step(self) -> None:
        """Run one step of a paused run."""
        self.run_actions.step()

    def action_checkpoint(self) -> None:
        """Write a checkpoint."""
        self.run_actions.checkpoint()

    def action_restore(self) -> None:
        """Choose a checkpoint to restore."""
        self.run_actions.restore()

    async def action_quit(self) -> None:
        """Leave the dashboard; ask for confirmation if this ends the run."""
        self.run_actions.quit()

    def action_interrupt(self) -> None:
        """Leave as `quit` does; in a browser, copy the selected text instead."""
        if self.is_web:
            self.sharing_actions.copy_selection()
        else:
            self.run_actions.quit()

    def action_stop(self) -> None:
        """End the run after a confirmation."""
        self.run_actions.stop()

    def action_detach(self) -> None:
        """Leave the dashboard of a run that trains in another process."""
        self.run_actions.detach()

    def on_explanation_needed(self) -> None:
        """Ask the engine to explain the last decision for the selected env."""
        self.run_actions.explain_decision()

    # Time

    def action_play(self) -> None:
        """Play or pause the recording."""
        self.playback_actions.toggle_play()

    def action_replay_step(self, delta: int) -> None:
        """Move the playhead by steps."""
        self.playback_actions.step(delta)

    def action_replay_round(self, delta: int) -> None:
        """Move the playhead by rounds."""
        self.playback_actions.step_round(delta)

    def action_replay_speed(self, delta: int) -> None:
        """Play faster or slower."""
        self.playback_actions.change_speed(delta)

    def action_replay_start(self) -> None:
        """Move the playhead to the start."""
        self.playback_actions.seek_start()

    def action_replay_end(self) -> None:
        """Move the playhead to the end; in a live run, return to live."""
        self.playback_actions.seek_end()

    def action_rejoin(self) -> None:
        """Return to the present of a live run."""
        self.playback_actions.return_to_live()

    def action_mark(self, delta: int) -> None:
        """Move the playhead to the next or previous mark."""
        self.playback_actions.seek_mark(delta)

    def action_bookmark(self) -> None:
        """Set or remove a bookmark."""
        self.playback_actions.toggle_bookmark()

    def action_go_to(self) -> None:
        """Choose a moment to go to."""
        self.playback_actions.choose_moment()

    # Sharing

    def action_copy_address(self) -> None:
        """Copy the address of the current view."""
        self.sharing_actions.copy_address()

    def action_copy_env(self) -> None:
        """Copy the selected env as JSON."""
        self.sharing_actions.copy_env()

    def action_save_svg(self) -> None:
        """Save a screenshot of the screen without its notifications."""
        screen = self.screen
        toasts = list(screen.query("Toast"))
        for toast in toasts:
            toast.display = False

        def save() -> None:
            self.sharing_actions.save_screenshot()
            for toast in toasts:
                toast.display = True

        screen.call_after_refresh(save)

    def action_cut(self) -> None:
        """Save an excerpt of the recording."""
        self.sharing_actions.save_excerpt()

    def action_harvest(self) -> None:
        """Write the network of the selected env as ordinary files."""
        self.harvest_actions.harvest()

    # Diagnosis

    def action_anomalies(self) -> None:
        """Choose an anomaly to go to."""
        self.diagnosis_actions.show_anomalies()

    def action_mute(self) -> None:
        """Mute the rule of the first anomaly."""
        self.diagnosis_actions.mute_first()

    def action_why(self) -> None:
        """Show the root cause of the anomalies of the selected env."""
        self.diagnosis_actions.show_root_cause()

    def action_explain(self) -> None:
        """Explain the metrics of the visible panels."""
        self.diagnosis_actions.explain()
