"""Base class of a panel that is a chart: cursor, zoom, smoothing, logarithmic axis, full screen."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.events import Click, Leave, MouseMove, MouseScrollDown, MouseScrollUp
from textual.geometry import Size
from textual.message import Message

from esper.common.plots.chart import Chart, Frame, Look
from esper.common.plots.grid import Y_AXIS_COLUMNS, TextLine
from esper.sanctum.chart_view import ChartView
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.theme import Palette
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.paced_panel import PacedPanel
from esper.sanctum.widgets.panel import BORDER_MARGIN_COLS, Line, Row

_ZOOM = 0.5
"""Visible fraction of the x axis after one zoom step."""
_PAN = 0.5
"""Length of one pan step, as a fraction of the visible part."""


class ChartPanel(PacedPanel, can_focus=True):
    """A chart. Subclasses implement `chart`.

    The x axes of all charts of a screen with equal names have one cursor and one zoom. While the panel has the focus,
    the keys of the category "Chart" apply to it.
    """

    BINDINGS = bindings(KeyCategory.CHART)
    HAS_RUN_AXES: ClassVar[bool] = False
    """True if the x axis of the chart is the one that the user has chosen for charts over the whole run."""

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self.note = ""
        """Text after the title."""
        self.changes = ""
        """Text before the title: that only a part of the x axis is visible, or that the curves are smoothed."""
        self._shown: Chart | None = None
        """The chart as last drawn."""
        self._frame_of_plot: Frame | None = None
        """Place of its plot; None if it did not fit."""

    @dataclass
    class Enlarged(Message):
        """Request to the app: show a chart on the whole screen."""

        panel: ChartPanel

    class Left(Message):
        """Notice to the screen: the user leaves the chart."""

    @property
    def charts(self) -> ChartView:
        """Choices of the user for the charts of this screen."""
        return self.view.charts_on(self.screen)

    @property
    def metric_at_cursor(self) -> str | None:
        """Metric of the chart."""
        return next(iter(self.metrics), None)

    @property
    def is_ready(self) -> bool:
        """True if `chart` can be called: by default, if the run has started."""
        return self.state.started is not None

    def chart(self) -> Chart | None:
        """Return the chart of the shown state; None if there is nothing to draw."""
        raise NotImplementedError

    def empty_message(self) -> str:
        """Return the text of a panel without a chart."""
        return "no value yet"

    def name_in_title(self) -> str:
        """Return the title: by default that of the class, or the names of the quantity and of the x axis."""
        return self.PANEL_TITLE or (self._shown.title if self._shown is not None else "")

    @property
    def growth_note(self) -> str:
        """End of the title of a chart by round: in a growth, a round mixes trials with trainings that are compared."""
        return "" if self.state.search is None else " ─ trials and comparisons"

    def summary(self, chart: Chart) -> str:
        """Return the text in the border if the chart has no cursor: by default the values of the last point."""
        return chart.readout()

    def enlarged(self) -> ChartPanel:
        """Return another panel with the same chart, for the whole screen."""
        return type(self)(self.view)

    def cursor_on(self, x_axis: str) -> float | None:
        """Return the position of the cursor on the x axis of this name; None if there is no cursor."""
        return self.charts.cursor_on(x_axis)

    def place_cursor(self, x_axis: str, x: float | None) -> None:
        """Move the cursor, by key or click, to a position on the x axis of this name; None to remove it."""
        self.charts.set_cursor(x_axis, x)

    def update(self) -> None:
        """Draw the chart if anything changed, unless it is hidden, as on another page of a grid."""
        if self.display:
            super().update()

    def cache_key(self) -> Hashable:
        """Return the key of a paced panel, and the choices of the user."""
        return super().cache_key(), self.chart_key

    @property
    def chart_key(self) -> Hashable:
        """The part of the cache key that all charts need."""
        return self.charts.version, self.has_focus, self.note

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the chart; its title and the values at the cursor are in the border."""
        self._shown = self._frame_of_plot = None
        chart = self.chart() if self.is_ready else None
        if chart is None:
            self.panel_title, self.panel_subtitle = self.name_in_title() or None, None
            return self.message(self.empty_message())
        charts, x_axis = self.charts, chart.x_axis.name
        cursor, window = self.cursor_on(x_axis), charts.windows.get(x_axis)
        is_logarithmic = chart.look.is_logarithmic ^ (chart.quantity.name in charts.logarithmic)
        measured = chart.with_look(Look(window, cursor, is_logarithmic))
        chart = self._shown = measured.smoothed(charts.smoothing)
        changes = ["zoomed"] * (window is not None) + [f"mean of {charts.smoothing}"] * (chart is not measured)
        self.changes = f"{', '.join(changes)} ─ " if changes else ""  # first: what does not fit is cut at the end
        focus = "▸ " if self.has_focus else ""
        title = " ─ ".join([focus + self.changes + self.name_in_title(), *filter(None, [self.note])])
        room = self.outer_size.width - 2 * BORDER_MARGIN_COLS
        readout = _shortened(self.summary(measured), room) if cursor is None else measured.readout(cursor)
        has_room = bool(self.styles.border_bottom[0])
        has_name = any(curve.name == chart.quantity.name for curve in chart.curves)
        named = f"{chart.quantity.name} ─ {readout}"
        short = focus + (readout if has_name or cell_len(named) > room else named)
        self.panel_title = title if has_room or cursor is None else short
        self.panel_subtitle = readout if has_room or cursor is None else None
        has_changes_above = bool(changes) and not has_room and cursor is not None  # the readout is the title
        frame = self._frame_of_plot = chart.frame(size.width, size.height - has_changes_above)
        plot = chart.lines_in(frame) if frame is not None else []
        rows = [paint(line, self.view.palette, size.width) for line in plot]
        above = [self.line(f" {', '.join(changes)}", "dim").row(size.width)] if has_changes_above else []
        return [*above, *rows]

    def plot_columns(self) -> range:
        """Return the columns of the panel's content that the plot occupies; empty if it was not drawn."""
        start = Y_AXIS_COLUMNS + 2
        return range(start, start + self._frame_of_plot.width) if self._frame_of_plot is not None else range(0)

    def column_of(self, x: float) -> int | None:
        """Return the column of the panel's content at a position on the x axis; None if it is not visible."""
        if self._frame_of_plot is None:
            return None
        column = self.plot_columns().start + self._frame_of_plot.column(x)
        return column if column in self.plot_columns() else None

    def position_at(self, column: int) -> float | None:
        """Return the position of the point nearest to a column of the panel's content; None if there is no point."""
        plot, frame, chart = self.plot_columns(), self._frame_of_plot, self._shown
        if frame is None or chart is None or column not in plot:
            return None
        x = frame.x_at(column - plot.start)
        return min(_around(chart, x), key=lambda position: abs(position - x), default=None)

    def action_move_cursor(self, columns: int) -> None:
        """Move the cursor by columns of the plot, at least by one point; a new cursor is at the last point."""
        chart, frame = self._shown, self._frame_of_plot
        if chart is None or frame is None or not len(chart.positions):
            return
        positions, cursor = chart.positions, chart.look.cursor
        if cursor is None:
            self._set_cursor(float(positions[-1]))
            return
        wanted = frame.x_at(frame.column(cursor) + columns)
        beyond = [x for x in _around(chart, cursor) if (x > cursor) == (columns > 0) and x != cursor]
        if beyond:
            nearest = min(_around(chart, wanted), key=lambda x: abs(x - wanted))
            passed = (nearest - cursor) * columns > 0
            self._set_cursor(nearest if passed else beyond[0])

    def _set_cursor(self, x: float | None) -> None:
        chart = self._shown
        if chart is None:
            return
        charts = self.charts
        self.place_cursor(chart.x_axis.name, x)
        if x is not None and chart.look.window is not None:  # the visible part follows the cursor
            first, last = chart.look.window
            shift = min(x - first, 0.0) or max(x - last, 0.0)
            if shift:
                charts.set_window(chart.x_axis.name, (first + shift, last + shift))
        self.update_screen()

    def action_zoom(self, steps: int) -> None:
        """Zoom in (1) or out (-1) around the cursor, or around the right end of the x axis."""
        if self._shown is not None and self._frame_of_plot is not None:
            window = self._frame_of_plot.window
            self._zoom(steps, self._shown.look.cursor if self._shown.look.cursor is not None else window[1])

    def _zoom(self, steps: int, centre: float) -> None:
        chart, frame = self._shown, self._frame_of_plot
        if chart is None or frame is None:
            return
        first, last = frame.window
        factor = _ZOOM**steps
        start, end = centre - (centre - first) * factor, centre + (last - centre) * factor
        axis = chart.x_axis
        if end - start >= axis.last - axis.first:
            self.charts.set_window(axis.name, None)
        elif end - start >= (axis.last - axis.first) / max(len(chart.positions), 1):
            shift = max(axis.first - start, 0.0) or min(axis.last - end, 0.0)
            self.charts.set_window(axis.name, (start + shift, end + shift))
        self.update_screen()

    def action_pan(self, steps: int) -> None:
        """Move the visible part of the x axis to the right (1) or to the left (-1)."""
        chart = self._shown
        if chart is None or chart.look.window is None:
            self.notify("The whole x axis is visible: zoom in first.", timeout=3)
            return
        first, last = chart.look.window
        wanted = steps * _PAN * (last - first)
        shift = min(max(wanted, chart.x_axis.first - first), chart.x_axis.last - last)
        self.charts.set_window(chart.x_axis.name, (first + shift, last + shift))
        self.update_screen()

    def action_whole_range(self) -> None:
        """Show the whole x axis."""
        if self._shown is not None:
            self.charts.set_window(self._shown.x_axis.name, None)
            self.update_screen()

    def action_logarithmic(self) -> None:
        """Draw the quantity on a logarithmic axis, or no longer."""
        if self._shown is not None:
            self.charts.toggle_logarithmic(self._shown.quantity.name)
            self.update_screen()

    def action_smooth(self) -> None:
        """Draw a moving mean over more points, or the values themselves."""
        self.charts.smooth_more()
        self.update_screen()

    def action_run_axis(self) -> None:
        """Choose the next x axis of charts over the whole run."""
        if self.HAS_RUN_AXES:
            self.charts.next_run_axis()
            self.update_screen()
        elif self._shown is not None:
            self.notify(f"This chart is always by {self._shown.x_axis.name}.", timeout=3)

    def action_enlarge(self) -> None:
        """Show the chart on the whole screen."""
        self.post_message(self.Enlarged(self))

    def action_leave(self) -> None:
        """Remove the cursor, then leave the chart."""
        if self._shown is not None and self._shown.look.cursor is not None:
            self._set_cursor(None)
        else:
            self.screen.set_focus(None)
            self.post_message(self.Left())

    def on_click(self, event: Click) -> None:
        """Move the cursor to the pointer; show the chart on the whole screen on a double click."""
        if (x := self._position_of_pointer(event)) is not None:
            self._set_cursor(x)
        if event.chain == 2:
            self.action_enlarge()

    def on_mouse_move(self, event: MouseMove) -> None:
        """Show the cursor at the pointer."""
        x = self._position_of_pointer(event)
        if x is not None and self._shown is not None:
            self.charts.set_cursor(self._shown.x_axis.name, x)
            self.update_screen()

    def _position_of_pointer(self, event: Click | MouseMove) -> float | None:
        offset = event.get_content_offset(self)
        return self.position_at(offset.x) if offset is not None else None

    def on_leave(self, event: Leave) -> None:
        """Remove the cursor of the pointer; that of a focused chart stays."""
        if event.node is self and not self.has_focus and self._shown is not None:
            self.charts.set_cursor("", None)
            self.update_screen()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Zoom in around the pointer."""
        self._zoom_at_pointer(event, 1)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Zoom out around the pointer."""
        self._zoom_at_pointer(event, -1)

    def _zoom_at_pointer(self, event: MouseScrollUp | MouseScrollDown, steps: int) -> None:
        offset, frame = event.get_content_offset(self), self._frame_of_plot
        if offset is not None and frame is not None and offset.x in self.plot_columns():
            self._zoom(steps, frame.x_at(offset.x - self.plot_columns().start))


def _shortened(readout: str, width: int) -> str:
    """Return the values of a chart, with abbreviations if they do not fit: `82.7  q 65.9–86.8  min 39.8  max 92.2`."""
    if cell_len(readout.replace("  ", " ")) <= width:
        return readout
    return readout.replace("median ", "", 1).replace("quartiles ", "q ").replace(" to ", "–")


def paint(line: TextLine, palette: Palette, width: int) -> Row:
    """Return a line of a chart in the styles of a theme, shortened or padded to `width` columns."""
    plain = Line(palette)
    for text, role, ground in line:
        if ground:
            return _paint_filled(line, palette, width)
        plain.append(text, role)
    return plain.row(width)


def _paint_filled(line: TextLine, palette: Palette, width: int) -> Row:
    """As `paint`, for a line with filled cells, in which spaces are visible."""
    row = [
        Segment(text, palette.filled(role, ground) if ground else palette[role]) for text, role, ground in line if text
    ]
    return Segment.adjust_line_length(row, width, palette["normal"])


def _around(chart: Chart, x: float) -> list[float]:
    """Return the positions of up to three points around a position on the x axis."""
    positions = chart.positions
    index = bisect_left(positions, x)
    return [float(position) for position in positions[max(index - 1, 0) : index + 2]]
