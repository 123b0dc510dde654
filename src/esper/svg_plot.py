"""Line plots as SVG, for notebooks. Their colours are readable on light and on dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from esper.text_plot import Axis, linear_axis

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
        x_axis = linear_axis([x for x, _ in points], (WIDTH - LEFT - RIGHT) // (4 * _TICK_HEIGHT))
        y_axis = linear_axis([y for _, y in points], (HEIGHT - TOP - BOTTOM) // _TICK_HEIGHT)
        bottom = HEIGHT - BOTTOM

        def x_of(value: float) -> float:
            return LEFT + _position(value, x_axis) * (WIDTH - LEFT - RIGHT)

        def y_of(value: float) -> float:
            return bottom - _position(value, y_axis) * (bottom - TOP)

        height = HEIGHT + LEGEND_ROW * len(self._curves)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'font-family="sans-serif" font-size="11" fill="{TEXT_COLOUR}">'
        ]
        for value, label in y_axis.ticks:
            y = y_of(value)
            parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{_GRID}" stroke-width="0.5"/>')
            parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        for value, label in x_axis.ticks:
            parts.append(f'<text x="{x_of(value):.1f}" y="{bottom + 14}" text-anchor="middle">{escape(label)}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{bottom + 30}" text-anchor="end">{escape(self._x_label)}</text>')
        for index, (name, curve) in enumerate(self._curves.items()):
            style = (
                f'fill="none" stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="2" stroke-linecap="round" '
                f'stroke-dasharray="{_DASHES[index % len(_DASHES)]}"'
            )
            path = _path([(x_of(x), y_of(y)) if math.isfinite(x) and math.isfinite(y) else None for x, y in curve])
            y = HEIGHT + LEGEND_ROW * index
            parts.append(f'<path d="{path}" {style}/>')
            parts.append(f'<path d="M{LEFT} {y}h30" {style}/><text x="{LEFT + 40}" y="{y + 4}">{escape(name)}</text>')
        return "".join([*parts, "</svg>"])


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
