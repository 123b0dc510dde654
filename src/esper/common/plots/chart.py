"""Chart with axes, drawn as lines of text for the dashboard and for the terminal, and labels beside its curves."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from esper.common.formatting import NOT_MEASURED, align_number, format_compact, format_duration
from esper.common.plots.axis import Axis, linear_axis, log_axis, multiples_axis, next_nice
from esper.common.plots.grid import Y_AXIS_COLUMNS, Grid, Span, TextLine
from esper.common.plots.labels import Label, labels_width, place_labels
from esper.common.score_scale import ScoreScale

if TYPE_CHECKING:
    from esper.common.plots.dots import DotColumns, Floats

MIN_PLOT_COLUMNS = 8
"""Minimum width of a plot; a narrower one is not drawn."""
MIN_PLOT_ROWS = 2
"""Minimum height of a plot; a lower one is not drawn."""
TICKS_HEIGHT = 15
"""Height of an axis, in lines, for about five labels."""
_MIN_TICK_COLUMNS = 10
"""Minimum distance of two labels of the x axis, columns."""


class Quantity(NamedTuple):
    """The quantity on the y axis."""

    name: str
    unit: str = ""
    """Unit in which the quantity is shown."""
    factor: float = 1.0
    """Units per unit of the values: 100 for a fraction that is shown in %."""
    low: float | None = None
    """Minimum possible value; None if there is none. The axis does not extend below it."""
    high: float | None = None
    """Maximum possible value; None if there is none."""
    text_of: Callable[[float], str] = lambda value: format_compact(value, 4)
    """Formats a value in the unit for the readout."""

    @property
    def label(self) -> str:
        """Name and unit."""
        return f"{self.name} {self.unit}".rstrip()

    def format(self, value: float | None) -> str:
        """Format a value for the readout, without the unit; a dash if it was not measured."""
        return NOT_MEASURED if value is None else self.text_of(value * self.factor)


def _one_decimal(value: float) -> str:
    return align_number(value, 3, 1, fixed=True).strip()


def percent(name: str) -> Quantity:
    """Return a quantity from 0 to 1 that is shown in %, with one decimal."""
    return Quantity(name, "%", 100.0, 0.0, 1.0, _one_decimal)


def score_quantity(name: str, scale: ScoreScale) -> Quantity:
    """Return the quantity of a score, in percent or in its own unit."""
    return percent(name) if scale.is_percent else Quantity(name, low=scale.low, high=scale.high)


class XAxis(NamedTuple):
    """The x axis. Charts with equal names share the cursor and the zoom."""

    name: str
    """Name of a position, as in "round 37"."""
    first: float
    last: float
    """Position at the right end; at least `first`."""
    title: str = ""
    """Title of the axis if it differs from the name: `step of round 3`."""
    in_seconds: bool = False
    """True if positions are seconds, which are shown as durations."""
    tick_step: float = 1.0
    """Minimum difference between two labels: 1 for whole numbers."""
    steps_per_round: int = 0
    """Number of steps of a round, on an axis of rounds, which end at their number; 0 for other axes. Positions within a
    round are shown as `8:12`."""
    has_multiples: bool = False
    """True if positions are base-10 logarithms of multiples, which are shown as `×1.5`."""

    def format(self, x: float) -> str:
        """Format a position."""
        if self.has_multiples:
            return f"×{10**x:.2f}"
        if self.in_seconds:
            return format_duration(x)
        if self.steps_per_round:
            number = math.ceil(x - 1e-9)
            step = max(round((x - number + 1) * self.steps_per_round), 1)
            return f"{number}:{step}" if step < self.steps_per_round else str(number)
        if self.tick_step < 1:
            return f"{x:.{-math.floor(math.log10(self.tick_step))}f}"
        return f"{x:,.0f}" if float(x).is_integer() else f"{x:,.1f}"


@dataclass(frozen=True)
class Curve:
    """Points, connected by a line."""

    name: str
    """Name in the readout; empty for a curve that is not in it."""
    xs: Sequence[float]
    """Positions on the x axis, ascending."""
    values: Floats
    """Values of the quantity. The line is interrupted at None and at values that are not finite."""
    role: str = "curve"
    dotted: bool = False
    """True to draw only every second column of dots, for a bound."""
    stepped: bool = False
    """True if a value holds up to the next point, so that the line has steps."""
    label: str = ""
    """Text beside the last point, if the chart has labels and it differs from the name."""

    def value_at(self, x: float) -> float | None:
        """Return the value at exactly this position; None if there is none."""
        index = bisect_left(self.xs, x)
        return self.values[index] if index < len(self.xs) and self.xs[index] == x else None

    def within(self, window: tuple[float, float]) -> Floats:
        """Return the values in a part of the x axis."""
        return self.values[bisect_left(self.xs, window[0]) : bisect_right(self.xs, window[1])]


class ChartMark(NamedTuple):
    """A glyph at a point of the plot."""

    x: float
    y: float | None
    """Value of the quantity; None or NaN for the bottom of the plot."""
    glyph: str
    role: str
    label: str = ""
    """Letters beside the glyph; empty for none."""


class Look(NamedTuple):
    """Properties of a chart that the user chooses."""

    window: tuple[float, float] | None = None
    """Visible part of the x axis; None for all of it."""
    cursor: float | None = None
    """Position of the cursor on the x axis; None if it is not shown."""
    is_logarithmic: bool = False


class Frame(NamedTuple):
    """Place of the plot in the lines of a chart, and the ranges of its axes."""

    width: int
    """Columns of the plot. It starts after `Y_AXIS_COLUMNS` + 2 columns."""
    height: int
    """Lines of the plot."""
    label_width: int
    """Columns beside the plot for labels."""
    window: tuple[float, float]
    axis: Axis

    def column(self, x: float) -> int:
        """Return the column of the plot at a position, from 0; outside of the plot for a position that is not shown."""
        first, last = self.window
        return round((x - first) / (last - first) * (self.width * 2 - 1)) // 2 if last > first else 0

    def x_at(self, column: int) -> float:
        """Return the position in the middle of a column of the plot."""
        first, last = self.window
        return first + (column * 2 + 0.5) / (self.width * 2 - 1) * (last - first)

    def row(self, value: float) -> int:
        """Return the line of a value on the y axis, counted from the top."""
        low, high, _ = self.axis
        fraction = (min(max(value, low), high) - low) / (high - low) if high > low else 0.0
        return self.height - 1 - round(fraction * (self.height * 4 - 1)) // 4


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One or more curves of a quantity, with an optional band.

    The methods import `esper.common.plots.dots` when they are called, because numpy would delay the first frame.
    """

    quantity: Quantity
    x_axis: XAxis
    curves: Sequence[Curve]
    """A cell that several curves cross has the role of the first of them."""
    band: tuple[Curve, Curve] | None = None
    """Lower and upper quartile, the bounds of the band; None for no band."""
    marks: Sequence[ChartMark] = ()
    include: float | None = None
    """Value that the y axis always contains, such as 0; None for no such value."""
    y_axis: Axis | None = None
    """Fixed y axis; None to fit it to the visible values."""
    has_labels: bool = False
    """True to write the name of each curve beside its last point."""
    has_letters: bool = False
    """True to write the name of each curve, one or two letters, on the curve, for output without colours."""
    look: Look = field(default_factory=Look)

    def with_look(self, look: Look) -> Chart:
        """Return the chart as the user wants to see it. A logarithmic axis needs a positive value."""
        if look.is_logarithmic:
            from esper.common.plots.dots import min_positive

            curves = [*self.curves, *(self.band or ())]
            look = look._replace(is_logarithmic=any(min_positive(curve.values) is not None for curve in curves))
        return replace(self, look=look)

    def smoothed(self, num_points: int) -> Chart:
        """Return the chart with a moving mean in place of each curve, to be drawn; its values were not measured.

        A scatter plot stays as it is, because its points have no order.
        """
        if num_points <= 1 or self.x_axis.has_multiples:
            return self
        from esper.common.plots.dots import moving_mean

        curves = [
            replace(curve, values=moving_mean(curve.values, num_points)) for curve in (*self.curves, *(self.band or ()))
        ]
        band = None if self.band is None else (curves[-2], curves[-1])
        return replace(self, curves=curves[: len(self.curves)], band=band)

    @property
    def title(self) -> str:
        """Names of the quantity and of the x axis, and whether the y axis is logarithmic."""
        notes = ", logarithmic" if self.look.is_logarithmic else ""
        return f"{self.quantity.label}{notes} ─ by {self.x_axis.title or self.x_axis.name}"

    @property
    def positions(self) -> Sequence[float]:
        """Positions of the cursor: those of the named curve with the most points."""
        return max((curve.xs for curve in self.curves if curve.name), key=len, default=())

    def readout(self, x: float | None = None) -> str:
        """Return the values at a position; by default those of the last visible point, without the position."""
        named = [curve for curve in self.curves if curve.name]
        last = self.look.window[1] if self.look.window is not None else math.inf
        ends = (bisect_right(curve.xs, last) for curve in named)
        visible = [curve.xs[end - 1] for curve, end in zip(named, ends, strict=True) if end]
        at = x if x is not None else max(visible, default=math.nan)
        texts = [
            f"{curve.name} {self.quantity.format(value)}"
            for curve in named
            if self.is_in_readout(value := curve.value_at(at))
        ]
        if self.band is not None:
            low, high = (self.quantity.format(bound.value_at(at)) for bound in self.band)
            texts.insert(1, f"quartiles {low} to {high}")
        if x is None:
            return "  ".join(texts)
        return f"{self.x_axis.name} {self.x_axis.format(x)}: {'  '.join(texts)}"

    def is_in_readout(self, value: float | None) -> bool:  # noqa: ARG002 (a chart of fractions leaves out zeros)
        """Return True if the value of a curve at a position is in the readout."""
        return True

    def frame(self, width: int, height: int) -> Frame | None:
        """Return the place of the plot if the chart has this size; None if it does not fit."""
        rows = height - 1
        label_width = labels_width(self._label_names, rows) if self.has_labels else 0
        columns = width - Y_AXIS_COLUMNS - 2 - label_width
        if columns < MIN_PLOT_COLUMNS or rows < MIN_PLOT_ROWS:
            return None
        window = self.look.window or (self.x_axis.first, max(self.x_axis.last, self.x_axis.first))
        if window[0] == window[1]:
            window = (window[0] - 0.5, window[1] + 0.5)
        return Frame(columns, rows, label_width, window, self._y_axis(window, rows))

    def text(self, width: int, height: int) -> list[str]:
        """Draw the chart without styles: `height` lines of at most `width` columns; the last line is the x axis.

        A chart that does not fit is empty.
        """
        frame = self.frame(width, height)
        lines = self.lines_in(frame) if frame is not None else []
        return ["".join(span.text for span in line).rstrip() for line in lines]

    def lines_in(self, frame: Frame) -> list[TextLine]:
        """Draw the chart around the plot that `frame` has placed: the lines of the plot, and that of the x axis."""
        from esper.common.plots.dots import Canvas

        curves = [*self.curves, *(self.band or ())]
        roles = list(dict.fromkeys(curve.role for curve in self.curves))
        canvas = Canvas(frame.width, frame.height, max(len(roles), 1))
        dots = [self._dots(curve, frame) for curve in curves]
        for curve, drawn in zip(self.curves, dots, strict=False):
            canvas.draw(drawn, roles.index(curve.role))
        grid = Grid(canvas, roles)
        if self.band is not None:
            grid.fill_band(dots[-2], dots[-1])
        if self.has_letters:
            grid.draw_letters([(curve.name, curve.role) for curve in self.curves], dots)
        if self.look.cursor is not None:
            grid.draw_cursor(frame.column(self.look.cursor))
        self._draw_marks(grid, frame)
        labels = {frame.row(value): label for value, label in frame.axis.ticks}
        lines = [grid.line(y, labels.get(y)) for y in range(frame.height)]
        if self.has_labels:
            margins = place_labels(list(self._labels(frame)), frame.height)
            lines = [line + margin for line, margin in zip(lines, margins, strict=True)]
        return [*lines, self.draw_x_axis(frame)]

    def _draw_marks(self, grid: Grid, frame: Frame) -> None:
        """Draw the glyphs, then their labels, that of the last mark first.

        A label is to the left of its glyph, or to the right if other labelled glyphs or labels are there; if both cells
        are taken, it is left out. It may cover glyphs without a label.
        """
        cells = [
            (
                frame.height - 1 if mark.y is None or math.isnan(mark.y) else frame.row(self._on_axis(mark.y)),
                frame.column(mark.x),
            )
            for mark in self.marks
        ]
        for mark, (row, column) in zip(self.marks, cells, strict=True):
            grid.put(row, column, mark.glyph, mark.role)
        taken = {cell for mark, cell in zip(self.marks, cells, strict=True) if mark.label}
        for mark, (row, column) in reversed([*zip(self.marks, cells, strict=True)]):
            for start in (column - len(mark.label), column + 1) if mark.label else ():
                place = {(row, at) for at in range(start, start + len(mark.label))}
                if taken.isdisjoint(place) and 0 <= start <= frame.width - len(mark.label):
                    grid.put(row, start, mark.label, mark.role)
                    taken |= place
                    break

    def _dots(self, curve: Curve, frame: Frame) -> DotColumns:
        import numpy as np

        from esper.common.plots.dots import dot_columns, log10_clipped

        values = log10_clipped(curve.values) if self.look.is_logarithmic else curve.values
        xs = curve.xs
        if curve.stepped:
            xs, values = np.repeat(xs, 2)[1:], np.repeat(np.asarray(values, float), 2)[:-1]
        drawn = dot_columns(xs, values, frame.window, frame.axis[:2], frame.width, frame.height)
        return drawn.every_second() if curve.dotted else drawn

    def _on_axis(self, value: float) -> float:
        """Return the place of a value on the y axis: its logarithm if the axis is logarithmic."""
        if not self.look.is_logarithmic or not math.isfinite(value):
            return value
        return math.log10(value) if value > 0 else -math.inf

    def _y_axis(self, window: tuple[float, float], rows: int) -> Axis:
        if self.y_axis is not None:
            return self.y_axis
        quantity, factor = self.quantity, self.quantity.factor
        from esper.common.plots.dots import extent, min_positive

        ranges = [extent(curve.within(window)) for curve in (*self.curves, *(self.band or ()))]
        shown = [value * factor for found in ranges if found is not None for value in found]
        shown += [mark.y * factor for mark in self.marks if mark.y is not None]
        if self.look.is_logarithmic:
            positive = [found * factor for curve in self.curves if (found := min_positive(curve.within(window)))]
            axis, shift = log_axis([*shown, *positive]), math.log10(factor)
            return Axis(axis.low - shift, axis.high - shift, [(value - shift, label) for value, label in axis.ticks])
        include = self.include if self.include is None else self.include * factor
        low, high = (None if limit is None else limit * factor for limit in (quantity.low, quantity.high))
        axis = linear_axis(shown, rows, include=include, limits=(low, high))
        return Axis(axis.low / factor, axis.high / factor, [(value / factor, label) for value, label in axis.ticks])

    @property
    def _label_names(self) -> list[Label]:
        return [Label(0, curve.label or curve.name, curve.role) for curve in self.curves if curve.name]

    def _labels(self, frame: Frame) -> Iterator[Label]:
        for curve in self.curves:
            values = curve.within(frame.window)
            last = next((value for value in reversed(values) if value is not None and math.isfinite(value)), None)
            if curve.name and last is not None:
                yield Label(frame.row(self._on_axis(last)), curve.label or curve.name, curve.role)

    def draw_x_axis(self, frame: Frame) -> TextLine:
        """Draw the labels below the plot, as many as fit, the last one always."""
        text, start = "", Y_AXIS_COLUMNS + 2
        ticks = self._x_ticks(frame)
        columns = [
            min(start + frame.column(value) - len(label) // 2, start + frame.width - len(label))
            for value, label in ticks
        ]
        for column, (_, label) in zip(columns, ticks, strict=True):
            is_last = column == columns[-1]
            if column > len(text) and (is_last or column + len(label) <= columns[-1] - 2):
                text = text.ljust(column) + label
        labels = text.lstrip()
        return [Span(" " * (len(text) - len(labels))), Span(labels, "dim")]

    def _x_ticks(self, frame: Frame) -> list[tuple[float, str]]:
        """Return labelled positions: the first and the last one with round numbers between them, or round multiples."""
        first, last = frame.window
        if self.x_axis.has_multiples:
            length = frame.width // (_MIN_TICK_COLUMNS // 3)  # as of a vertical axis, which has a label in three lines
            axis = multiples_axis([10**end for end in frame.window], length)
            return [(value, label) for value, label in axis.ticks if first - 1e-9 <= value <= last + 1e-9]
        step = max(_tick_step(last - first, frame.width, in_seconds=self.x_axis.in_seconds), self.x_axis.tick_step)
        whole = (math.ceil(first - 1e-9), math.floor(last + 1e-9))
        if self.x_axis.steps_per_round and whole[0] > whole[1]:
            return [(last, str(whole[0]))]  # the round in progress
        is_whole = whole[0] < whole[1] or self.x_axis.steps_per_round
        ends = whole if self.x_axis.tick_step >= 1 and is_whole else (first, last)
        if self.x_axis.first == self.x_axis.last:
            ends = (self.x_axis.first,) * 2
        between = [index * step for index in range(math.ceil(first / step), math.floor(last / step) + 1)]
        inner = [value for value in between if min(value - ends[0], ends[1] - value) >= 0.75 * step]
        return [(value, self.x_axis.format(value)) for value in dict.fromkeys((ends[0], *inner, ends[1]))]


_SECONDS_STEPS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400)
"""Possible differences between two labels of an x axis in seconds."""


def _tick_step(span: float, columns: int, *, in_seconds: bool) -> float:
    """Return the difference between two labels of an x axis: 1, 2 or 5 times a power of ten, or a round duration."""
    wanted = max(span * _MIN_TICK_COLUMNS / columns, 1e-9)
    if in_seconds and wanted > 1:
        return next((step for step in _SECONDS_STEPS if step >= wanted), math.ceil(wanted / 86400) * 86400)
    return next_nice(wanted)
