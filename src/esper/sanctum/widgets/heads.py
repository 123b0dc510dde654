"""Panels about the policy heads: gradient norm and entropy now, and gradient norms over the rounds."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size

from esper.sanctum.symbols import compact_cell, head_label, number_cell
from esper.sanctum.widgets.chart import (
    Y_AXIS_COLUMNS,
    Chart,
    Curve,
    Label,
    Look,
    Quantity,
    XAxis,
    labels_width,
    place_labels,
)
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.telemetry.events import RunStarted
from esper.telemetry.state import HeadState, RunState
from esper.text_plot import (
    BLOCK_CHARS,
    NON_FINITE_CHAR,
    Axis,
    finite_range,
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


def _norms(state: RunState) -> dict[str, list[float | None]]:
    """Return the downsampled gradient norms of each head, all of the same length; None for an update without any."""
    return {name: head.course.values for name, head in state.heads.items()}


def _x_axis(state: RunState) -> tuple[XAxis, list[int]]:
    """Return the axis of rounds, and the round of each gradient norm."""
    assert state.started is not None
    rounds = next(iter(state.heads.values())).course.rounds
    return XAxis("round", 1, round_axis_length(rounds[-1], state.started.rounds)), rounds


class HeadNormChart(ChartPanel):
    """Chart with one curve per head on a logarithmic axis."""

    METRICS = ("heads",)

    PANEL_TITLE = "gradient norm by head ─ by round"

    def cache_key(self) -> Hashable:
        """Return the number of the last policy update's event, and whether the run has started."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0), self.chart_key

    def empty_message(self) -> str:
        """Return why there is no chart."""
        assert self.state.started is not None
        return no_update_message(self.state.started)

    def name_in_title(self) -> str:
        """Return the title."""
        return self.PANEL_TITLE

    def summary(self, chart: Chart) -> str:  # noqa: ARG002 (the norms are in the labels)
        """Return nothing: the panel beside it has the latest values."""
        return ""

    def chart(self) -> Chart | None:
        """Return the chart; None before the first update."""
        if not self.state.heads:
            return None
        x_axis, rounds = _x_axis(self.state)
        short = self.size.width < _LONG_LABEL_MIN_COLS
        return Chart(
            quantity=Quantity("gradient norm", low=0.0),
            x_axis=x_axis,
            curves=[
                Curve(head_label(name, short=short), rounds, norms, f"series{index % 8}")
                for index, (name, norms) in enumerate(_norms(self.state).items())
            ],
            look=Look(is_logarithmic=True),
            has_labels=True,
        )


class HeadFractionChart(HeadPanel):
    """Stacked area chart of the fractions of the heads in the sum of their gradient norms."""

    METRICS = ("heads",)

    PANEL_TITLE = "gradient norm by head ─ % of total"

    def draw_heads(self, size: Size) -> list[Line] | list[Row]:
        """Draw one area per head, with the head's name and last fraction beside it."""
        series = _norms(self.state)
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
        x_axis, rounds = _x_axis(self.state)
        axes = Chart(
            quantity=Quantity("fraction"), x_axis=x_axis, curves=[],
            y_axis=Axis(0.0, 1.0, [(0.0, "0"), (0.5, "50"), (1.0, "100%")]),
        )  # fmt: skip
        frame = axes.frame(size.width - room, size.height)
        if frame is None:
            return []
        axis = axes.lines(self.view.palette, size.width - room, size.height)
        columns = [points[index] if (index := bisect_left(rounds, math.floor(frame.x_at(column) + 0.5))) < len(points)
                   else None for column in range(frame.width)]  # fmt: skip
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
