"""What every full screen has in common: header, anomalies, time line and footer around a body of its own."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.screen import Screen
from textual.widget import Widget

from esper.sanctum.bindings import KeyCategory
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.header import Header, Tabs
from esper.sanctum.widgets.panel import Panel
from esper.sanctum.widgets.problems import AnomalyStrip, PauseCausePanel
from esper.sanctum.widgets.scrubber import Timeline


class RunScreen(Screen[None]):
    """A screen about the run. `body` yields what it shows; `CATEGORIES` are the keys that it adds to the footer.

    Args:
        view: what its panels look at.
        name: of its tab; None for a screen that lies over one with a tab.
    """

    CATEGORIES: tuple[KeyCategory, ...]

    def __init__(self, view: ViewState, name: str | None = None) -> None:
        super().__init__(name)
        self.view = view

    def compose(self) -> ComposeResult:
        """The frame, and the body in it."""
        yield TooSmall()
        yield Header(self.view)
        with Horizontal(id="status-bar"):
            yield Tabs(self.view, self.name)
            yield AnomalyStrip(self.view)
        yield PauseCausePanel(self.view)
        with Container(id="body"):
            yield from self.body()
        yield Timeline(self.view)
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


WIDTH, HEIGHT = 80, 24
"""The smallest terminal with a layout."""


class TooSmall(Widget):
    """Says what is needed and what there is."""

    DEFAULT_CSS = """
    TooSmall { display: none; width: 100%; height: 100%; content-align: center middle; text-align: center; }
    """

    def render(self) -> Text:
        """The message; it fits wherever a word fits."""
        width, height = self.app.size
        text = f"Sanctum needs {WIDTH} × {HEIGHT},\nthis terminal is {width} × {height}.\nMake it larger."
        return Text(text, justify="center")
