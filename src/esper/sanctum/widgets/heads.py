"""The policy's heads: how strong a gradient reaches each, and how open its choice still is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size

from esper.sanctum.symbols import compact_cell, head_label, number_cell
from esper.sanctum.widgets.chart import Y_AXIS_COLUMNS, Chart, Label, labels_width, place_labels
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.telemetry.events import RunStarted
from esper.telemetry.state import HeadState
from esper.text_plot import NON_FINITE_CHAR, finite_range, log10_clipped, log_axis, round_axis_length, sparkline


def no_update_message(started: RunStarted) -> str:
    """What is said where there is none."""
    return "no update of the policy yet" if started.policy == "ppo" else "this policy learns nothing"


class HeadList(Panel):
    """A line per head: gradient norm, its course over the updates, entropy as a bar and a number."""

    METRICS = ("heads", "update")

    PANEL_TITLE = "heads ─ |g|, entropy"

    def cache_key(self) -> Hashable:
        """Changes with every update of the policy."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0)

    def preferred_height(self) -> int:
        """One line a head."""
        return max(len(self.state.heads), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """All heads on one line where there is only one; else a table."""
        if not self.state.heads:
            self.panel_subtitle = None
            if self.state.started is None:
                return []
            return [self.line().append(f" {no_update_message(self.state.started)}", "dim")]
        self.panel_subtitle = self._summary()
        if size.height == 1 and len(self.state.heads) > 1:
            return [self._compact(size.width)]
        return [self._row(name, head, size.width) for name, head in self.state.heads.items()]

    def _row(self, name: str, head: HeadState, width: int) -> Line:
        room = max(width - 25, 6)
        graph, gauge = room * 3 // 5, room - room * 3 // 5
        line = self.line().append(" ").append_fitted(head_label(name), 10, "dim")
        line.append_cell(number_cell(head.grad_norm[-1], 2, 3)).append(" ")
        recent = head.grad_norm[-graph:]
        extent = finite_range(recent)
        line.append(sparkline(recent, 0.0, extent[1] if extent else 1.0).ljust(graph), "spark").append(" ")
        entropy = head.entropy[-1]
        line.append_bar(entropy, gauge, "spark").append(" ")
        return line.append_cell(number_cell(entropy, 2, 2))

    def _compact(self, width: int) -> Line:
        cells = [(head_label(name, short=True), compact_cell(head.grad_norm[-1], 2, tight=True))
                 for name, head in self.state.heads.items()]  # fmt: skip
        taken = len(" heads") + sum(len(name) + 1 + len(cell.text) for name, cell in cells)
        line = self.line().append(" heads", "head")
        gap = "  " if taken + 2 * len(cells) <= width else " "
        for name, cell in cells:
            line.append(gap).append(name, "dim").append(" ").append_cell(cell)
        return line

    def _summary(self) -> str | None:
        """KL, clipped share and explained variance of the last update, for the border."""
        update = self.state.update
        if update is None:
            return None
        values = (update.kl, update.clip_fraction, update.explained_variance)
        return "KL {}  clip {}  EV {}".format(*(compact_cell(value, 2).text for value in values))


_EIGHTHS = " ▁▂▃▄▅▆▇█"


class HeadPanel(Panel):
    """A panel about the course of the heads' gradient norms."""

    def cache_key(self) -> Hashable:
        """Changes with every update of the policy."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0)

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Nothing before the run has started; a word before the first update."""
        if self.state.started is None:
            return []
        if not self.state.heads:
            return [self.line().append(f" {no_update_message(self.state.started)}", "dim")]
        return self.draw_heads(size, {name: head.course.values for name, head in self.state.heads.items()})

    def draw_heads(self, size: Size, courses: dict[str, list[float | None]]) -> list[Line] | list[Row]:
        """The lines for the courses of the heads, all equally long."""
        raise NotImplementedError

    @property
    def extent(self) -> int:
        """Length of the axis of rounds, in points."""
        assert self.state.started is not None
        course = next(iter(self.state.heads.values())).course
        return round_axis_length(len(course.values), -(-self.state.started.rounds // course.every))

    @property
    def every(self) -> int:
        """Rounds to a point."""
        return next(iter(self.state.heads.values())).course.every


class HeadNormChart(HeadPanel):
    """A curve a head, over decades."""

    METRICS = ("heads",)

    PANEL_TITLE = "gradient norm by head ─ by round"

    def draw_heads(self, size: Size, courses: dict[str, list[float | None]]) -> list[Line] | list[Row]:
        """The chart, each curve named at its end."""
        axis = log_axis([value for course in courses.values() for value in course])
        curves = [
            (log10_clipped(course, 10.0**axis.low), f"series{number % 8}")
            for number, course in enumerate(courses.values())
        ]
        chart = Chart(
            values=curves[0][0], role=curves[0][1], extra_curves=curves[1:], x_length=self.extent, stride=self.every,
            low=axis.low, high=axis.high, ticks=axis.ticks,
        )  # fmt: skip
        labels = []
        for name, (values, role) in zip(courses, curves, strict=True):
            last = next((value for value in reversed(values) if value is not None and math.isfinite(value)), None)
            if last is not None:
                labels.append(Label(chart.row(last, size.height), head_label(name, short=True), role))
        room = labels_width(labels, size.height - 1)
        lines = chart.lines(self.view.palette, size.width - room, size.height)
        place_labels(lines[:-1], labels, size.width - room)
        return lines


class HeadFractionChart(HeadPanel):
    """The heads' shares of the gradient's norm, one upon the other."""

    METRICS = ("heads",)

    PANEL_TITLE = "who steers the update ─ share of |g|"

    def draw_heads(self, size: Size, courses: dict[str, list[float | None]]) -> list[Line] | list[Row]:
        """A band a head, and beside it its name and last share."""
        height = size.height - 1
        points = [fractions(point) for point in zip(*courses.values(), strict=True)]
        last = next((point for point in reversed(points) if point), None)
        labels: list[Label] = []
        base = 0.0
        for index, (name, share) in enumerate(zip(courses, last or (), strict=False)):
            row = height - 1 - int(min(base + share / 2, 0.999) * height)
            labels.append(Label(row, f"{head_label(name, short=True):<5} {share:>4.0%}", f"series{index % 8}"))
            base += share
        room = labels_width(labels, height)
        width = size.width - Y_AXIS_COLUMNS - 2 - room
        if width < 8 or height < 2:
            return []
        extent = self.extent
        columns = [_at(points, round(x / max(width - 1, 1) * (extent - 1))) for x in range(width)]
        axis = Chart(
            values=[], x_length=extent, stride=self.every, low=0.0, high=1.0, exact_axis=True,
            ticks=[(0.0, "0"), (0.5, "50"), (1.0, "100%")],
        ).lines(self.view.palette, size.width - room, size.height)  # fmt: skip
        margins = [self.line() for _ in range(height)]
        place_labels(margins, labels[::-1], 0)  # of two on one row, that of the upper band above
        rows: list[Row] = []
        for y in range(height):
            bands = self._row(columns, height, height - 1 - y)
            rows.append([*axis[y].row(Y_AXIS_COLUMNS + 2), *bands, *margins[y].row(room)])
        return [*rows, axis[-1].row(size.width)]

    def _row(self, columns: Sequence[Sequence[float] | None], height: int, row: int) -> Row:
        """One row of the bands, counted from the foot."""
        palette = self.view.palette
        segments: list[Segment] = []
        for column in columns:
            if column is None:
                segments.append(Segment(" ", palette["normal"]))
            elif not column:
                segments.append(Segment(NON_FINITE_CHAR if row == 0 else " ", palette["bad" if row == 0 else "normal"]))
            else:
                segments.append(self._cell(column, row * 8, height * 8))
        return list(Segment.simplify(segments))

    def _cell(self, column: Sequence[float], first: int, total: int) -> Segment:
        """Eight eighths of a column: the band that fills most of them, or two with the border between."""
        bounds: list[float] = []
        top = 0.0
        for share in column:
            top += share * total
            bounds.append(top)
        owners = [next((i for i, bound in enumerate(bounds) if eighth + 0.5 < bound), len(bounds) - 1)
                  for eighth in range(first, first + 8)]  # fmt: skip
        lower, upper = owners[0], owners[-1]
        colour = [self.view.palette[f"area{owner % 8}"].color for owner in (lower, upper)]
        filled = owners.count(lower)
        return Segment(_EIGHTHS[filled], Style(color=colour[0], bgcolor=colour[1] if filled < 8 else None))


def fractions(point: Sequence[float | None]) -> list[float] | None:
    """Each head's part of the sum; empty where that is not finite, None where there is nothing to share."""
    total = sum(value or 0.0 for value in point)
    if not math.isfinite(total):
        return []
    return [(value or 0.0) / total for value in point] if total > 0 else None


def _at(points: Sequence[list[float] | None], index: int) -> list[float] | None:
    return points[index] if index < len(points) else None
