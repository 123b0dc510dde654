"""In place of everything, where the terminal is smaller than the smallest layout."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget

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
