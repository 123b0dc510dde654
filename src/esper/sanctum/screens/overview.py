"""The first screen: is it alive, is it learning, is anything wrong."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical

from esper.sanctum.bindings import Category
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.accuracy import PopulationAccuracy
from esper.sanctum.widgets.devices import Devices
from esper.sanctum.widgets.env_table import EnvTable
from esper.sanctum.widgets.heads import Heads
from esper.sanctum.widgets.log import Log


class Overview(RunScreen):
    """The population to the left; what teaches it and what carries it to the right."""

    AUTO_FOCUS = "EnvTable"
    CATEGORIES = (Category.ROWS, Category.TABLE)

    def body(self) -> ComposeResult:
        """Two columns; sanctum.tcss lays them below each other where it is narrow."""
        with Vertical(id="left"):
            yield EnvTable(self.view)
            yield PopulationAccuracy(self.view)
        with Vertical(id="right"):
            yield Heads(self.view)
            yield Devices(self.view)
            yield Log(self.view)
