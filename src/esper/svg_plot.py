"""Line plots and scatter plots as SVG, for notebooks. Their colours are readable on light and on dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Literal, NamedTuple

from esper.text_plot import Axis, linear_axis, multiples_axis

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


class SvgPoint(NamedTuple):
    """A point of a scatter plot."""

    x: float
    """Position on the logarithmic x axis, above 0."""
    y: float
    title: str
    """Text that the pointer shows."""
    label: str = ""
    """Text beside the point; empty for none."""
    style: Literal["front", "host", "other"] = "other"
    """Filled circle, diamond, or pale ring."""
    y_ends: tuple[float, float] | None = None
    """Lower and upper end of the interval of `y`; None if it has none."""


class SvgScatter:
    """A scatter plot that a notebook shows as a picture, with a logarithmic x axis of multiples.

    Args:
        points: One or more points. Later ones are drawn over earlier ones.
        x_label: Name of the x axis.
        y_label: Name of the y axis.
    """

    def __init__(self, points: Sequence[SvgPoint], x_label: str, y_label: str) -> None:
        self._points = points
        self._x_label, self._y_label = x_label, y_label

    def _repr_svg_(self) -> str:
        return self.svg

    @property
    def svg(self) -> str:
        """Text of the picture."""
        ends = [end for point in self._points for end in (point.y_ends or (point.y,))]
        x_axis = multiples_axis([point.x for point in self._points], _X_TICK_ROWS)
        frame = _Frame(x_axis, linear_axis(ends, _Y_TICK_ROWS))
        parts = [_open(HEIGHT), *frame.draw(self._x_label)]
        parts.append(f'<text x="{LEFT + 5}" y="{TOP + 10}">{escape(self._y_label)}</text>')
        for point in self._points:
            x, y = frame.x_of(math.log10(point.x)), frame.y_of(point.y)
            colour = {"front": COLOURS[2], "host": COLOURS[1]}.get(point.style, TEXT_COLOUR)
            parts.append(f"<g><title>{escape(point.title)}</title>")
            if point.y_ends is not None:
                low, high = map(frame.y_of, point.y_ends)
                parts.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}"/>')
            parts.append(_mark(x, y, point.style, colour))
            parts.append(f'<text x="{x + 7:.1f}" y="{y - 5:.1f}">{escape(point.label)}</text></g>')
        return "".join([*parts, "</svg>"])


def _mark(x: float, y: float, style: str, colour: str) -> str:
    """Return the shape of a point. The shapes differ too, because not everyone can tell the colours apart."""
    if style == "host":
        return f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="{colour}"/>'
    radius, fill = (4.5, colour) if style == "front" else (3, "none")
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


def _open(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
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
