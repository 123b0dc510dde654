"""The env table: a row per env, steady under the cursor, drawn again only where an env changed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from esper.sanctum.bindings import Category, bindings
from esper.sanctum.widgets import env_row
from esper.sanctum.widgets.panel import Line, Panel

_FRAME = 2
"""Lines that are no env: the heading and the medians."""


class EnvTable(Panel, can_focus=True):
    """A heading, the envs, their medians. The cursor is `view.env`."""

    HEADING = "envs"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.TABLE)]

    @dataclass
    class Opened(Message):
        """Enter, or a double click, on an env."""

        env: int

    def on_mount(self) -> None:
        """Begin at the top."""
        self._top = 0
        self._rows: dict[int, tuple[Hashable, Strip]] = {}

    def key(self) -> Hashable:
        """The state, and where the cursor is."""
        return self.state.seq, self.view.env

    def wanted_height(self) -> int:
        """Every env, the frame and a rule."""
        return len(self.state.envs) + _FRAME + 1

    def draw(self, size: Size) -> list[Line] | list[Strip]:
        """Heading, the rows in sight, a rule where there is room, medians."""
        width, height = size
        started, envs = self.state.started, self.state.envs
        if started is None:
            return self._starting(width, height)
        palette = self.view.palette
        layout = env_row.fit(width - 1, started)
        room = max(height - _FRAME, 1)
        self._scroll(room)
        shown = envs[self._top : self._top + room]
        self.border_subtitle = f"{self._top + 1}–{self._top + len(shown)} of {len(envs)}"
        worst = {a.found.env: a.found.severity for a in reversed(self.state.active_anomalies())}
        strips = [env_row.heading(palette, layout, started.slots).strip(width)]
        for env in shown:
            severity, here = worst.get(env.env), env.env == self.view.env
            key = (env.revision, severity, here, layout, width, palette.name, self.view.generation)
            known = self._rows.get(env.env)
            if known is None or known[0] != key:
                line = env_row.row(palette, layout, started, env, severity=severity, here=here)
                known = key, line.strip(width)
                self._rows[env.env] = known
            strips.append(known[1])
        if height > len(envs) + _FRAME:
            strips.append(self.line().add("─" * (width - 1), "faint").strip(width))
        elif len(shown) < len(envs):
            self._mark_more(strips, width)
        strips.append(env_row.middle(palette, layout, started, envs).strip(width))
        return strips

    def _starting(self, width: int, height: int) -> list[Line]:
        text = "starting: loading torch…" if self.view.source.live else "the recording has no run yet"
        return [self.line()] * ((height - 1) // 2) + [self.line().add(text.center(width), "normal")]

    def _scroll(self, room: int) -> None:
        """Keep the cursor in sight."""
        count = len(self.state.envs)
        self.view.env = min(max(self.view.env, 0), count - 1)
        self._top = min(max(self._top, self.view.env - room + 1), self.view.env, max(count - room, 0))

    def _mark_more(self, strips: list[Strip], width: int) -> None:
        """Arrows at the right edge of the first and last row where there are envs out of sight."""
        count = len(strips) - 1
        if self._top > 0:
            strips[1] = Strip.join([strips[1].crop(0, width - 1), self.line().add("↑", "dim").strip(1)])
        if self._top + count < len(self.state.envs):
            strips[-1] = Strip.join([strips[-1].crop(0, width - 1), self.line().add("↓", "dim").strip(1)])

    def select(self, env: int) -> None:
        """Put the cursor on an env, or on the nearest there is."""
        self.view.env = min(max(env, 0), max(len(self.state.envs) - 1, 0))
        self.update()

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows."""
        self.select(self.view.env + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages."""
        self.select(self.view.env + pages * max(self.size.height - _FRAME - 1, 1))

    def action_first(self) -> None:
        """Go to the first env."""
        self.select(0)

    def action_last(self) -> None:
        """Go to the last env."""
        self.select(len(self.state.envs) - 1)

    def action_open(self) -> None:
        """Open the env under the cursor."""
        if self.state.envs:
            self.post_message(self.Opened(self.view.env))

    def on_click(self, event: Click) -> None:
        """A click selects a row, a double click opens it."""
        offset = event.get_content_offset(self)
        if offset is None or not 1 <= offset.y < self.size.height - 1:
            return
        if self._top + offset.y - 1 < len(self.state.envs):
            self.select(self._top + offset.y - 1)
            if event.chain == 2:
                self.action_open()

    def on_mouse_scroll_down(self) -> None:
        """The wheel moves the cursor."""
        self.action_move(3)

    def on_mouse_scroll_up(self) -> None:
        """The wheel moves the cursor."""
        self.action_move(-3)
