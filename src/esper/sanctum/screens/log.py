"""The log: everything notable that was said, to filter and to search."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from esper.sanctum.bindings import Category
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.log_list import LogList


class Search(Input):
    """A line to type a text into; Escape leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "screen.close_search", "back")]


class LogScreen(RunScreen):
    """The lines, and a line to search them with while it is wanted."""

    AUTO_FOCUS = "LogList"
    CATEGORIES = (Category.LOG,)

    def body(self) -> ComposeResult:
        """The lines and the search."""
        yield LogList(self.view)
        yield Search(placeholder="text to look for; Enter keeps it, Escape drops it")

    def action_search(self) -> None:
        """Type a text to look for."""
        search = self.query_one(Search)
        search.display = True
        search.focus()

    def action_close_search(self) -> None:
        """Without a search."""
        self.query_one(Search).value = ""
        self.on_input_submitted()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while it is typed."""
        self.query_one(LogList).search(event.value)

    def on_input_submitted(self) -> None:
        """Keep what was typed, and go back to the lines."""
        search, lines = self.query_one(Search), self.query_one(LogList)
        search.display = False
        lines.search(search.value)  # all filters may have been dropped since it was typed
        lines.focus()
