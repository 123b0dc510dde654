"""Line plots and scatter plots as SVG, for notebooks and files.

Their colours are readable on light and on dark backgrounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from esper.common.plots.axis import Axis, linear_axis, multiples_axis
from esper.common.plots.scatter import Scatter, ScatterPoint

WIDTH, HEIGHT = 640, 260
"""Size without the legend, which has a line per curve below the plot, because names may be long."""
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 10, 40
"""Margins of the plot, for the labels of the axes."""
LEGEND_ROW = 16
LONE_POINT_PX = 4
TEXT_COLOUR = "#777"
COLOURS = ("#3b82f6", "#ea580c", "#059669", "#a855f7", "#ef4444", "#64748b")
_DASHES = ("none", "8 5", "2 5", "8 5 2 5")
"""Dashes of neighbouring curves differ, because not everyone can tell the colours apart."""
_GRID = "#8888"
_TICK_HEIGHT = 15
"""Height in pixels that a line of a terminal plot would have: the axis has as many ticks."""
_X_TICK_ROWS, _Y_TICK_ROWS = (WIDTH - LEFT - RIGHT) // (4 * _TICK_HEIGHT), (HEIGHT - TOP - BOTTOM) // _TICK_HEIGHT
"""Lengths of the axes, in lines of a terminal plot."""


class SvgPlot:
    """A plot that a notebook shows as a picture.

    Args:
        curves: Points (x, y) of each curve, keyed by its name. Points that are not finite interrupt the curve.
        x_label: Name of the x axis.
    """

    def __init__(self, curves: Mapping[str, Sequence[tuple[float, float]]], x_label: str) -> None:
        self._curves = curves
        self._x_label = x_label

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def svg(self) -> str:
        """Text of the picture."""
        points = [point for curve in self._curves.values() for point in curve]
        x_axis = linear_axis([x for x, _ in points], _X_TICK_ROWS)
        frame = _Frame(x_axis, linear_axis([y for _, y in points], _Y_TICK_ROWS))
        parts = [_open(HEIGHT + LEGEND_ROW * len(self._curves)), *frame.draw(self._x_label)]
        for index, (name, curve) in enumerate(self._curves.items()):
            style = (
                f'fill="none" stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="2" stroke-linecap="round" '
                f'stroke-dasharray="{_DASHES[index % len(_DASHES)]}"'
            )
            finite = (math.isfinite(x) and math.isfinite(y) for x, y in curve)
            places = [(frame.x_of(x), frame.y_of(y)) if at else None for (x, y), at in zip(curve, finite, strict=True)]
            path = _path(places)
            y = HEIGHT + LEGEND_ROW * index
            parts.append(f'<path d="{path}" {style}/>')
            parts.append(f'<path d="M{LEFT} {y}h30" {style}/><text x="{LEFT + 40}" y="{y + 4}">{escape(name)}</text>')
        return "".join([*parts, "</svg>"])


class SvgScatter:
    """A scatter plot that a notebook shows as a picture, with its front as a dotted line with steps.

    Args:
        scatter: Points and axes; at least one point is finite.
        heading: Text above the plot; empty for none.
        has_legend: Write the labels of the points with their titles below the plot.
    """

    def __init__(self, scatter: Scatter, *, heading: str = "", has_legend: bool = False) -> None:
        self._scatter = scatter
        self._heading = heading
        self._legend = [point for point in scatter.drawn if point.label] if has_legend else []

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def svg(self) -> str:
        """Text of the picture."""
        scatter, factor = self._scatter, self._scatter.quantity.factor
        ends = [end * factor for point in scatter.drawn for end in (point.y_ends or (point.y,))]
        frame = _Frame(multiples_axis(scatter.x_values, _X_TICK_ROWS), linear_axis(ends, _Y_TICK_ROWS))
        parts = [_open(HEIGHT + LEGEND_ROW * len(self._legend), LEGEND_ROW if self._heading else 0)]
        if self._heading:
            parts.append(f'<text x="{LEFT}" y="-2">{escape(self._heading)}</text>')
        parts += frame.draw(scatter.x_label)
        parts.append(f'<text x="{LEFT + 5}" y="{TOP + 10}">{escape(scatter.quantity.label)}</text>')
        corners = [(frame.x_of(math.log10(x)), frame.y_of(y * factor)) for x, y in scatter.front]
        if corners:
            steps = "".join(f"H{x:.1f}V{y:.1f}" for x, y in corners)
            style = f'fill="none" stroke="{COLOURS[2]}" stroke-dasharray="{_DASHES[2]}"'
            parts.append(f'<path d="M{corners[0][0]:.1f} {corners[0][1]:.1f}{steps}" {style}/>')
        parts += [_draw_point(point, frame, factor) for point in scatter.drawn]
        for index, point in enumerate(self._legend):
            y = HEIGHT + LEGEND_ROW * index
            parts.append(f'{_mark(LEFT + 5, y, point)}<text x="{LEFT + 15}" y="{y + 4}">')
            parts.append(f"{escape(point.label)}  {escape(point.title)}</text>")
        return "".join([*parts, "</svg>"])


def _draw_point(point: ScatterPoint, frame: _Frame, factor: float) -> str:
    """Return a point with its title, intervals and label. `factor` converts values to the unit of the y axis."""
    x, y, colour = frame.x_of(math.log10(point.x)), frame.y_of(point.y * factor), _colour(point)
    parts = [f"<g><title>{escape(point.title)}</title>"]
    if point.x_ends is not None:
        left, right = (frame.x_of(math.log10(end)) for end in point.x_ends)
        parts.append(f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="{colour}"/>')
    if point.y_ends is not None:
        low, high = (frame.y_of(end * factor) for end in point.y_ends)
        parts.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}"/>')
    parts.append(_mark(x, y, point))
    return "".join([*parts, f'<text x="{x + 7:.1f}" y="{y - 5:.1f}">{escape(point.label)}</text></g>'])


def _colour(point: ScatterPoint) -> str:
    return COLOURS[1] if point.kind == "host" else COLOURS[2] if point.is_on_front else TEXT_COLOUR


def _mark(x: float, y: float, point: ScatterPoint) -> str:
    """Return the shape of a point. The shapes differ too, because not everyone can tell the colours apart."""
    colour = _colour(point)
    if point.kind == "host":
        return f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="{colour}"/>'
    radius, fill = (4.5, colour) if point.is_on_front else (3, "none")
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="{colour}"/>'


class _Frame(NamedTuple):
    """Axes of a picture."""

    x_axis: Axis
    y_axis: Axis

    def x_of(self, value: float) -> float:
        """Return the x coordinate of a value, pixels."""
        return LEFT + _position(value, self.x_axis) * (WIDTH - LEFT - RIGHT)

    def y_of(self, value: float) -> float:
        """Return the y coordinate of a value, pixels."""
        bottom = HEIGHT - BOTTOM
        return bottom - _position(value, self.y_axis) * (bottom - TOP)

    def draw(self, x_label: str) -> list[str]:
        """Return grid and labels."""
        bottom = HEIGHT - BOTTOM
        parts: list[str] = []
        for value, label in self.y_axis.ticks:
            y = self.y_of(value)
            parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{_GRID}" stroke-width="0.5"/>')
            parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        for value, label in self.x_axis.ticks:
            x = self.x_of(value)
            parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{escape(label)}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{bottom + 30}" text-anchor="end">{escape(x_label)}</text>')
        return parts


def _open(height: int, top: int = 0) -> str:
    """Return the first tag of a picture, with `top` pixels above the plot."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {-top} {WIDTH} {height + top}" width="{WIDTH}" '
        f'font-family="sans-serif" font-size="11" fill="{TEXT_COLOUR}">'
    )


def _position(value: float, axis: Axis) -> float:
    """Return the place of a value on an axis, a fraction; 0 on the axis of a curve that is 0 everywhere."""
    return (value - axis.low) / (axis.high - axis.low) if axis.high > axis.low else 0.0


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Return the path through some points. None interrupts it; a point without neighbours is a short line."""
    words: list[str] = []
    for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
        if point is None:
            continue
        x, y = point
        if before is None and after is None:
            words.append(f"M{x - LONE_POINT_PX / 2:.1f} {y:.1f}h{LONE_POINT_PX}")
        else:
            words.append(f"{'M' if before is None else 'L'}{x:.1f} {y:.1f}")
    return "".join(words)
