"""Why a run is held, in full, and what leads on."""

from __future__ import annotations

from collections.abc import Hashable

from rich.cells import set_cell_size
from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.holds import hold_of
from esper.sanctum.symbols import STATUSES, shorten, wrapped
from esper.sanctum.widgets.panel import Line, Panel

_MOST_LINES = 6
"""Of a reason: some libraries write whole pages."""


class Held(Panel):
    """Below the first lines of every screen, while a fault holds the run."""

    DEFAULT_CSS = """
    Held { height: auto; padding: 0 1; display: none; }
    Held.-held { display: block; }
    """

    def update(self) -> None:
        """Come, or go."""
        self.set_class(self.state.cause is not None, "-held")
        super().update()

    def key(self) -> Hashable:
        """Of the state, only this."""
        return self.state.cause, self.state.reason

    def wanted_height(self) -> int:
        """As many lines as the text takes."""
        return len(self._texts(self.app.size.width - 2))

    def draw(self, size: Size) -> list[Line]:
        """The reason in the colour of an error, then what leads on."""
        return [self.line().add(text, role) for text, role in self._texts(size.width)]

    def _texts(self, width: int) -> list[tuple[str, str]]:
        """Lines and their roles."""
        cause = self.state.cause
        if cause is None:
            return []
        held = STATUSES["HELD"]
        reason = wrapped(f"{held.glyph} {plain(self.state.reason or '')}", width)
        if len(reason) > _MOST_LINES:
            reason[_MOST_LINES - 1 :] = [shorten(" ".join(reason[_MOST_LINES - 1 :]), width)]
        way = [f"  {text}" for text in wrapped(hold_of(cause).way, width - 2)] if self.view.source.live else []
        return [*((set_cell_size(text, width), "error") for text in reason), *((text, "bright") for text in way)]
