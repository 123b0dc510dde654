"""Base class of the screens with a text search."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input

from esper.sanctum.screens.base import RunScreen


class SearchBox(Input):
    """Input for a text search. Escape closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "screen.close_search", "back")]


class SearchScreen(RunScreen):
    """A screen whose body has a hidden search box. Subclasses search in `on_input_changed`."""

    def action_search(self) -> None:
        """Open the search box."""
        search = self.query_one(SearchBox)
        search.display = True
        self.set_focus(search)  # at once, so that no key typed meanwhile acts on the run

    def action_close_search(self) -> None:
        """Clear the search, and close its box."""
        self.query_one(SearchBox).value = ""
        self.on_input_submitted()

    def on_input_submitted(self) -> None:
        """Keep the search, and close its box."""
        self.query_one(SearchBox).display = False
