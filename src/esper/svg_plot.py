"""Line plots as SVG, for notebooks. Their colours are readable on light and on dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from esper.text_plot import linear_axis

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 60, 10, 10, 40
"""Margins of the plot, for labels of the axes and the legend."""
_COLOURS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#64748b")
_GRID = "#8888"
_TEXT = "#888"
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

        def x_of(value: float) -> float:
            return LEFT + (value - x_axis.low) / (x_axis.high - x_axis.low) * (WIDTH - LEFT - RIGHT)

        def y_of(value: float) -> float:
            return HEIGHT - BOTTOM - (value - y_axis.low) / (y_axis.high - y_axis.low) * (HEIGHT - TOP - BOTTOM)

        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'font-family="sans-serif" font-size="11" fill="{_TEXT}">'
        ]
        for value, label in y_axis.ticks:
            y = y_of(value)
            parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{_GRID}" stroke-width="0.5"/>')
            parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        for value, label in x_axis.ticks:
            parts.append(
                f'<text x="{x_of(value):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{escape(label)}</text>'
            )
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 5}" text-anchor="end">{escape(self._x_label)}</text>')
        legend = LEFT
        for index, (name, curve) in enumerate(self._curves.items()):
            colour = _COLOURS[index % len(_COLOURS)]
            parts.append(f'<text x="{legend}" y="{HEIGHT - 5}" fill="{colour}">{escape(name)}</text>')
            legend += 7 * len(name) + 14
            path = _path([(x_of(x), y_of(y)) if math.isfinite(x) and math.isfinite(y) else None for x, y in curve])
            parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        return "".join([*parts, "</svg>"])


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """Return the path through some points; None lifts the pen."""
    words: list[str] = []
    is_down = False
    for point in points:
        if point is not None:
            words.append(f"{'L' if is_down else 'M'}{point[0]:.1f} {point[1]:.1f}")
        is_down = point is not None
    return "".join(words)
