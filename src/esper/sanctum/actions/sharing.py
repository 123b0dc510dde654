"""Sharing actions: copy the address of the current view or the data of an env, save a screenshot or an excerpt."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path

from esper.common.configuration.config import Config
from esper.common.formatting import format_duration
from esper.common.system.process import name_current_thread
from esper.recordings.events.codec import encode_json
from esper.recordings.files.runs import safe_run_name, shortest_name
from esper.recordings.files.segments import ReadError
from esper.recordings.history.address import ViewAddress
from esper.recordings.history.excerpt import EXCERPT_MARGIN_S, create_unique_file, write_excerpt
from esper.recordings.history.history import open_history
from esper.sanctum.actions.base import BaseApp
from esper.sanctum.keys import ENV_VIEW
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.source import LiveSource
from esper.sanctum.view import TOAST_SECONDS

BROWSER_MESSAGE = "Files cannot be saved from the browser. On the server: esper-sanctum replay RUN"
"""Notice in place of a file, which would be written on the web server, not on the machine of the viewer."""
NO_SELECTION_MESSAGE = "Ctrl+C copies selected text. To select text, hold Shift (Option on a Mac) and drag the mouse."
"""Notice for Ctrl+C in a browser, where it does not leave the dashboard."""


class SharingActions(BaseApp):
    """Copy and save parts of what the dashboard shows."""

    def action_copy_address(self) -> None:
        """Copy the address of the current view to the clipboard of the terminal."""
        if self.source.directory is None:
            self.notify("No recording yet.", severity="warning")
            return
        name = shortest_name(self.source.directory, Path(Config().telemetry_dir))
        env_is_open = any(isinstance(screen, EnvDetailScreen) for screen in self.screen_stack)
        view = ENV_VIEW if env_is_open else self.current_mode
        address = str(ViewAddress(name, self._current_moment(), self.view.selected_env, view))
        self.copy_to_clipboard(address)
        message = f"Address copied. To open it: esper-sanctum replay {shlex.quote(address)}"
        self.notify(message, timeout=TOAST_SECONDS)

    def action_copy_env(self) -> None:
        """Copy the last step of the selected env as JSON to the clipboard of the terminal."""
        envs = self.source.state.envs
        if not envs:
            self.notify("No envs yet.", severity="warning")
            return
        env = envs[self.view.selected_env]
        row = {"env": env.env, "lane": env.lane, "episode_return": env.episode_return, "stepped": env.stepped}
        text = encode_json(row).decode()
        self.copy_to_clipboard(text)
        self.notify(f"Env {env.env:02d} copied as JSON ({len(text)} characters).", timeout=TOAST_SECONDS)

    def copy_selection(self) -> None:
        """Copy the selected text to the clipboard."""
        screen = self.screen_stack[-1]
        text = screen.get_selected_text()
        if text:
            self.copy_to_clipboard(text)
            screen.clear_selection()
            self.notify(f"Selected text copied ({len(text)} characters).")
        else:
            self.notify(NO_SELECTION_MESSAGE)

    def action_save_svg(self) -> None:
        """Save a screenshot of the screen without its notifications."""
        screen = self.screen
        toasts = list(screen.query("Toast"))
        for toast in toasts:
            toast.display = False

        def save() -> None:
            self._write_svg()
            for toast in toasts:
                toast.display = True

        screen.call_after_refresh(save)

    def _write_svg(self) -> None:
        """Write the screen as SVG: beside the recording of a live run, else to the working directory."""
        if self.refuse_in_browser(BROWSER_MESSAGE):
            return
        state = self.source.state
        name = safe_run_name(state.started and state.started.run, "sanctum")
        try:
            folder = self.source.directory_for_files() if isinstance(self.source, LiveSource) else Path()
            stem = f"{name}-round{state.round:03d}-step{state.step:03d}"
            path, descriptor = create_unique_file(folder, stem, ".svg")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self.export_screenshot())
        except OSError as error:
            self.notify(f"Cannot save the screenshot: {error}", severity="error")
        else:
            self.notify(f"Screenshot saved: {path.resolve()}", timeout=TOAST_SECONDS)

    def action_cut(self) -> None:
        """Write the recorded minutes around the moment on the screen to a separate recording.

        It is written beside the directory of a live run, else to the working directory.
        """
        if self.refuse_in_browser(BROWSER_MESSAGE):
            return
        recording, playback = self.source.directory, self.source.playback
        if recording is None:
            self.notify("No recording yet.", severity="warning")
            return
        position = playback.position if playback is not None else None
        folder = recording.parent if self.source.live else Path()
        self.run_worker(self._save_excerpt(recording, position, folder), group="excerpt")

    def _current_moment(self) -> str | None:
        """Return the current moment as `find_moment` reads it: a step right after its end, else an event.

        None before the first event.
        """
        state = self.source.state
        if state.timing is not None and state.timing.seq == state.seq:
            return f"step:{state.steps_done}"
        return f"event:{state.seq}" if state.seq else None

    async def _save_excerpt(self, recording: Path, position: int | None, folder: Path) -> None:
        try:
            path = await asyncio.to_thread(_write_excerpt, recording, position, folder)
        except (OSError, ReadError) as error:
            self.notify(f"Cannot save the excerpt: {error}", severity="error")
        else:
            command = f"esper-sanctum replay {shlex.quote(str(path))}"
            message = f"Excerpt saved, {format_duration(EXCERPT_MARGIN_S)} before and after. To open it: {command}"
            self.notify(message, timeout=TOAST_SECONDS)


def _write_excerpt(recording: Path, position: int | None, folder: Path) -> Path:
    """Write an excerpt around a position, or around the end if `position` is None.

    Runs in a thread, and therefore reads the recording with a history that the screen does not use.
    """
    name_current_thread("excerpt")
    history = open_history(recording)
    return write_excerpt(history, history.length if position is None else position, folder)
