"""The growth of the whole population: a row per env, a lane per slot, a place per step."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from itertools import groupby

from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.population import severities_of
from esper.sanctum.symbols import SEVERITIES, STAGES, percent, shorten
from esper.sanctum.widgets.env_panel import EnvRowsPanel
from esper.sanctum.widgets.panel import Line, Row
from esper.telemetry.events import RunStarted
from esper.telemetry.state import HISTORY, EnvState
from esper.text_plot import places

STAGE_OF = {name[0]: name for name in STAGES}
"""Stages by the letters of a trace."""
_LEAST_NAME, _NAME = 6, 11
_ACCURACY = 6


class GrowthTimeline(EnvRowsPanel):
    """Each step is the letter of its stage, in its colour. What the seed is stands beside its lane, where it fits."""

    METRICS = ("growth timeline", "accuracy")

    HEADING = "growth in this episode ─ a place per step"

    def key(self) -> Hashable:
        """The state, and where the cursor is."""
        return self.state.seq, self.view.selected_env

    def wanted_height(self) -> int:
        """The heading and every env."""
        return 1 + len(self.state.envs)

    def draw(self, size: Size) -> list[Line] | list[Row]:
        """The heading, and the rows in sight."""
        started = self.state.started
        if started is None:
            return []
        width, room = size.width, max(size.height - 1, 1)
        steps = min(started.steps, HISTORY)
        lane = (width - 6 - _ACCURACY) // len(started.slots) - 1
        spare = lane - min(steps, 40)
        name = min(spare, _NAME) if spare >= _LEAST_NAME else 0
        lane = min(lane - name, steps)
        shown = self.visible_rows(range(len(self.state.envs)), room)
        self.note = f"{self._top + 1}–{self._top + len(shown)} of {len(self.state.envs)}" if shown else None
        worst = severities_of(self.state)
        rows = [self._heading(started, lane, name).row(width)]
        for index in shown:
            env = self.state.envs[index]
            here, severity = index == self.view.selected_env, worst.get(index)
            draw = partial(self._row, env, started, lane, name, severity, here=here)
            rows.append(self.cached_row(env, width, draw, lane, name, severity, here))
        self.draw_scroll_arrows(rows, width)
        return rows

    def _heading(self, started: RunStarted, lane: int, name: int) -> Line:
        line = self.line().add("env   ", "head")
        for slot in started.slots:
            line.fit(f"{plain(slot)} 1–{started.steps}", lane + name, "head").add(" ")
        return line.add("acc %", "head")

    def _row(
        self, env: EnvState, started: RunStarted, lane: int, name: int, severity: str | None, *, here: bool
    ) -> Line:
        line = Line(self.view.palette, here=here).add("▸" if here else " ", "key")
        line.add(f"{env.env:02d}".rjust(3 if len(self.state.envs) > 100 else 2), "bright" if here else "dim")
        line.add(SEVERITIES[severity].glyph if severity else " ", severity or "normal").to(6)
        for slot in range(len(started.slots)):
            letters = [step.stages[slot] for step in env.trace]
            end = line.width + lane
            for letter, run in groupby(places(letters, min(started.steps, HISTORY), lane)):
                stage = STAGE_OF[letter] if letter else None
                count = len(list(run))
                line.add(STAGES[stage].glyph * count if stage else " " * count, stage or "normal")
            line.to(end)
            if name:
                reading = env.stepped.slots[slot] if env.stepped else None
                line.add(" ").fit(shorten(plain(reading.blueprint or "") if reading else "", name - 1), name - 1, "dim")
            line.add(" ")
        return line.cell(percent(env.stepped.accuracy if env.stepped else None), "bright" if here else None)
