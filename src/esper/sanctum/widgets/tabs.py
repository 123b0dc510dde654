"""The screens by number, and which of them is open."""

from __future__ import annotations

from collections.abc import Hashable

from textual.events import Click
from textual.geometry import Size

from esper.sanctum.bindings import PLACES
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel


class Tabs(Panel):
    """Numbers and names; where it is narrow, numbers alone but for the open screen. A click goes there."""

    DEFAULT_CSS = """
    Tabs { height: 1; width: auto; padding: 0 1; }
    """

    def __init__(self, view: ViewState, here: str | None) -> None:
        super().__init__(view)
        self._here = here
        """Name of the open screen; None on one without a tab."""
        self._places: list[tuple[range, str]] = []

    def key(self) -> Hashable:
        """Always the same."""
        return None

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002 (Textual's signature)
        """What the tabs take."""
        return self._tabs(wide=viewport.width >= 110).width

    def draw(self, size: Size) -> list[Line]:  # noqa: ARG002 (it is as wide as it wants to be)
        """One line."""
        return [self._tabs(wide=self.app.size.width >= 110)]

    def _tabs(self, *, wide: bool) -> Line:
        line = self.line()
        self._places = []
        for name, place in PLACES.items():
            start, open_ = line.width, name == self._here
            line.add(place.key, "key" if open_ else "dim")
            if wide or open_:
                line.add(f" {name}", "bright" if open_ else "dim")
            self._places.append((range(start, line.width), name))
            line.add("  " if wide else " ")
        return line

    async def on_click(self, event: Click) -> None:
        """Go to the screen under the pointer."""
        offset = event.get_content_offset(self)
        for places, name in self._places:
            if offset is not None and offset.x in places:
                await self.run_action(f"app.go('{name}')")
