"""The numerics: loss scales, overflows, gradient norms, and whatever was not finite."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from esper.sanctum.bindings import Category
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.numerics import NonFiniteList, ScaleChart, ScaleSpread
from esper.sanctum.widgets.scales import Scales


class Numerics(RunScreen):
    """The envs above; the one under the cursor, the lanes and what was not finite below."""

    AUTO_FOCUS = "Scales"
    CATEGORIES = (Category.ROWS,)

    def body(self) -> ComposeResult:
        """Two rows."""
        yield Scales(self.view)
        with Horizontal(id="details"):
            yield ScaleChart(self.view)
            with Vertical(id="bad"):
                yield ScaleSpread(self.view)
                yield NonFiniteList(self.view)
