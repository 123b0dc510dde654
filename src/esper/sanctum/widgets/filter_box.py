"""The line in which a filter is typed: there while it is open or a filter holds, it never takes a key unasked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static


class FilterBox(Horizontal):
    """A slash, the filter, and what comes of it."""

    DEFAULT_CSS = """
    FilterBox { height: auto; max-height: 3; display: none; }
    FilterBox > Static { width: auto; padding: 0 1; color: $heading; }
    FilterBox > #said { width: 1fr; }
    FilterBox > #said.wrong { color: $error; }
    FilterBox > Input { width: 24; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", "leave the filter as it was")]

    @dataclass
    class Typed(Message):
        """The text has changed."""

        text: str

    @dataclass
    class Closed(Message):
        """Enter, or Escape: `text` is the filter that is to hold."""

        text: str

    def compose(self) -> ComposeResult:
        """One line."""
        yield Static("/")
        yield Input(compact=True, placeholder="acc<0.5 stage:blending anomaly", disabled=True)
        yield Static(id="said")

    def open(self) -> None:
        """Begin to type."""
        self.display = True
        field = self.query_one(Input)
        field.disabled = False
        self._before = field.value
        field.focus()

    @property
    def typing(self) -> bool:
        """Whether it is open."""
        return not self.query_one(Input).disabled

    def say(self, text: str, *, wrong: bool = False) -> None:
        """What the filter comes to, or why it is none."""
        said = self.query_one("#said", Static)
        said.update(text)
        said.set_class(wrong, "wrong")

    def clear(self) -> None:
        """No filter."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = ""
        self._close("")

    def _close(self, text: str) -> None:
        self.query_one(Input).disabled = True
        self.display = bool(text.strip())
        self.post_message(self.Closed(text))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tell who filters."""
        event.stop()
        self.post_message(self.Typed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep it, unless it has no meaning."""
        event.stop()
        if not self.query_one("#said", Static).has_class("wrong"):
            self._close(event.value)

    def action_give_up(self) -> None:
        """As it was."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = self._before
        self._close(self._before)
