"""Dialogs of the workspace: keys to sort or group by, and the notes on a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from esper.common.formatting import suggest
from esper.recordings.files.notes import RunNotes
from esper.sanctum.screens.dialogs import Dialog
from esper.sanctum.widgets.run_list import complete_term

_MAX_OPTIONS = 12
"""Maximum number of keys below the input."""


class KeyDialog(Dialog[tuple[str, ...]]):
    """Dialog that reads one or more keys, with completion. Returns them, or None.

    Args:
        heading: Text that says for what the keys are.
        keys: All valid keys, the likely ones first.
        initial: Keys that are typed already.
        is_several: Accept several keys, separated by spaces.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", priority=True),
        Binding("up", "choose(-1)"),
        Binding("down", "choose(1)"),
    ]

    def __init__(self, heading: str, keys: Sequence[str], initial: Sequence[str] = (), *, is_several: bool) -> None:
        super().__init__()
        self._heading, self._keys, self._is_several = heading, keys, is_several
        self._initial = " ".join(initial)

    def compose(self) -> ComposeResult:
        """Yield the heading, the input, and the keys that contain its last word."""
        with Vertical(id="dialog"):
            yield Static(self._heading, id="question", markup=False)
            yield Input(self._initial, placeholder="type to search", compact=True)
            yield OptionList()
            several = "Space several   " if self._is_several else ""
            yield Static(f"Tab complete   {several}Enter apply   Esc cancel", id="hint", markup=False)

    def on_mount(self) -> None:
        """Show the likely keys, and keep the focus on the input."""
        self.query_one(OptionList).can_focus = False
        self._search("")

    @property
    def _word(self) -> str:
        return self.query_one(Input).value.rpartition(" ")[2]

    def _search(self, word: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        starting = [key for key in self._keys if key.startswith(word)]
        matches = starting + [key for key in self._keys if word in key and key not in starting]
        options.add_options([Option(key, id=key) for key in matches[:_MAX_OPTIONS]])
        options.highlighted = 0 if matches else None
        hidden = len(matches) - _MAX_OPTIONS
        options.border_subtitle = f"{hidden} more" if hidden > 0 else None

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the keys that contain the last word."""
        self._search(event.value.rpartition(" ")[2])

    def action_choose(self, rows: int) -> None:
        """Highlight another key."""
        options = self.query_one(OptionList)
        (options.action_cursor_down if rows > 0 else options.action_cursor_up)()

    def action_complete(self) -> None:
        """Complete the last word."""
        field = self.query_one(Input)
        before, space, word = field.value.rpartition(" ")
        completed = complete_term(word, [key for key in self._keys if key.startswith(word)])
        if completed is not None:
            field.value = f"{before}{space}{completed}"
            field.cursor_position = len(field.value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the clicked key as the last one."""
        self._close(event.option_id)

    def on_input_submitted(self) -> None:
        """Close with the typed keys; a last word that is no key stands for the highlighted key."""
        options = self.query_one(OptionList)
        highlighted = options.highlighted
        word = self._word
        if word in self._keys or (self._is_several and not word):
            self._close(word or None)
        else:
            self._close(options.get_option_at_index(highlighted).id if highlighted is not None else word)

    def _close(self, last: str | None) -> None:
        typed = self.query_one(Input).value.split()
        if self._word:
            typed = typed[:-1]
        keys = (*typed, last) if last else tuple(typed)
        unknown = [key for key in keys if key not in self._keys]
        if unknown:
            hint = f"unknown key '{unknown[0]}'; {suggest(unknown[0], self._keys, listed=self._keys[:_MAX_OPTIONS])}"
            self.query_one("#hint", Static).update(hint)
        elif keys:
            self.dismiss(tuple(dict.fromkeys(keys)) if self._is_several else (keys[-1],))


class NotesDialog(Dialog[RunNotes]):
    """Dialog that edits name, tags and note of a run. Returns the new notes, or None.

    Args:
        run: Name of the run's directory.
    """

    def __init__(self, run: str, notes: RunNotes) -> None:
        super().__init__()
        self._run_name, self._notes = run, notes

    def compose(self) -> ComposeResult:
        """Yield an input for each field."""
        notes = self._notes
        with Vertical(id="dialog"):
            yield Static(f"Notes on {self._run_name}", id="question", markup=False)
            for field, value, placeholder in (
                ("name", notes.name, self._run_name),
                ("tags", " ".join(notes.tags), "words, separated by spaces"),
                ("note", notes.note, "text"),
            ):
                yield Static(field, classes="label")
                yield Input(value, placeholder=placeholder, id=field, compact=True)
            yield Static("Tab next field   Enter save   Esc cancel", id="hint")

    def on_input_submitted(self) -> None:
        """Close with the notes."""
        name, tags, note = (self.query_one(f"#{field}", Input).value.strip() for field in ("name", "tags", "note"))
        self.dismiss(replace(self._notes, name=name, tags=tuple(dict.fromkeys(tags.split())), note=note))
