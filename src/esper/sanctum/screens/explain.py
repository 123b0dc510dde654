"""What the figures of a panel mean: what each is, its unit, its healthy range, and what to do outside it."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from esper.sanctum.theme import Palette
from esper.telemetry.explanations import EXPLANATIONS


class Explain(ModalScreen[bool]):
    """A page to scroll. Gives whether the page of all keys and symbols is wanted next."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close(False)", "back"),
        Binding("question_mark,f1", "close(True)", "all keys"),
    ]

    def __init__(self, palette: Palette, metrics: Sequence[str]) -> None:
        super().__init__()
        self._palette = palette
        self._metrics = metrics

    def compose(self) -> ComposeResult:
        """One text."""
        with VerticalScroll(id="dialog"):
            yield Static(self.page())

    def page(self) -> Text:
        """The metrics, one below the other."""
        page, palette = Text(), self._palette
        for name in self._metrics:
            explanation = EXPLANATIONS[name]
            page.append(f"{name}\n", palette["title"])
            for heading, text in zip(("what", "unit", "healthy", "do"), explanation, strict=True):
                wrapped = f"\n{' ' * 10}".join(wrap(text, 54))
                page.append(f"  {heading:<8}", palette["head"]).append(f"{wrapped}\n", palette["normal"])
            page.append("\n")
        return page.append("? all keys and symbols   Esc back", palette["dim"])

    def action_close(self, more: bool) -> None:
        """Back to the screen below, or on to the page of keys."""
        self.dismiss(more)
