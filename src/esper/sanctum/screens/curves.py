"""The curves screen: a chart of everything that was recorded, on as many pages as the charts need."""

from __future__ import annotations

from collections.abc import Hashable

from textual.app import ComposeResult
from textual.geometry import Size
from textual.widgets import Input

from esper.common.formatting import pluralise, strip_control
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.screens.search import SearchBox, SearchScreen
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_grid import ChartGrid
from esper.sanctum.widgets.curve_chart import CurveChart, CurveGroup, group_of, sort_groups
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.panel import Line, Panel


class CurvesScreen(SearchScreen):
    """Charts in a grid, below a line with the page and the search."""

    CATEGORIES = (KeyCategory.CURVES,)
    FITS_SMALL = True
    BINDINGS = bindings(KeyCategory.CURVES)

    def __init__(self, view: ViewState, name: str) -> None:
        super().__init__(view, name)
        self._charts: dict[CurveGroup, CurveChart] = {}
        self._pinned: list[CurveGroup] = []
        self._search = ""
        self._names: list[str] = []

    def body(self) -> ComposeResult:
        """Yield the line with the page, the charts, and the hidden search box."""
        yield CurvesStatus(self.view)
        yield ChartGrid([], None)
        yield SearchBox(placeholder="text in the name of a curve   Enter keep   Esc clear")

    @property
    def grid(self) -> ChartGrid:
        """The charts."""
        return self.query_one(ChartGrid)

    def update(self) -> None:
        """Add charts of new curves, and update all panels."""
        names = self.view.curves.names
        if names != self._names:
            self._names = names
            self._sort()
        self._update_status()  # the number of pages follows from the size of the terminal
        super().update()

    def _sort(self) -> None:
        """Show the charts that match the search, the pinned ones first."""
        by_group: dict[CurveGroup, list[str]] = {}
        for name in self._names:
            by_group.setdefault(group_of(name), []).append(name)
        matching: list[CurveGroup] = []
        for group, names in by_group.items():
            chart = self._charts.setdefault(group, CurveChart(self.view, group))
            chart.names, chart.is_pinned = names, group in self._pinned
            if any(self._search in text.casefold() for text in (group.title, *names)):
                matching.append(group)
        pinned = [group for group in self._pinned if group in matching]
        others = sort_groups([group for group in matching if group not in pinned], self.view.source.state.score_name)
        self.grid.show_charts([self._charts[group] for group in (*pinned, *others)])

    def _update_status(self) -> None:
        status, grid = self.query_one(CurvesStatus), self.grid
        page = f"page {grid.page + 1} of {grid.num_pages} · {pluralise(grid.num_charts, 'chart')}"
        status.status = page if grid.num_charts else "no matching curve" if self._names else "no curve yet"
        status.status += f" · /{self._search}" if self._search else ""
        status.update()

    def on_descendant_focus(self) -> None:
        """Show the keys of charts in the footer while a chart has the focus."""
        is_chart = isinstance(self.focused, CurveChart)
        footer = self.query_one(Footer)
        footer.categories = (*self.CATEGORIES, KeyCategory.CHART) if is_chart else self.CATEGORIES
        footer.update()

    def on_descendant_blur(self) -> None:
        """Show the keys that apply now."""
        self.on_descendant_focus()

    def action_page(self, pages: int) -> None:
        """Show another page."""
        self.grid.turn_page(pages)
        self._update_status()

    def action_move_focus(self, rows: int) -> None:
        """Focus the chart above or below; the first chart of the page if none has the focus."""
        self.grid.move_focus(rows)
        self._update_status()

    def action_focus_chart(self) -> None:
        """Focus the first chart of the page."""
        self.action_move_focus(0)

    def action_pin(self) -> None:
        """Pin the focused chart to the start, or unpin it."""
        chart = self.focused
        if not isinstance(chart, CurveChart):
            self.notify("Focus a chart first, with Tab or a click.", timeout=3)
            return
        if chart.group in self._pinned:
            self._pinned.remove(chart.group)
        else:
            self._pinned.append(chart.group)
        self._sort()
        self.grid.show_page_of(chart)
        self._update_status()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while the user types."""
        self._search = event.value.casefold()
        self._sort()
        self._update_status()

    def on_input_submitted(self) -> None:
        """Keep the search, close its box, and focus the first chart."""
        super().on_input_submitted()
        self.set_focus(None)
        self.action_move_focus(0)

    def action_clear(self) -> None:
        """Show all charts."""
        self.query_one(SearchBox).value = ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys to the app: Esc if there is no search, the arrows unless a live run is shown at present."""
        if action == "focus_chart":
            return self.view.source.live and self.view.source.playback is None
        return bool(self._search) if action == "clear" else super().check_action(action, parameters)


class CurvesStatus(Panel):
    """Line with the page, the number of charts, the search, and the fraction of the recording that was read."""

    METRICS = (
        "curves",
        "score",
        "reward",
        "dependence",
        "gradient norm",
        "loss scale",
        "update",
        "heads",
        "busy",
        "phases",
    )

    status = ""

    def cache_key(self) -> Hashable:
        """Return the text and the fraction."""
        return self.status, self.view.curves.fraction_read

    def draw_lines(self, size: Size) -> list[Line]:  # noqa: ARG002 (one line of any width)
        """Draw the line."""
        fraction = self.view.curves.fraction_read
        return [self.line(f" {strip_control(self.status)}", "dim").append(f" · read {fraction:.0%}" * (fraction < 1))]
