"""The keys by which a moment goes to somebody else: its address, and a small recording of the minutes around it."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from esper.config import Config
from esper.sanctum.bindings import ENV_VIEW
from esper.sanctum.screens.env_detail import EnvDetail
from esper.sanctum.symbols import plain, span
from esper.telemetry.address import Address
from esper.telemetry.codec import encode
from esper.telemetry.excerpt import AROUND, write_excerpt
from esper.telemetry.reader import ReadError, open_history
from esper.telemetry.runs import shortest_name

if TYPE_CHECKING:
    from textual.app import App

    from esper.sanctum.source import Source
    from esper.sanctum.view import ViewState

    _Base = App[None]
else:
    _Base = object

TOAST_SECONDS = 10.0
NOT_FROM_A_PAGE = (
    "Nothing is written from a page: its files would land on the server. replay or attach RUN there writes."
)


class Sharing(_Base):
    """Actions of the app."""

    source: Source
    view: ViewState

    def open_view(self, name: str) -> None:
        """Show a view by its name in `bindings.VIEW_NAMES`."""
        self.call_next(self.run_action, "open_env" if name == ENV_VIEW else f"go({name!r})")

    def action_copy_address(self) -> None:
        """Put the address of what is on the screen into the clipboard, by way of the terminal."""
        if self.source.directory is None:
            self.notify("Nothing is recorded yet.", severity="warning")
            return
        name = shortest_name(self.source.directory, Path(Config().telemetry_dir))
        opened = any(isinstance(screen, EnvDetail) for screen in self.screen_stack)
        address = str(Address(name, self._moment(), self.view.selected_env, ENV_VIEW if opened else self.current_mode))
        self.copy_to_clipboard(address)
        told = f"Copied. To open it: esper-sanctum replay {shlex.quote(address)}"
        self.notify(told, timeout=TOAST_SECONDS, markup=False)

    def _moment(self) -> str | None:
        """What is shown, as `find_moment` takes it: a step if one has just ended, else an event; None at the start."""
        state = self.source.state
        if state.timing is not None and state.timing.seq == state.seq:
            return f"step:{state.steps_done}"
        return f"event:{state.seq}" if state.seq else None

    def action_copy_env(self) -> None:
        """Put the env under the cursor, as of its last step, into the clipboard as JSON, by way of the terminal."""
        envs = self.source.state.envs
        if not envs:
            self.notify("There is no env yet.", severity="warning")
            return
        env = envs[self.view.selected_env]
        row = {"env": env.env, "lane": env.lane, "episode_return": env.episode_return, "stepped": env.stepped}
        text = encode(row).decode()
        self.copy_to_clipboard(text)
        self.notify(f"Env {env.env:02d} is copied as JSON: {len(text)} characters.", timeout=TOAST_SECONDS)

    def _on_a_page(self) -> bool:
        """Whether this is a page's visitor, who is then told that nothing is written."""
        if self.is_web:
            self.notify(NOT_FROM_A_PAGE, severity="warning")
        return self.is_web

    def action_save_svg(self) -> None:
        """Write the screen as SVG: beside the recording of a live run, and into the working directory otherwise."""
        if self._on_a_page():
            return
        state, recording = self.source.state, self.source.directory
        name = plain(state.started.run) if state.started else "sanctum"
        folder = recording if self.source.live and recording is not None else Path()
        try:
            path = self.save_screenshot(f"{name}-round{state.round:03d}-step{state.step:03d}.svg", str(folder))
        except OSError as error:
            self.notify(f"The screenshot cannot be written: {error}", severity="error", markup=False)
        else:
            self.notify(f"Written: {Path(path).resolve()}", timeout=TOAST_SECONDS, markup=False)

    def action_cut(self) -> None:
        """Write the minutes around what is on the screen to a recording of their own, as far as they are on disk.

        It lands next to a live run, and in the working directory otherwise.
        """
        if self._on_a_page():
            return
        recording, playback = self.source.directory, self.source.playback
        if recording is None:
            self.notify("Nothing is recorded yet.", severity="warning")
            return
        position = playback.position if playback is not None else None
        folder = recording.parent if self.source.live else Path()
        self.run_worker(self._cut(recording, position, folder), group="cut")

    async def _cut(self, recording: Path, position: int | None, folder: Path) -> None:
        try:
            path = await asyncio.to_thread(_write, recording, position, folder)
        except (OSError, ReadError) as error:
            self.notify(f"The minutes around this cannot be cut out: {error}", severity="error", markup=False)
        else:
            told = (
                f"Written, {span(AROUND)} before and after. To open it: esper-sanctum replay {shlex.quote(str(path))}"
            )
            self.notify(told, timeout=TOAST_SECONDS, markup=False)


def _write(recording: Path, position: int | None, folder: Path) -> Path:
    """Cut around a position, or the end of what is there, in a thread: with a history that the screen does not read."""
    history = open_history(recording)
    return write_excerpt(history, history.length if position is None else position, folder)
