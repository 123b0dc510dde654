"""The devices: their memory and whose it is, their lanes, and the phases of a step."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from esper.sanctum.bindings import Category, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.lanes import LaneLoads, PhaseShares
from esper.sanctum.widgets.memory import MemoryCourse, MemoryOwners


class DevicesScreen(RunScreen):
    """Memory above, time below."""

    AUTO_FOCUS = ""
    CATEGORIES = (Category.DEVICES,)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.DEVICES)]

    def body(self) -> ComposeResult:
        """Three rows."""
        yield MemoryCourse(self.view)
        yield MemoryOwners(self.view)
        with Horizontal(id="time"):
            yield LaneLoads(self.view)
            yield PhaseShares(self.view)

    def action_next_memory(self) -> None:
        """Show the course of the next memory."""
        self.query_one(MemoryCourse).shift()
