"""Charts of equal size in rows and columns, on as many pages as they need."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.containers import Container

from esper.sanctum.widgets.chart_panel import ChartPanel

MIN_CHART_COLUMNS, MIN_CHART_ROWS = 34, 8
"""Minimum size of a chart with its border."""
_ASPECT = 4.0
"""Columns per row of a chart that is good to look at."""


class ChartGrid(Container):
    """The charts of a page. Charts on other pages are not drawn.

    Args:
        charts: All charts, in order.
        next_key: Id of the key that turns the page; the first chart names it and the page in its title. None if
            something else shows the page.
        min_size: Minimum columns and rows of a chart with its border.
    """

    def __init__(
        self,
        charts: Sequence[ChartPanel],
        next_key: str | None,
        min_size: tuple[int, int] = (MIN_CHART_COLUMNS, MIN_CHART_ROWS),
    ) -> None:
        super().__init__(*charts)
        self._min_size = min_size
        self._charts = list(charts)
        self._next_key = next_key
        self._page = 0

    @property
    def page(self) -> int:
        """Index of the page."""
        return self._page

    @property
    def num_charts(self) -> int:
        """Number of charts on all pages."""
        return len(self._charts)

    @property
    def num_pages(self) -> int:
        """Number of pages, at least 1."""
        return max(-(-len(self._charts) // self._per_page), 1)

    @property
    def _shape(self) -> tuple[int, int]:
        """Number of columns and rows of charts: as many as fit; if all fit, those that give charts a good shape."""
        count, (width, height) = max(len(self._charts), 1), self.size
        columns, rows = (max(room // least, 1) for room, least in zip((width, height), self._min_size, strict=True))
        if count >= columns * rows:
            return columns, rows
        shapes = [(number, -(-count // number)) for number in range(1, columns + 1) if -(-count // number) <= rows]
        return min(shapes, key=lambda shape: abs(math.log(width / shape[0] / (height / shape[1]) / _ASPECT)))

    @property
    def _per_page(self) -> int:
        columns, rows = self._shape
        return columns * rows

    def show_charts(self, charts: Sequence[ChartPanel]) -> None:
        """Show these charts in this order, and hide the others."""
        if charts != self._charts:
            self._charts = list(charts)
            self.mount(*(chart for chart in charts if chart.parent is None))
            places = {id(chart): place for place, chart in enumerate(charts)}
            self.sort_children(key=lambda child: places.get(id(child), len(places)))
            self._arrange()

    def turn_page(self, pages: int) -> None:
        """Show another page, after the last one the first."""
        if self.num_pages == 1:
            self.notify("All charts are shown.", timeout=3)
        self._page = (self._page + pages) % self.num_pages
        self._arrange()

    def show_first_page(self) -> None:
        """Show the first page."""
        self._page = 0
        self._arrange()

    def show_page_of(self, chart: ChartPanel) -> None:
        """Show the page of a chart."""
        if chart in self._charts:
            self._page = self._charts.index(chart) // self._per_page
            self._arrange()

    def move_focus(self, rows: int) -> None:
        """Focus the chart this many rows below the focused one; the first chart of the page if none has the focus."""
        columns, _ = self._shape
        places = [place for place, chart in enumerate(self._charts) if chart.has_focus]
        place = places[0] + rows * columns if places else self._page * self._per_page
        if 0 <= place < len(self._charts):
            self.show_page_of(self._charts[place])
            self.screen.set_focus(self._charts[place])  # at once: the next key belongs to the chart

    def on_resize(self) -> None:
        """Divide the new size."""
        self._arrange()

    def _arrange(self) -> None:
        if not self.size:
            return
        self._page = min(self._page, self.num_pages - 1)
        self.styles.grid_size_columns, self.styles.grid_size_rows = self._shape
        first = self._page * self._per_page
        shown = self._charts[first : first + self._per_page]
        for chart in self.query(ChartPanel):
            chart.display = chart in shown
            chart.note = ""
            chart.styles.column_span = 1
        if shown:  # the last chart fills the rest of its row
            columns = self.styles.grid_size_columns
            shown[-1].styles.column_span = columns - (len(shown) - 1) % columns
        if self.num_pages > 1 and self._next_key is not None:
            key = shown[0].view.key_names[self._next_key]
            shown[0].note = f"{key} {self._page + 1}/{self.num_pages}"
        self.call_after_refresh(self._update_shown)

    def _update_shown(self) -> None:
        for chart in self.query(ChartPanel):
            chart.update()
