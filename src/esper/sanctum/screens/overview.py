"""The first screen: is it alive, is it learning, is anything wrong."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical

from esper.sanctum.bindings import Category, bindings
from esper.sanctum.population import FilterError
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.accuracy import PopulationAccuracy
from esper.sanctum.widgets.devices import Devices
from esper.sanctum.widgets.env_map import EnvMap
from esper.sanctum.widgets.env_table import EnvTable
from esper.sanctum.widgets.filter_box import FilterBox
from esper.sanctum.widgets.heads import Heads
from esper.sanctum.widgets.log import Log


class Overview(RunScreen):
    """The population to the left; what teaches it and what carries it to the right."""

    AUTO_FOCUS = "EnvTable"
    CATEGORIES = (Category.ROWS, Category.TABLE, Category.OVERVIEW)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.OVERVIEW)]

    def body(self) -> ComposeResult:
        """Two columns; sanctum.tcss lays them below each other where it is narrow."""
        with Vertical(id="left"):
            yield EnvTable(self.view)
            yield EnvMap(self.view)
            yield FilterBox()
            yield PopulationAccuracy(self.view)
        with Vertical(id="right"):
            yield Heads(self.view)
            yield Devices(self.view)
            yield Log(self.view)

    def on_mount(self) -> None:
        """The table first."""
        self.query_one(EnvMap).display = False

    def action_map(self) -> None:
        """The weather map in place of the table, or the table again."""
        table, weather = self.query_one(EnvTable), self.query_one(EnvMap)
        table.display, weather.display = weather.display, table.display
        self.query_one(FilterBox).display = table.display and bool(table.filter)
        self._focus_envs()

    def _focus_envs(self) -> None:
        table, weather = self.query_one(EnvTable), self.query_one(EnvMap)
        (table if table.display else weather).focus()

    def action_filter(self) -> None:
        """Type a filter of the table."""
        if not self.query_one(EnvTable).display:
            self.action_map()
        self.query_one(FilterBox).open()

    def action_clear(self) -> None:
        """Show all envs of the table."""
        if self.query_one(EnvTable).filter:
            self.query_one(FilterBox).clear()

    def on_filter_box_typed(self, event: FilterBox.Typed) -> None:
        """Show at once what a filter leaves."""
        self._filter(event.text)

    def on_filter_box_closed(self, event: FilterBox.Closed) -> None:
        """Back to the table, or the weather map in its place."""
        self._filter(event.text)
        self._focus_envs()

    def update(self) -> None:
        """How many envs the filter leaves may be others with each step."""
        super().update()
        if self.query_one(EnvTable).filter and not self.query_one(FilterBox).typing:
            self._say_count()

    def _filter(self, text: str) -> None:
        try:
            self.query_one(EnvTable).show_only(text)
        except FilterError as error:
            self.query_one(FilterBox).say(str(error), wrong=True)
        else:
            self._say_count()

    def _say_count(self) -> None:
        table = self.query_one(EnvTable)
        total = len(self.view.source.state.envs)
        self.query_one(FilterBox).say(f"{table.passing} of {total}" if table.filter else "")
