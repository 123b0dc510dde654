"""What grows: the whole population at once, and how each blueprint fares."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from esper.sanctum.bindings import Category, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.growth_timeline import GrowthTimeline
from esper.sanctum.widgets.league import League


class Growth(RunScreen):
    """The time lines, and the league of blueprints beside or below them."""

    AUTO_FOCUS = "GrowthTimeline"
    CATEGORIES = (Category.ROWS, Category.GROWTH)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.GROWTH)]

    def body(self) -> ComposeResult:
        """Two panels."""
        yield GrowthTimeline(self.view)
        yield League(self.view)

    def action_order(self) -> None:
        """Order the blueprints by the next column."""
        self.query_one(League).shift()
