"""Base class of the full screens: header, tabs, anomaly strip, timeline and footer around a body."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.screen import Screen
from textual.widget import Widget

from esper.sanctum.keys import KeyCategory
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.header import Header, Tabs
from esper.sanctum.widgets.panel import CyclingPanel, Panel
from esper.sanctum.widgets.problems import AnomalyStrip, PauseCausePanel
from esper.sanctum.widgets.timeline import Timeline

MIN_COLUMNS, MIN_ROWS = 45, 12
"""Smallest terminal in which the dashboard shows anything: the screens with `FITS_SMALL`."""
FULL_COLUMNS, FULL_ROWS = 80, 24
"""Smallest terminal that the other screens support."""


class RunScreen(Screen[None]):
    """A full screen about the run. Subclasses implement `body`.

    Args:
        name: Name of the tab; None for a screen that opens on top of one with a tab.
    """

    AUTO_FOCUS = ""
    CATEGORIES: tuple[KeyCategory, ...]
    """Categories of the keys that the footer shows on this screen."""
    FITS_SMALL: ClassVar[bool] = False
    """True if the body has a layout for terminals that are smaller than `FULL_COLUMNS` × `FULL_ROWS`."""

    def __init__(self, view: ViewState, name: str | None = None) -> None:
        super().__init__(name, classes="-small" if self.FITS_SMALL else None)
        self.view = view

    def compose(self) -> ComposeResult:
        """Yield the header, the status bar, the body, the timeline and the footer."""
        yield Header(self.view)
        with Horizontal(id="status-bar"):
            yield Tabs(self.view, self.name)
            yield AnomalyStrip(self.view)
        yield PauseCausePanel(self.view)
        yield TooSmall(self.view)
        with Container(id="body"):
            yield from self.body()
        yield Timeline(self.view)
        yield Footer(self.view, *self.CATEGORIES)

    @property
    def focus_chain(self) -> list[Widget]:
        """Widgets in the order in which Tab focuses them: first those of the body, then anomalies and timeline."""
        return sorted(super().focus_chain, key=lambda widget: all(node.id != "body" for node in widget.ancestors))

    def body(self) -> ComposeResult:
        """Yield the panels of this screen."""
        raise NotImplementedError

    def update(self) -> None:
        """Update all panels. The app calls this once per tick."""
        timeline = self.query_one(Timeline)
        self.set_class(self.view.source.playback is not None, "-played")
        for panel in self.query(Panel):
            panel.update()
        if self.focused is timeline and not timeline.display:  # Textual would leave the screen without a focus
            self.focus_main()

    def action_move(self, envs: int) -> None:
        """Select another env, on a screen about one env."""
        self.view.move(envs)
        self.update()

    def action_show_next(self) -> None:
        """Show the next memory, statistic or sort order."""
        next(panel for panel in self.query(Panel) if isinstance(panel, CyclingPanel) and panel.display).show_next()

    def focus_main(self) -> None:
        """Focus the widget that has the focus when the screen opens, if there is one."""
        if self.AUTO_FOCUS:
            self.query_one(self.AUTO_FOCUS).focus()

    def on_screen_resume(self) -> None:
        """Update all panels, which are not updated while another screen is open."""
        self.update()


class TooSmall(Widget):
    """Message with the required and the current terminal size."""

    def __init__(self, view: ViewState) -> None:
        super().__init__()
        self._view = view

    def render(self) -> Text:
        """Return the message, in short lines for narrow terminals."""
        width, height = self.screen.size
        size, advice = f"this terminal is {width} × {height}.", "Make it larger"
        if width < MIN_COLUMNS or height < MIN_ROWS:
            text = f"Sanctum needs {MIN_COLUMNS} × {MIN_ROWS},\n{size}\n{advice}."
        else:
            key = self._view.key_names["screens.overview"]
            text = (
                f"This screen needs {FULL_COLUMNS} × {FULL_ROWS},\n{size}\n{advice}, or press {key} for the overview."
            )
        return Text(text, justify="center")
