"""Several curves by round in one plot of text, told apart by letters on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from esper.common.formatting import NOT_MEASURED
from esper.common.plots.chart import Chart, Curve, Quantity, XAxis
from esper.common.plots.dots import Floats, extent

MAX_WIDTH, MIN_WIDTH = 128, 29
"""Limits of the width of a plot with its y axis, in columns."""
_HEIGHT = 12
"""Lines of a plot without its x axis."""


def curve_mark(index: int) -> str:
    """Return the letters of a curve, given its index from 0: A to Z, AA, AB …"""
    before, letter = divmod(index, 26)
    return (curve_mark(before - 1) if before else "") + chr(ord("A") + letter)


class LabelledCurve(NamedTuple):
    """A curve of a plot."""

    label: str
    """Text of the legend."""
    xs: Sequence[float]
    """Ascending."""
    values: Floats


def overlay_lines(quantity: Quantity, curves: Sequence[LabelledCurve], width: int) -> Iterator[str]:
    """Yield the lines of a plot: the curves on common axes, and the legend.

    Args:
        quantity: Quantity of the curves.
        curves: Curves by round; those without finite values are in the legend only.
        width: Maximum length of a line.
    """
    xs = [x for curve in curves if extent(curve.values) is not None for x in curve.xs]
    if xs:
        chart = Chart(
            quantity=quantity,
            x_axis=XAxis("round", min(xs), max(xs)),
            curves=[Curve(curve_mark(index), curve.xs, curve.values) for index, curve in enumerate(curves)],
            has_letters=True,
        )
        yield from chart.text(min(max(width, MIN_WIDTH), MAX_WIDTH), _HEIGHT + 1)
    yield from _legend(curves, width)


def _legend(curves: Sequence[LabelledCurve], width: int) -> Iterator[str]:
    """Yield the lines of the legend, as many entries per line as fit."""
    line = ""
    for index, curve in enumerate(curves):
        suffix = "" if extent(curve.values) else f": {NOT_MEASURED}"
        entry = f"{curve_mark(index)}  {curve.label}{suffix}"
        if line and len(line) + 4 + len(entry) > width:
            yield line
            line = entry
        else:
            line = f"{line}    {entry}" if line else entry
    yield line
