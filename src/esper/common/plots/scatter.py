"""Scatter plots of a score against parameters: the points, the front of the best ones, and their chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from esper.common.plots.axis import multiples_axis
from esper.common.plots.chart import TICKS_HEIGHT, Chart, ChartMark, Curve, Quantity, XAxis

T = TypeVar("T")
PointKind: TypeAlias = Literal["point", "trial", "host", "selected"]
"""Kind of a point: one of those that are compared, one trial, the bare host, or the one under the cursor."""

_GLYPHS = {"trial": "·", "host": "◆", "selected": "◆"}
"""Glyphs of points, keyed by kind; those of the kind "point" depend on the front."""
_ROLES = {"trial": "dim", "host": "bright", "selected": "key"}
"""Style roles of points, keyed by kind; those of the kind "point" depend on the front."""
_MARGIN = 0.04
"""Fraction of the x axis that stays free at both ends, so that a label has room beside its point."""


def pareto_front(items: Iterable[T], place: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return the items that no other one dominates, by ascending parameters.

    An item dominates another if it is as good with fewer parameters, or better with as few. Of several items in one
    place, the first is returned. Items that are not finite are left out.

    Args:
        place: Function that returns parameters and score of an item.
    """
    best = -math.inf
    front: list[T] = []
    places = [(place(item), item) for item in items]
    finite = [(at, item) for at, item in places if all(map(math.isfinite, at))]
    for (_, score), item in sorted(finite, key=lambda pair: (pair[0][0], -pair[0][1])):
        if score > best:
            best = score
            front.append(item)
    return front


def point_glyph(kind: PointKind, *, is_on_front: bool) -> str:
    """Return the glyph of a point, which is the same in tables and in charts."""
    return _GLYPHS.get(kind) or ("●" if is_on_front else "○")


class ScatterPoint(NamedTuple):
    """A point of a scatter plot."""

    x: float
    """Position on the logarithmic x axis, above 0."""
    y: float
    """Value of the quantity on the y axis."""
    kind: PointKind = "point"
    is_on_front: bool = False
    label: str = ""
    """Letters beside the point; empty for none."""
    title: str = ""
    """Text of the legend, and of the pointer in a picture."""
    role: str = ""
    """Style role in the dashboard; empty for that of the kind."""
    x_ends: tuple[float, float] | None = None
    """Lower and upper end of the interval of `x`; None if it has none."""
    y_ends: tuple[float, float] | None = None
    """The same of `y`."""

    @property
    def glyph(self) -> str:
        """Glyph of the point."""
        return point_glyph(self.kind, is_on_front=self.is_on_front)

    @property
    def is_drawable(self) -> bool:
        """True if the point has a place on the axes."""
        return math.isfinite(self.y) and 0 < self.x < math.inf


@dataclass(frozen=True)
class Scatter:
    """A quantity against multiples, with a front.

    Points without a place on the axes are left out.
    """

    points: Sequence[ScatterPoint]
    """Later ones are drawn over earlier ones."""
    quantity: Quantity
    """Quantity on the y axis."""
    x_label: str = "parameters, × host"
    origin: float | None = 1.0
    """Position that the x axis always contains; None for none."""

    @cached_property
    def drawn(self) -> list[ScatterPoint]:
        """Points with a place on the axes."""
        return [point for point in self.points if point.is_drawable]

    @property
    def front(self) -> list[tuple[float, float]]:
        """Points of the front by ascending `x`, and its value at the largest `x` of all points; empty without one.

        A value holds up to the next point: it is the best one for at most so many parameters.
        """
        corners = sorted({(point.x, point.y) for point in self.drawn if point.is_on_front})
        return [*corners, (max(point.x for point in self.drawn), corners[-1][1])] if corners else []

    @property
    def x_values(self) -> list[float]:
        """Positions that the x axis contains."""
        ends = [end for point in self.drawn for end in (point.x_ends or (point.x,))]
        return ends if self.origin is None else [self.origin, *ends]

    def chart(self) -> Chart | None:
        """Return the chart, with the front as a dotted line with steps and intervals as lines; None without a point."""
        drawn = self.drawn
        if not drawn:
            return None
        axis = multiples_axis(self.x_values, TICKS_HEIGHT)
        margin = _MARGIN * (axis.high - axis.low)
        front = [(math.log10(x), y) for x, y in self.front]
        curves = [Curve("front", [x for x, _ in front], [y for _, y in front], "dim", dotted=True, stepped=True)]
        for point in drawn:
            x = math.log10(point.x)
            if point.x_ends is not None:
                curves.append(Curve("", [*map(math.log10, point.x_ends)], [point.y, point.y], "dim"))
            if point.y_ends is not None:
                curves.append(Curve("", [x, x], [*point.y_ends], "dim"))
        return Chart(
            quantity=self.quantity,
            x_axis=XAxis("parameters", axis.low - margin, axis.high + margin, has_multiples=True),
            curves=curves,
            marks=[ChartMark(math.log10(p.x), p.y, p.glyph, _role(p), p.label) for p in drawn],
        )


def _role(point: ScatterPoint) -> str:
    return point.role or _ROLES.get(point.kind) or ("curve" if point.is_on_front else "series1")
