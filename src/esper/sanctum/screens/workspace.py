"""The workspace screen: all runs in a list, their curves on common axes, and details of one run."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Input

from esper.recordings.history.run_filter import sort_keys
from esper.recordings.history.run_groups import differing_keys
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.screens.run_changes import RunChangesScreen
from esper.sanctum.screens.search import SearchBox
from esper.sanctum.screens.workspace_base import WorkspaceChartScreen
from esper.sanctum.screens.workspace_dialogs import KeyDialog
from esper.sanctum.view import TOAST_SECONDS, ViewState
from esper.sanctum.widgets.chart_grid import ChartGrid
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.env_table import FilterBox
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.overlay_chart import GroupLegend, OverlayChart, RunScatterChart, WorkspaceChart, shown_curves
from esper.sanctum.widgets.run_details import RunDetails
from esper.sanctum.widgets.run_list import RunFilterBox, RunList
from esper.sanctum.workspace import Grouping, Workspace

PANES = ("runs", "charts", "details")
"""Panes from left to right, which are the ids of their widgets."""
NO_BASELINE = "Select a run, and press {keys[workspace.baseline]} to make it the baseline."
MIN_CHART_SIZE = (40, 11)
"""Minimum columns and rows of a chart with its border: several curves need more room than one."""
_CHARTS_BEFORE_SCATTER = 3
"""Number of charts before that of scores and parameters."""


class WorkspaceScreen(RunChangesScreen):
    """List of the runs, overlaid curves, and details of the highlighted run; in a small terminal, one of them."""

    AUTO_FOCUS = "RunList"
    CATEGORIES = (KeyCategory.ROWS, KeyCategory.RUNS, KeyCategory.WORKSPACE)
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(KeyCategory.WORKSPACE),
        Binding("tab", "focus_pane(1)", show=False),
        Binding("shift+tab", "focus_pane(-1)", show=False),
    ]

    def __init__(self, view: ViewState, workspace: Workspace) -> None:
        super().__init__(view, workspace)
        self._charts: dict[str, WorkspaceChart] = {}
        """Charts that were shown, keyed by curve."""
        self._scatter = RunScatterChart(view, workspace)
        self._names: list[str] | None = None
        """Curves of the charts; None before the first update."""
        self._search = ""

    def body(self) -> ComposeResult:
        """Yield the three panes."""
        with Vertical(id="runs"):
            yield RunList(self.view, self.workspace)
            yield RunFilterBox(self.workspace)
        with Vertical(id="charts"):
            yield GroupLegend(self.view, self.workspace)
            yield ChartGrid([], None, MIN_CHART_SIZE)
            yield SearchBox(placeholder="text in the name of a chart   Enter keep   Esc clear")
        with Vertical(id="details"):
            yield RunDetails(self.view, self.workspace)

    @property
    def grid(self) -> ChartGrid:
        """The charts."""
        return self.query_one(ChartGrid)

    def update(self) -> None:
        """Show charts of new curves, update all panels, and show the messages of the model."""
        for text in self.workspace.pop_messages():
            self.notify(text, severity="warning", timeout=TOAST_SECONDS)
        if not self.grid.is_attached:  # the app exits
            return
        if self.app.screen is not self and isinstance(self.app.screen, WorkspaceChartScreen):
            self.app.screen.update()
            return
        names = shown_curves(self.workspace.curve_names())
        if names != self._names:
            self._names = names
            self._show_charts()
        box = self.query_one(RunFilterBox)
        if box.display and box.is_accepted:
            box.show_count()
        super().update()

    def _show_charts(self) -> None:
        """Show the charts whose name contains the text of the search."""
        charts: list[WorkspaceChart] = []
        for name in self._names or []:
            if name not in self._charts:
                self._charts[name] = OverlayChart(self.view, self.workspace, name)
            charts.append(self._charts[name])
        charts.insert(_CHARTS_BEFORE_SCATTER, self._scatter)
        self.grid.show_charts([chart for chart in charts if self._search in chart.title_text.casefold()])

    # Panes

    @property
    def _is_single(self) -> bool:
        """True if there is room for only one pane."""
        return any(self.has_class(name) for name in ("-tiny", "-slim", "-narrow"))

    @property
    def _hidden(self) -> frozenset[str]:
        if self._is_single:
            return frozenset(PANES) - {self.workspace.pane}
        hidden = self.workspace.hidden_panes
        return hidden if hidden is not None else frozenset() if self.has_class("-wide") else frozenset({"details"})

    def on_resize(self) -> None:
        """Show the panes for which there is room."""
        self.call_after_refresh(self._arrange_panes)

    def _arrange_panes(self) -> None:
        hidden = self._hidden
        for name in PANES:
            self.query_one(f"#{name}").display = name not in hidden
        self.set_class(self._is_single, "-single")
        self.set_class(not hidden, "-three")
        if self.focused is None or any(node.id in hidden for node in self.focused.ancestors):
            self._focus_first()
        self.call_after_refresh(self.update)

    def _focus_first(self) -> None:
        """Focus the list, or the first widget of the first shown pane."""
        pane = next(name for name in PANES if name not in self._hidden)
        self.set_focus(next(iter(self._widgets_of(pane)), None))

    def _widgets_of(self, pane: str) -> list[Widget]:
        if pane == "charts":
            return [chart for chart in self.grid.query(ChartPanel).results() if chart.display]
        return [self.query_one(RunList if pane == "runs" else RunDetails)]

    def action_pane(self, direction: int) -> None:
        """Hide or show the left or right pane; where there is room for only one, show the next one."""
        workspace = self.workspace
        if self._is_single:
            workspace.pane = PANES[(PANES.index(workspace.pane) + direction) % len(PANES)]
        else:
            workspace.hidden_panes = self._hidden ^ {"runs" if direction < 0 else "details"}
        self._arrange_panes()

    def action_focus_pane(self, direction: int) -> None:
        """Focus the next widget; after the last one of the only pane, show the next pane."""
        widgets = self._widgets_of(self.workspace.pane)
        if self._is_single and self.focused in [*widgets[-1:], None] and direction > 0:
            self.action_pane(1)
        elif self._is_single and self.focused in [*widgets[:1], None] and direction < 0:
            self.action_pane(-1)
        else:
            (self.focus_next if direction > 0 else self.focus_previous)()

    def on_descendant_focus(self) -> None:
        """Show the keys of charts in the footer while a chart has the focus."""
        is_chart = isinstance(self.focused, ChartPanel)
        footer = self.query_one(Footer)
        footer.categories = (KeyCategory.CHART, KeyCategory.WORKSPACE) if is_chart else self.CATEGORIES
        footer.update()

    def on_descendant_blur(self) -> None:
        """Show the keys that apply now."""
        self.on_descendant_focus()

    def focus_main(self) -> None:
        """Focus the first widget."""
        self._focus_first()

    # Charts

    def action_page(self, pages: int) -> None:
        """Show another page of charts."""
        self.grid.turn_page(pages)

    def action_move_focus(self, rows: int) -> None:
        """Focus the chart above or below."""
        self.grid.move_focus(rows)

    def on_chart_panel_left(self) -> None:
        """Focus the list, if it is shown."""
        if "runs" not in self._hidden:
            self.query_one(RunList).focus()

    def on_chart_panel_enlarged(self, request: ChartPanel.Enlarged) -> None:
        """Show a chart on the whole screen."""
        request.stop()  # the app would show it below the header of its run
        screen = WorkspaceChartScreen(self.view, self.workspace, request.panel.enlarged())
        self.view.chart_views[screen] = request.panel.charts
        self.app.push_screen(screen)

    def action_search(self) -> None:
        """Open the search for charts."""
        search = self.query_one(SearchBox)
        search.display = True
        self.set_focus(search)

    def action_close_search(self) -> None:
        """Clear the search, and close its box."""
        search = self.query_one(SearchBox)
        search.value, search.display = "", False
        self._focus_first()

    # Filter and order

    def action_filter_runs(self) -> None:
        """Open the filter."""
        if "runs" in self._hidden:
            self.workspace.pane = "runs"
            self.workspace.hidden_panes = self._hidden - {"runs"} if not self._is_single else None
            self._arrange_panes()
        self.query_one(RunFilterBox).open()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter or search while the user types."""
        if isinstance(event.input, SearchBox):
            self._search = event.value.casefold()
            self._show_charts()
        elif self.query_one(RunFilterBox).typing:
            self.query_one(RunFilterBox).preview(event.value)
            self.update()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the search, close its box, and focus the first chart."""
        if isinstance(event.input, SearchBox):
            event.input.display = False
            self.set_focus(None)
            self.action_move_focus(0)

    def on_filter_box_closed(self, event: FilterBox.Closed) -> None:
        """Apply the filter, and return to the list."""
        self.workspace.filter_by(event.text)
        self._focus_first()
        self.update()

    def action_clear(self) -> None:
        """Show all charts, or else all runs."""
        if self._search:
            self.action_close_search()
        else:
            self.query_one(RunFilterBox).clear()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the key to the app if there is nothing to clear."""
        if action == "clear":
            return bool(self._search or self.workspace.filter.text)
        return super().check_action(action, parameters)

    def action_sort(self) -> None:
        """Let the user choose the sort key."""

        def sort(keys: tuple[str, ...] | None) -> None:
            if keys is not None:
                self.workspace.sort_by(keys[0])
                self.update()

        keys = list(dict.fromkeys([*sort_keys(), *self._config_keys()]))
        self.app.push_screen(KeyDialog("Sort runs by", keys, is_several=False), sort)

    def action_reverse(self) -> None:
        """Reverse the sort order."""
        self.workspace.reverse()
        self.update()

    def _config_keys(self) -> list[str]:
        """Return the configuration keys of all runs, those that differ between the listed runs first."""
        workspace = self.workspace
        keys = (key for run in workspace.runs for key in run.config)
        return list(dict.fromkeys([*differing_keys(workspace.listed), *keys]))

    # Selection and groups

    def action_select(self) -> None:
        """Select the highlighted run, or no longer."""
        if (run := self.workspace.highlighted) is not None:
            self.workspace.toggle_selected(run.run)
            self.update()

    def action_select_all(self) -> None:
        """Select all listed runs, or none."""
        self.workspace.toggle_all()
        self.update()

    def action_group(self) -> None:
        """Group the runs in the next way."""
        workspace = self.workspace
        if workspace.grouping is Grouping.SEEDS:
            self._group_by(Grouping.ALONE)
        elif workspace.grouping is Grouping.KEYS:
            self._group_by(Grouping.SEEDS)
        else:

            def group(keys: tuple[str, ...] | None) -> None:
                self._group_by(Grouping.KEYS if keys else Grouping.SEEDS, keys or ())

            dialog = KeyDialog("Group runs by", self._config_keys(), workspace.group_keys, is_several=True)
            self.app.push_screen(dialog, group)

    def _group_by(self, grouping: Grouping, keys: tuple[str, ...] = ()) -> None:
        self.workspace.group_by(grouping, keys)
        text = " ".join(keys) if keys else grouping.value
        self.notify(f"Curves: {'one for each value of ' if keys else ''}{text}", timeout=3)
        self.update()

    def action_difference(self) -> None:
        """Show differences to the baseline, or the values themselves."""
        if not self.workspace.toggle_difference():
            self.notify(NO_BASELINE.format(keys=self.view.key_names), severity="warning")
        self.update()
