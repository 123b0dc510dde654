"""The weather map: a cell per env, so that the one that is unlike its siblings is seen among hundreds."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import ClassVar, NamedTuple

from textual.binding import BindingType
from textual.events import Click
from textual.geometry import Size

from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.env_filter import NUMERIC_FIELDS, worst_severity_by_env
from esper.sanctum.symbols import SEVERITIES, STAGES, Cell, compact_cell
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.sentences import pluralise
from esper.telemetry.state import EnvState

OUTLIER_SIGMAS = 3.5
"""Robust standard deviations from the median from which on an env is an outlier."""
OUTLIER = "!"
"""Behind an env that lies far on the worse side of its siblings."""
_MOST_SLOTS = 6
"""With more slots than these a cell has the glyph of the furthest stage alone."""
_FURTHEST = (
    "dormant",
    "embargoed",
    "culled",
    "germinated",
    "training",
    "blending",
    "probationary",
    "fossilized",
)
_ROBUST = 1.4826
"""Median deviations to a standard deviation, of a normal distribution."""


class Metric(NamedTuple):
    """What the colours rank."""

    name: str
    value: Callable[[EnvState], float | None]
    low_is_bad: bool
    show: Callable[[float | None], Cell] = compact_cell


def _per_cent(share: float | None) -> Cell:
    return compact_cell(None if share is None else share * 100)


METRICS = (
    Metric("accuracy %", NUMERIC_FIELDS["acc"], True, _per_cent),
    Metric("reward", NUMERIC_FIELDS["reward"], True),
    Metric("return", NUMERIC_FIELDS["return"], True),
    Metric("loss", NUMERIC_FIELDS["loss"], False),
    Metric("gradient norm", NUMERIC_FIELDS["grad"], False),
    Metric("loss scale", NUMERIC_FIELDS["scale"], True),
    Metric("parameters", NUMERIC_FIELDS["params"], False),
)


class EnvStanding(NamedTuple):
    """How an env stands among its siblings."""

    rank: int | None
    """From 0, the worst; None where it was not measured."""
    of: int
    """Envs that were."""
    outlier: bool
    """It lies far off, on the worse side, or is not a number."""

    @property
    def role(self) -> str:
        """Style of its cell."""
        if self.outlier:
            return "outlier"
        if self.rank is None:
            return "absent"
        return f"rank{min(5 * self.rank // max(self.of, 1), 4)}"


def compute_standings(envs: Sequence[EnvState], metric: Metric) -> list[EnvStanding]:
    """Every env ranked by a metric, from the worst, and whether it is an outlier among the rest."""
    values = [metric.value(env) for env in envs]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    middle = median(finite) if finite else 0.0
    spread = _ROBUST * median(abs(value - middle) for value in finite) if finite else 0.0
    order = sorted(finite, reverse=not metric.low_is_bad)
    places = {value: rank for rank, value in reversed(list(enumerate(order)))}
    found = []
    for value in values:
        if value is None:
            found.append(EnvStanding(None, len(finite), outlier=False))
        elif not math.isfinite(value):
            found.append(EnvStanding(0, len(finite), outlier=True))
        else:
            off = middle - value if metric.low_is_bad else value - middle
            # Of siblings that are all alike but one, the one is an outlier, however near: there is no spread to ask.
            found.append(
                EnvStanding(
                    places[value], len(finite), outlier=off > OUTLIER_SIGMAS * spread and off > 1e-9 * abs(middle)
                )
            )
    return found


class EnvMap(Panel, can_focus=True):
    """Cells in rows: number, a glyph for each slot's stage, a mark; the value below, where there is room.

    The colour is the rank in the chosen metric.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.MAP)]
    METRICS = ("accuracy", "stage")

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._metric = 0
        self._columns = 1
        self._cell = 1
        self._height = 1
        self._top = 0

    def cache_key(self) -> Hashable:
        """The state, the cursor and the metric."""
        return self.state.seq, self.view.selected_env, self._metric

    def preferred_height(self) -> int:
        """As the table, in whose place it stands."""
        return len(self.state.envs) + 3

    def draw_lines(self, size: Size) -> list[Line]:
        """The cells in sight, and a line about the env under the cursor."""
        started, envs = self.state.started, self.state.envs
        if started is None:
            return []
        metric = METRICS[self._metric]
        found = compute_standings(envs, metric)
        digits = max(len(str(len(envs) - 1)), 2)
        slots = len(started.slots) if len(started.slots) <= _MOST_SLOTS else 1
        self._cell = digits + slots + 4
        self._columns = max(size.width // self._cell, 1)
        rows = -(-len(envs) // self._columns)
        room = max(size.height - 2, 1)
        self._height = 3 if 3 * rows <= room else 1
        room //= self._height
        here = self.view.selected_env // self._columns
        self._top = min(max(self._top, here - room + 1), here, max(rows - room, 0))
        self.panel_title = f"envs ─ coloured by rank in {metric.name}, {'low' if metric.low_is_bad else 'high'} is bad"
        self.panel_subtitle = f"{pluralise(sum(weather.outlier for weather in found), 'outlier')} of {len(envs)}"
        worst = worst_severity_by_env(self.state)
        lines: list[Line] = []
        for row in range(self._top, min(self._top + room, rows)):
            line = self.line()
            for env in envs[row * self._columns : (row + 1) * self._columns]:
                line.extend(self._draw_cell(env, found[env.env], digits, slots, worst.get(env.env)))
            lines.append(line)
            if self._height > 1:
                lines += [self._values(row, metric, digits), self.line()]
        lines += [self.line()] * (size.height - 1 - len(lines))
        return [*lines, self._legend(found, metric)]

    def _draw_cell(self, env: EnvState, found: EnvStanding, digits: int, slots: int, severity: str | None) -> Line:
        at = env.env == self.view.selected_env
        line = Line(self.view.palette, here=at).append("▸" if at else " ", "key")
        line.append(f"{env.env:0{digits}d}", found.role).append(" ")
        stages = [slot.stage for slot in env.stepped.slots] if env.stepped else []
        if slots < len(stages):
            stages = [max(stages, key=_FURTHEST.index)]
        line.append("".join(STAGES[stage].glyph for stage in stages).ljust(slots), found.role)
        if found.outlier:
            line.append(OUTLIER, "outlier")
        else:
            line.append(SEVERITIES[severity].glyph if severity else " ", severity or "normal")
        return line.append(" ")

    def _values(self, row: int, metric: Metric, digits: int) -> Line:
        """The numbers below a row of cells."""
        line = self.line()
        for place, env in enumerate(self.state.envs[row * self._columns : (row + 1) * self._columns]):
            line.pad_to(place * self._cell + digits + 2).append_cell(metric.show(metric.value(env)), "dim")
        return line

    def _legend(self, found: Sequence[EnvStanding], metric: Metric) -> Line:
        """About the env under the cursor, and what the colours say."""
        env = self.state.envs[self.view.selected_env]
        weather = found[env.env]
        value = metric.show(metric.value(env))
        line = (
            self.line()
            .append(f" env {env.env:02d} ", "dim")
            .append(f"{metric.name} ", "dim")
            .append_cell(value, "bright")
        )
        if weather.rank is not None:
            line.append(f"  {weather.rank + 1} of {weather.of} from the worst", "dim")
        if weather.outlier:
            line.append(f"  {OUTLIER} far off its siblings", "warning")
        line.pad_to(max(self.size.width - 24, line.width + 2)).append("worst ", "dim")
        for rank in range(5):
            line.append("██", f"rank{rank}")
        return line.append(" best", "dim")

    def action_steer(self, columns: int, rows: int) -> None:
        """Move the cursor over the map."""
        count = len(self.state.envs)
        at = self.view.selected_env + columns + rows * self._columns
        if 0 <= at < count:
            self.view.selected_env = at
        self.update()

    def action_metric(self) -> None:
        """Rank by the next metric."""
        self._metric = (self._metric + 1) % len(METRICS)
        self.update()

    def on_click(self, event: Click) -> None:
        """A click selects an env, a double click opens it."""
        offset = event.get_content_offset(self)
        if offset is None or not offset.y < self.size.height - 1 or offset.x >= self._columns * self._cell:
            return
        env = (self._top + offset.y // self._height) * self._columns + offset.x // self._cell
        if env < len(self.state.envs):
            self.view.selected_env = env
            self.update()
            if event.chain == 2:
                self.app.simulate_key("enter")
