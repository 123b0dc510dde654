"""What every full screen has in common: header, anomalies, time line and footer around a body of its own."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.screen import Screen

from esper.sanctum.bindings import Category
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.anomalies import AnomalyStrip
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.header import Header
from esper.sanctum.widgets.held import Held
from esper.sanctum.widgets.panel import Panel
from esper.sanctum.widgets.scrubber import Scrubber
from esper.sanctum.widgets.tabs import Tabs
from esper.sanctum.widgets.too_small import TooSmall


class RunScreen(Screen[None]):
    """A screen about the run. `body` yields what it shows; `CATEGORIES` are the keys that it adds to the footer.

    Args:
        view: what its panels look at.
        name: of its tab; None for a screen that lies over one with a tab.
    """

    CATEGORIES: tuple[Category, ...]

    def __init__(self, view: ViewState, name: str | None = None) -> None:
        super().__init__(name)
        self.view = view

    def compose(self) -> ComposeResult:
        """The frame, and the body in it."""
        yield TooSmall()
        yield Header(self.view)
        with Horizontal(id="signs"):
            yield Tabs(self.view, self.name)
            yield AnomalyStrip(self.view)
        yield Held(self.view)
        with Container(id="body"):
            yield from self.body()
        yield Scrubber(self.view)
        yield Footer(self.view, *self.CATEGORIES)

    def body(self) -> ComposeResult:
        """The panels of this screen."""
        raise NotImplementedError

    def update(self) -> None:
        """Let every panel look at the state: once a tick."""
        for panel in self.query(Panel):
            panel.update()

    def on_screen_resume(self) -> None:
        """Come back to what is true now."""
        self.update()
