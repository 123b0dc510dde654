"""Panels about the policy heads: gradient norm and entropy now, and gradient norms over the rounds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size

from esper.sanctum.symbols import compact_cell, head_label, number_cell
from esper.sanctum.widgets.chart import (
    MIN_PLOT_COLUMNS,
    MIN_PLOT_ROWS,
    Y_AXIS_COLUMNS,
    Chart,
    Label,
    labels_width,
    place_labels,
)
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.telemetry.events import RunStarted
from esper.telemetry.state import HeadState
from esper.text_plot import (
    BLOCK_CHARS,
    NON_FINITE_CHAR,
    finite_range,
    log10_clipped,
    log_axis,
    round_axis_length,
    sparkline,
)

_LONG_LABEL_MIN_COLS = 50
"""Minimum width of a chart for head names that are spelled out."""
_HEAD_COLS = 28
"""Columns of name, gradient norm, entropy and gaps of a head."""
_BAR_MIN_COLS = 6
"""Minimum number of columns for a sparkline and a bar beside them; with fewer, only a sparkline."""
_EIGHTHS = " " + BLOCK_CHARS
"""Characters whose lower part is filled, by the number of filled eighths."""


def no_update_message(started: RunStarted) -> str:
    """Return the text that a panel shows before the first policy update."""
    if started.policy == "ppo":
        return "no policy update yet"
    rules = "random legal actions" if started.policy == "random" else "fixed rules"
    return f"{started.policy}: {rules}, nothing to train"


class HeadPanel(Panel):
    """Base class of a panel about the heads. Subclasses implement `draw_heads`."""

    def cache_key(self) -> Hashable:
        """Return the number of the last policy update's event, and whether the run has started."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0)

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heads; before the first update a message, before the start of the run nothing."""
        self.panel_subtitle = None
        if self.state.started is None or not self.state.heads:
            return self.message(no_update_message(self.state.started)) if self.state.started else []
        return self.draw_heads(size)

    def draw_heads(self, size: Size) -> list[Line] | list[Row]:
        """Draw the panel. There is at least one head."""
        raise NotImplementedError

    @property
    def series(self) -> dict[str, list[float | None]]:
        """Downsampled gradient norms of each head, all of the same length; None for an update without any."""
        return {name: head.course.values for name, head in self.state.heads.items()}

    @property
    def x_length(self) -> int:
        """Length of the axis of rounds, points."""
        assert self.state.started is not None
        series = next(iter(self.state.heads.values())).course
        return round_axis_length(len(series.values), -(-self.state.started.rounds // series.every))

    @property
    def stride(self) -> int:
        """Number of rounds per point."""
        return next(iter(self.state.heads.values())).course.every


class HeadList(HeadPanel):
    """One line per head: gradient norm, its sparkline over the last updates, entropy as a bar and as a number."""

    METRICS = ("heads", "update")

    PANEL_TITLE = "gradient norm, entropy"

    def preferred_height(self) -> int:
        """Return one line per head."""
        return max(len(self.state.heads), 1)

    def draw_heads(self, size: Size) -> list[Line]:
        """Draw one line per head; in a panel of one line, draw all heads on it."""
        self.panel_subtitle = self._update_summary(size.width)
        if size.height == 1 and len(self.state.heads) > 1:
            return [self._draw_compact(size.width)]
        return [self._draw_head(name, head, size.width) for name, head in self.state.heads.items()]

    def _draw_head(self, name: str, head: HeadState, width: int) -> Line:
        room = width - _HEAD_COLS
        has_bar = room >= _BAR_MIN_COLS
        sparkline_width = room * 3 // 5 if has_bar else max(room + 1, 0)
        line = self.line(" ").append_fitted(head_label(name), 13, "dim")
        line.append_cell(number_cell(head.grad_norm[-1], 2, 3)).append(" ")
        recent = head.grad_norm[-sparkline_width:]
        limits = finite_range(recent)
        line.append(sparkline(recent, 0.0, limits[1] if limits else 1.0).ljust(sparkline_width), "spark").append(" ")
        entropy = head.entropy[-1]
        if has_bar:
            line.append_bar(entropy, room - sparkline_width, "spark").append(" ")
        return line.append_cell(number_cell(entropy, 2, 2))

    def _draw_compact(self, width: int) -> Line:
        """Draw all gradient norms on one line, with the longest names and gaps that fit."""
        line = self.line()
        for short, gap in ((False, "  "), (False, " "), (True, "  "), (True, " ")):
            line = self.line(" gradient norm", "head")
            for name, head in self.state.heads.items():
                line.append(gap).append(head_label(name, short=short), "dim").append(" ")
                line.append_cell(compact_cell(head.grad_norm[-1], 2, tight=True))
            if line.width <= width:
                break
        return line

    def _update_summary(self, width: int) -> str | None:
        """Return explained variance, KL divergence and clipped fraction of the last update, as many as fit.

        None before the first update.
        """
        update = self.state.update
        if update is None:
            return None
        values = (
            ("explained variance", update.explained_variance),
            ("KL", update.kl),
            ("clipped fraction", update.clip_fraction),
        )
        texts = [f"{label} {compact_cell(value, 2).text}" for label, value in values]
        while len(texts) > 1 and len("  ".join(texts)) > width - 6:
            texts.pop()
        return "  ".join(texts)


class HeadNormChart(HeadPanel):
    """Chart with one curve per head on a logarithmic axis."""

    METRICS = ("heads",)

    PANEL_TITLE = "gradient norm by head ─ by round"

    def draw_heads(self, size: Size) -> list[Line] | list[Row]:
        """Draw the chart, with a label at the end of each curve."""
        series = self.series
        axis = log_axis([value for norms in series.values() for value in norms])
        curves = [
            (log10_clipped(norms, 10.0**axis.low), f"series{index % 8}") for index, norms in enumerate(series.values())
        ]
        chart = Chart(
            values=curves[0][0], role=curves[0][1], extra_curves=curves[1:], x_length=self.x_length, stride=self.stride,
            low=axis.low, high=axis.high, ticks=axis.ticks,
        )  # fmt: skip
        labels: list[Label] = []
        for name, (values, role) in zip(series, curves, strict=True):
            last = next((value for value in reversed(values) if value is not None and math.isfinite(value)), None)
            if last is not None:
                labels.append(
                    Label(chart.row(last, size.height), head_label(name, short=size.width < _LONG_LABEL_MIN_COLS), role)
                )
        room = labels_width(labels, size.height - 1)
        lines = chart.lines(self.view.palette, size.width - room, size.height)
        place_labels(lines[:-1], labels, size.width - room)
        return lines


class HeadFractionChart(HeadPanel):
    """Stacked area chart of the fractions of the heads in the sum of their gradient norms."""

    METRICS = ("heads",)

    PANEL_TITLE = "gradient norm by head ─ % of total"

    def draw_heads(self, size: Size) -> list[Line] | list[Row]:
        """Draw one area per head, with the head's name and last fraction beside it."""
        series = self.series
        height = size.height - 1
        points = [fractions(norms) for norms in zip(*series.values(), strict=True)]
        last = next((point for point in reversed(points) if point), None)
        labels: list[Label] = []
        bottom = 0.0
        for index, (name, fraction) in enumerate(zip(series, last or (), strict=False)):
            row = height - 1 - int(min(bottom + fraction / 2, 0.999) * height)
            label = (
                f"{head_label(name, short=True):<5}" if size.width < _LONG_LABEL_MIN_COLS else f"{head_label(name):<12}"
            )
            labels.append(Label(row, f"{label} {fraction:>4.0%}", f"series{index % 8}"))
            bottom += fraction
        room = labels_width(labels, height)
        width = size.width - Y_AXIS_COLUMNS - 2 - room
        if width < MIN_PLOT_COLUMNS or height < MIN_PLOT_ROWS:
            return []
        x_length = self.x_length
        indices = [round(x / max(width - 1, 1) * (x_length - 1)) for x in range(width)]
        columns = [points[index] if index < len(points) else None for index in indices]
        axis = Chart(
            values=[], x_length=x_length, stride=self.stride, low=0.0, high=1.0, exact_axis=True,
            ticks=[(0.0, "0"), (0.5, "50"), (1.0, "100%")],
        ).lines(self.view.palette, size.width - room, size.height)  # fmt: skip
        margins = [self.line() for _ in range(height)]
        place_labels(margins, labels[::-1], 0)  # reversed: labels on one row then have the order of the areas
        rows: list[Row] = []
        for y in range(height):
            areas = self._draw_areas(columns, height, height - 1 - y)
            rows.append([*axis[y].row(Y_AXIS_COLUMNS + 2), *areas, *margins[y].row(room)])
        return [*rows, axis[-1].row(size.width)]

    def _draw_areas(self, columns: Sequence[Sequence[float] | None], height: int, row: int) -> Row:
        """Draw one row of the areas.

        Args:
            columns: The fractions at each column; empty if not finite, None for no point.
            height: Number of rows of the chart.
            row: Index of the row, counted from the bottom.
        """
        palette = self.view.palette
        segments: list[Segment] = []
        for column in columns:
            if column is None:
                segments.append(Segment(" ", palette["normal"]))
            elif not column:
                segments.append(Segment(NON_FINITE_CHAR if row == 0 else " ", palette["bad" if row == 0 else "normal"]))
            else:
                segments.append(self._draw_cell(column, row * 8, height * 8))
        return list(Segment.simplify(segments))

    def _draw_cell(self, column: Sequence[float], first: int, total: int) -> Segment:
        """Draw a cell, divided into eighths of its height, in the colours of its lowest and its highest area.

        Args:
            column: Fractions of the heads.
            first: Index of the lowest eighth of the cell, counted from the bottom of the chart.
            total: Number of eighths of the whole chart.
        """
        tops: list[float] = []
        top = 0.0
        for fraction in column:
            top += fraction * total
            tops.append(top)
        heads = [next((i for i, bound in enumerate(tops) if eighth + 0.5 < bound), len(tops) - 1)
                 for eighth in range(first, first + 8)]  # fmt: skip
        lower, upper = heads[0], heads[-1]
        lower_colour, upper_colour = (self.view.palette[f"area{head % 8}"].color for head in (lower, upper))
        filled = heads.count(lower)
        return Segment(_EIGHTHS[filled], Style(color=lower_colour, bgcolor=upper_colour if filled < 8 else None))


def fractions(norms: Sequence[float | None]) -> list[float] | None:
    """Return each value divided by the sum of all; None counts as 0.

    Returns:
        The fractions; an empty list if the sum is not finite, None if it is 0.
    """
    total = sum(value or 0.0 for value in norms)
    if not math.isfinite(total):
        return []
    return [(value or 0.0) / total for value in norms] if total > 0 else None
