"""What grows: the whole population at once, and how each blueprint fares."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from itertools import groupby
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.geometry import Size

from esper.formatting import strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.env_filter import worst_severity_by_env
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import SEVERITIES, STAGES, Cell, ellipsise, number_cell, percent_cell
from esper.sanctum.widgets.env_panel import EnvRowsPanel
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.telemetry.events import RunStarted
from esper.telemetry.series import BlueprintStats
from esper.telemetry.state import SERIES_POINTS, EnvState
from esper.text_plot import sample_to_width


class GrowthScreen(RunScreen):
    """The time lines, and the league of blueprints beside or below them."""

    AUTO_FOCUS = "GrowthChart"
    CATEGORIES = (KeyCategory.ROWS, KeyCategory.GROWTH)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.GROWTH)]

    def body(self) -> ComposeResult:
        """Two panels."""
        yield GrowthChart(self.view)
        yield BlueprintTable(self.view)

    def action_order(self) -> None:
        """Order the blueprints by the next column."""
        self.query_one(BlueprintTable).show_next()


STAGE_BY_LETTER = {name[0]: name for name in STAGES}
"""Stages by the letters of a trace."""
_LEAST_NAME, _NAME = 6, 11
_ACCURACY = 6


class GrowthChart(EnvRowsPanel):
    """Each step is the letter of its stage, in its colour. What the seed is stands beside its lane, where it fits."""

    METRICS = ("growth timeline", "accuracy")

    PANEL_TITLE = "growth in this episode ─ a place per step"

    def cache_key(self) -> Hashable:
        """The state, and where the cursor is."""
        return self.state.seq, self.view.selected_env

    def preferred_height(self) -> int:
        """The heading and every env."""
        return 1 + len(self.state.envs)

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """The heading, and the rows in sight."""
        started = self.state.started
        if started is None:
            return []
        width, room = size.width, max(size.height - 1, 1)
        steps = min(started.steps, SERIES_POINTS)
        lane = (width - 6 - _ACCURACY) // len(started.slots) - 1
        spare = lane - min(steps, 40)
        name = min(spare, _NAME) if spare >= _LEAST_NAME else 0
        lane = min(lane - name, steps)
        shown = self.visible_rows(range(len(self.state.envs)), room)
        self.panel_subtitle = f"{self._top + 1}–{self._top + len(shown)} of {len(self.state.envs)}" if shown else None
        worst = worst_severity_by_env(self.state)
        rows = [self._heading(started, lane, name).row(width)]
        for index in shown:
            env = self.state.envs[index]
            here, severity = index == self.view.selected_env, worst.get(index)
            draw = partial(self._row, env, started, lane, name, severity, here=here)
            rows.append(self.cached_row(env, width, draw, lane, name, severity, here))
        self.draw_scroll_arrows(rows, width)
        return rows

    def _heading(self, started: RunStarted, lane: int, name: int) -> Line:
        line = self.line().append("env   ", "head")
        for slot in started.slots:
            line.append_fitted(f"{strip_control(slot)} 1–{started.steps}", lane + name, "head").append(" ")
        return line.append("acc %", "head")

    def _row(
        self, env: EnvState, started: RunStarted, lane: int, name: int, severity: str | None, *, here: bool
    ) -> Line:
        line = Line(self.view.palette, selected=here).append("▸" if here else " ", "key")
        line.append(f"{env.env:02d}".rjust(3 if len(self.state.envs) > 100 else 2), "bright" if here else "dim")
        line.append(SEVERITIES[severity].glyph if severity else " ", severity or "normal").pad_to(6)
        for slot in range(len(started.slots)):
            letters = [step.stages[slot] for step in env.trace]
            end = line.width + lane
            for letter, run in groupby(sample_to_width(letters, min(started.steps, SERIES_POINTS), lane)):
                stage = STAGE_BY_LETTER[letter] if letter else None
                count = len(list(run))
                line.append(STAGES[stage].glyph * count if stage else " " * count, stage or "normal")
            line.pad_to(end)
            if name:
                reading = env.stepped.slots[slot] if env.stepped else None
                line.append(" ").append_fitted(
                    ellipsise(strip_control(reading.blueprint or "") if reading else "", name - 1), name - 1, "dim"
                )
            line.append(" ")
        return line.append_cell(percent_cell(env.stepped.accuracy if env.stepped else None), "bright" if here else None)


_COLUMNS: dict[str, tuple[int, Callable[[BlueprintStats], float | None]]] = {
    "worth %": (9, lambda record: None if record.contribution is None else record.contribution * 100),
    "planted": (9, lambda record: record.planted),
    "fossil": (8, lambda record: record.fossilized),
    "culled": (8, lambda record: record.culled),
    "params": (9, lambda record: record.size),
}
"""By heading: its width, and what it shows."""


class BlueprintTable(Panel):
    """A line per blueprint, the greatest first in the column that `shift` chooses."""

    METRICS = ("league", "contribution")

    def on_mount(self) -> None:
        """By what the seeds were worth."""
        self._by = 0

    def cache_key(self) -> Hashable:
        """Changes with every step, at most."""
        return self.state.seq, self._by

    def preferred_height(self) -> int:
        """The heading and the blueprints."""
        return max(len(self.state.blueprints), 1) + 1

    def show_next(self) -> None:
        """Order by the next column."""
        self._by = (self._by + 1) % len(_COLUMNS)
        self.update()

    def draw_lines(self, size: Size) -> list[Line]:
        """Heading and blueprints, as many as fit."""
        if self.state.started is None:
            return []
        by = list(_COLUMNS)[self._by]
        self.panel_title = f"blueprints ─ all envs and rounds, by {by.removesuffix(' %')} ↓"
        records = self.state.blueprints
        self.panel_subtitle = f"{size.height - 1} of {len(records)}" if size.height <= len(records) else None
        if not records:
            return [self.line().append(" nothing was planted yet", "dim")]
        head = self.line().append(" blueprint   ", "head")
        for name, (width, _) in _COLUMNS.items():
            head.append(name.rjust(width), "key" if name == by else "head")
        value = _COLUMNS[by][1]

        def place(name: str) -> tuple[bool, float, str]:
            known = value(records[name])
            return known is None, -(known or 0.0), name

        return [head, *(self._row(name, records[name]) for name in sorted(records, key=place))]

    def _row(self, name: str, record: BlueprintStats) -> Line:
        line = self.line().append(" ").append_fitted(strip_control(name), 12)
        for heading, (width, value) in _COLUMNS.items():
            shown = value(record)
            if heading == "worth %":
                line.append(" " * (width - 6)).append_cell(number_cell(shown, 4, 1, signed=True, fixed=True), "bright")
            else:
                line.append_cell(_count(shown, width))
        return line


def _count(value: float | None, width: int) -> Cell:
    if value is None:
        return Cell("–".rjust(width), "absent")
    return Cell(f"{value:,.0f}".rjust(width), "normal" if value else "dim")
