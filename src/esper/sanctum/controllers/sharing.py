"""Sharing actions: copy the address of the current view or the data of an env, save a screenshot or an excerpt."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from esper.config import Config
from esper.formatting import format_duration
from esper.history.address import ViewAddress
from esper.history.excerpt import EXCERPT_MARGIN_S, create_unique_file, write_excerpt
from esper.history.history import open_history
from esper.process import name_current_thread
from esper.recording.runs import safe_run_name, shortest_name
from esper.recording.segments import ReadError
from esper.sanctum.bindings import ENV_VIEW
from esper.sanctum.controllers import Notifier
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.source import RunSource
from esper.sanctum.view import ViewState
from esper.telemetry.codec import encode_json

if TYPE_CHECKING:
    from textual.screen import Screen

TOAST_SECONDS = 10.0
"""Seconds for which a notice with a path or a command stays on the screen."""
BROWSER_MESSAGE = "Files cannot be saved from the browser. On the server: esper-sanctum replay RUN"
"""Notice in place of a file, which would be written on the web server, not on the machine of the viewer."""


NO_SELECTION_MESSAGE = "Ctrl+C copies selected text. To select text, hold Shift (Option on a Mac) and drag the mouse."
"""Notice for Ctrl+C in a browser, where it does not leave the dashboard."""


class SharingServices(Notifier, Protocol):
    """Services of the app that `SharingActions` uses."""

    @property
    def current_mode(self) -> str:
        """Name of the open screen with a number key."""
        ...

    @property
    def is_web(self) -> bool:
        """True if the dashboard is shown in a browser."""
        ...

    @property
    def screen_stack(self) -> Sequence[Screen[Any]]:
        """Open screens, the front screen last."""
        ...

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text to the clipboard of the terminal."""
        ...

    def run_worker(self, work: Coroutine[Any, Any, None], *, group: str) -> object:
        """Run a coroutine in the background."""
        ...

    def export_screenshot(self) -> str:
        """Return the screen as SVG."""
        ...


class SharingActions:
    """Copy and save parts of what the dashboard shows.

    Args:
        source: Source of the run.
        view: State that all panels share.
        app: Services of the app.
    """

    def __init__(self, source: RunSource, view: ViewState, app: SharingServices) -> None:
        self._source = source
        self._view = view
        self._app = app

    def copy_address(self) -> None:
        """Copy the address of the current view to the clipboard of the terminal."""
        if self._source.directory is None:
            self._app.notify("No recording yet.", severity="warning")
            return
        name = shortest_name(self._source.directory, Path(Config().telemetry_dir))
        env_is_open = any(isinstance(screen, EnvDetailScreen) for screen in self._app.screen_stack)
        view = ENV_VIEW if env_is_open else self._app.current_mode
        address = str(ViewAddress(name, self._moment(), self._view.selected_env, view))
        self._app.copy_to_clipboard(address)
        message = f"Address copied. To open it: esper-sanctum replay {shlex.quote(address)}"
        self._app.notify(message, timeout=TOAST_SECONDS, markup=False)

    def copy_env(self) -> None:
        """Copy the last step of the selected env as JSON to the clipboard of the terminal."""
        envs = self._source.state.envs
        if not envs:
            self._app.notify("No envs yet.", severity="warning")
            return
        env = envs[self._view.selected_env]
        row = {"env": env.env, "lane": env.lane, "episode_return": env.episode_return, "stepped": env.stepped}
        text = encode_json(row).decode()
        self._app.copy_to_clipboard(text)
        self._app.notify(f"Env {env.env:02d} copied as JSON ({len(text)} characters).", timeout=TOAST_SECONDS)

    def copy_selection(self) -> None:
        """Copy the selected text to the clipboard."""
        screen = self._app.screen_stack[-1]
        text = screen.get_selected_text()
        if text:
            self._app.copy_to_clipboard(text)
            screen.clear_selection()
            self._app.notify(f"Selected text copied ({len(text)} characters).")
        else:
            self._app.notify(NO_SELECTION_MESSAGE)

    def save_screenshot(self) -> None:
        """Write the screen as SVG: beside the recording of a live run, else to the working directory."""
        if self._reject_in_browser():
            return
        state, recording = self._source.state, self._source.directory
        name = safe_run_name(state.started and state.started.run, "sanctum")
        folder = recording if self._source.live and recording is not None else Path()
        try:
            stem = f"{name}-round{state.round:03d}-step{state.step:03d}"
            path, descriptor = create_unique_file(folder, stem, ".svg")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self._app.export_screenshot())
        except OSError as error:
            self._app.notify(f"Cannot save the screenshot: {error}", severity="error", markup=False)
        else:
            self._app.notify(f"Screenshot saved: {path.resolve()}", timeout=TOAST_SECONDS, markup=False)

    def save_excerpt(self) -> None:
        """Write the recorded minutes around the moment on the screen to a separate recording.

        It is written beside the directory of a live run, else to the working directory.
        """
        if self._reject_in_browser():
            return
        recording, playback = self._source.directory, self._source.playback
        if recording is None:
            self._app.notify("No recording yet.", severity="warning")
            return
        position = playback.position if playback is not None else None
        folder = recording.parent if self._source.live else Path()
        self._app.run_worker(self._save_excerpt(recording, position, folder), group="excerpt")

    def _moment(self) -> str | None:
        """Return the current moment as `find_moment` reads it: a step right after its end, else an event.

        None before the first event.
        """
        state = self._source.state
        if state.timing is not None and state.timing.seq == state.seq:
            return f"step:{state.steps_done}"
        return f"event:{state.seq}" if state.seq else None

    def _reject_in_browser(self) -> bool:
        """Return True, with a notification, if the dashboard is shown in a browser: no files are written then."""
        if self._app.is_web:
            self._app.notify(BROWSER_MESSAGE, severity="warning")
        return self._app.is_web

    async def _save_excerpt(self, recording: Path, position: int | None, folder: Path) -> None:
        try:
            path = await asyncio.to_thread(_write_excerpt, recording, position, folder)
        except (OSError, ReadError) as error:
            self._app.notify(f"Cannot save the excerpt: {error}", severity="error", markup=False)
        else:
            command = f"esper-sanctum replay {shlex.quote(str(path))}"
            message = f"Excerpt saved, {format_duration(EXCERPT_MARGIN_S)} before and after. To open it: {command}"
            self._app.notify(message, timeout=TOAST_SECONDS, markup=False)


def _write_excerpt(recording: Path, position: int | None, folder: Path) -> Path:
    """Write an excerpt around a position, or around the end if `position` is None.

    Runs in a thread, and therefore reads the recording with a history that the screen does not use.
    """
    name_current_thread("excerpt")
    history = open_history(recording)
    return write_excerpt(history, history.length if position is None else position, folder)
