"""The keys by which a moment goes to somebody else: its address, and a small recording of the minutes around it."""

from __future__ import annotations

import shlex
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING

from esper.config import Config
from esper.sanctum.bindings import PLACES
from esper.sanctum.screens.env_detail import EnvDetail
from esper.sanctum.symbols import span
from esper.telemetry.address import Address
from esper.telemetry.excerpt import AROUND, write_excerpt
from esper.telemetry.reader import ReadError
from esper.telemetry.runs import shortest_name

if TYPE_CHECKING:
    from textual.app import App

    from esper.sanctum.source import Source
    from esper.sanctum.widgets.panel import View

    _Base = App[None]
else:
    _Base = object

ENV = "env"
"""The view of one env; the others are the screens with a number key."""
VIEWS = (*PLACES, ENV)
"""What an address can name."""
TOAST_SECONDS = 10.0


class Sharing(_Base):
    """Actions of the app."""

    source: Source
    view: View

    def open_view(self, name: str) -> None:
        """Show a view by its name in `VIEWS`."""
        self.call_next(self.run_action, "open_env" if name == ENV else f"go({name!r})")

    def action_copy_address(self) -> None:
        """Put the address of what is on the screen into the clipboard, by way of the terminal."""
        if self.source.directory is None:
            self.notify("Nothing is recorded yet.", severity="warning")
            return
        name = shortest_name(self.source.directory, Path(Config().telemetry_dir))
        opened = any(isinstance(screen, EnvDetail) for screen in self.screen_stack)
        address = str(Address(name, self._moment(), self.view.env, ENV if opened else self.current_mode))
        self.copy_to_clipboard(address)
        told = f"Copied. To open it: esper-sanctum replay {shlex.quote(address)}"
        self.notify(told, timeout=TOAST_SECONDS, markup=False)

    def _moment(self) -> str | None:
        """What is shown, as `find_moment` takes it; None at the start."""
        playback = self.source.playback
        if playback is None:
            return f"event:{self.source.present.seq}" if self.source.present.seq else None
        steps = playback.history.steps
        index = bisect_left(steps, playback.position)
        if index < len(steps) and steps[index] == playback.position:
            return f"step:{index + 1}"
        return f"event:{playback.position}" if playback.position else None

    def action_cut(self) -> None:
        """Write the minutes around what is on the screen to a recording of their own, in the working directory."""
        was_present = self.source.playback is None
        refusal = self.source.look_back()
        playback = self.source.playback
        if playback is None:
            self.notify(refusal or "Nothing is recorded yet.", severity="warning", markup=False)
            return
        try:
            path = write_excerpt(playback.history, playback.elapsed, Path.cwd())
        except (OSError, ReadError) as error:
            self.notify(f"The minutes around this cannot be cut out: {error}", severity="error", markup=False)
        else:
            told = f"Written: {path.name}, {span(AROUND)} before and after. It opens with esper-sanctum replay."
            self.notify(told, timeout=TOAST_SECONDS, markup=False)
        if was_present:
            self.source.rejoin()
