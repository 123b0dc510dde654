"""Base classes of the screens and dialogs with a text search."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Key
from textual.widgets import Input, Static

from esper.sanctum.screens.base import RunScreen
from esper.sanctum.screens.dialogs import Dialog


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


class SearchDialog(Dialog[None]):
    """Dialog with a page that can be scrolled. Typing shows only the parts that contain the text.

    Subclasses implement `page`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll(-1)"),
        Binding("down", "scroll(1)"),
        Binding("pageup", "scroll(-10)"),
        Binding("pagedown", "scroll(10)"),
    ]
    AUTO_FOCUS = ""
    heading = ""

    def compose(self) -> ComposeResult:
        """Yield the heading, the search box, the page and a hint on the keys."""
        with Vertical(id="dialog"):
            if self.heading:
                yield Static(self.heading, id="question")
            yield Input(placeholder="type to search", compact=True)
            with VerticalScroll(can_focus=False):
                yield Static(id="page")
            yield Static("↑ ↓ scroll   Esc back", id="hint")

    def page(self, text: str) -> Text:
        """Return the parts of the page that contain a text, or a sentence if there are none."""
        raise NotImplementedError

    def on_key(self, event: Key) -> None:
        """Begin a search with a key that has no other meaning."""
        search = self.query_one(Input)
        if event.character and event.is_printable and event.key not in self.active_bindings and search.focusable:
            self.set_focus(search)
            search.insert_text_at_cursor(event.character)

    def on_resize(self) -> None:
        """Write the page in the new width."""
        self._write(self.query_one(Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show only parts that contain the text."""
        self._write(event.value)
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_scroll(self, lines: int) -> None:
        """Scroll the page."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def _write(self, text: str) -> None:
        self.query_one("#page", Static).update(self.page(text.strip().removeprefix("/")))
