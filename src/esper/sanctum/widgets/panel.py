"""Panel, the base class of all panels: it draws its own lines and repaints only the lines that changed."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import getters
from textual.app import App
from textual.color import Color
from textual.content import Content
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from esper.recordings.state.state import RunState
from esper.sanctum.explanations import METRIC_HELP
from esper.sanctum.symbols import Cell, ellipsise
from esper.sanctum.theme import Palette
from esper.sanctum.view import ViewState

Row: TypeAlias = list[Segment]
"""A styled line, as wide as the panel's content."""

BORDER_MARGIN_COLS = 3
"""Columns at each end of a border that stay free of text."""
_REVERSED_ROLES = frozenset({"bad", "error", "outlier", *(f"rank{rank}" for rank in range(1, 6))})
"""Roles in reverse video, in which a space is visible."""


class StyledText:
    """Consecutive pieces of text, each with a role. The palette is applied later, by `Line.row`."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._roles: list[str] = []
        self.width = 0
        """Width of the text, columns."""

    def append(self, text: str, role: str = "normal") -> Self:
        """Append a text with a role."""
        if not text:
            return self
        self.width += len(text) if text.isascii() else cell_len(text)
        last = self._roles[-1] if self._roles else None
        if role == last or (last is not None and text.isspace() and _REVERSED_ROLES.isdisjoint((last, role))):
            self._texts[-1] += text  # fewer pieces are painted faster
        else:
            self._texts.append(text)
            self._roles.append(role)
        return self

    def append_cell(self, cell: Cell, role: str | None = None) -> Self:
        """Append a formatted value. `role` replaces the role "normal", but not the role of a missing or bad value."""
        chosen = role if role is not None and cell.role == "normal" else cell.role
        if chosen != "bad":
            return self.append(cell.text, chosen)
        text = cell.text.strip()  # "bad" is in reverse video, which must not extend to the padding
        before = len(cell.text) - len(cell.text.lstrip())
        return self.append(" " * before).append(text, "bad").append(" " * (len(cell.text) - before - len(text)))

    def pad_to(self, column: int) -> Self:
        """Append spaces up to a column; none if the text is at least as wide."""
        return self.append(" " * (column - self.width))

    def append_fitted(self, text: str, width: int, role: str = "normal", *, keep_end: bool = False) -> Self:
        """Append a text, shortened as by `ellipsise` or padded to exactly `width` columns."""
        return self.append(set_cell_size(ellipsise(text, width, keep_end=keep_end), max(width, 0)), role)

    def extend(self, other: StyledText) -> Self:
        """Append the pieces of another text."""
        self._texts += other._texts
        self._roles += other._roles
        self.width += other.width
        return self

    def in_role(self, role: str) -> StyledText:
        """Return the same text in one role."""
        return StyledText().append("".join(self._texts), role)

    def append_bar(self, fraction: float | None, width: int, role: str = "curve") -> Self:
        """Append a horizontal bar of `width` columns, filled up to a fraction (0 to 1); blank if None or not finite."""
        if fraction is None or not math.isfinite(fraction):
            return self.append(" " * max(width, 0))
        half_columns = round(min(max(fraction, 0.0), 1.0) * width * 2)
        filled = "━" * (half_columns // 2) + ("╸" if half_columns % 2 else "")
        return self.append(filled, role).append("─" * (width - len(filled)), "faint")


class Line(StyledText):
    """One line of a panel, in the styles of a palette.

    Args:
        palette: Styles of the theme.
        selected: Use the styles of the line under the cursor.
    """

    def __init__(self, palette: Palette, *, selected: bool = False) -> None:
        super().__init__()
        self._styles = palette.selected_styles if selected else palette.styles

    def row(self, width: int) -> Row:
        """Return the styled line, shortened or padded to `width` columns."""
        if self.width > width:
            self._shorten(width)
        styles = self._styles
        segments = [Segment(text, styles[role]) for text, role in zip(self._texts, self._roles, strict=True)]
        if self.width < width:
            segments.append(Segment(" " * (width - self.width), styles["normal"]))
        return segments

    def _shorten(self, width: int) -> None:
        """Shorten the line to `width` columns as `ellipsise` does, without a mark of spaces that are cut off."""
        pieces = list(zip(self._texts, self._roles, strict=True))
        rest = ellipsise("".join(self._texts).rstrip(), width)
        self._texts, self._roles, self.width = [], [], 0
        for text, role in pieces:
            piece, rest = rest[: len(text)], rest[len(text) :]
            self.append(piece, role)


class _Frame(NamedTuple):
    """Common properties of all rows of a panel."""

    size: Size
    """Size of the panel, including its borders."""
    rows: range
    """Rows of the widget that contain its lines."""
    width: int
    """Width of a line, columns."""
    left: Segment
    """Border and padding to the left of a line."""
    right: Segment
    """Border and padding to the right of a line."""
    filters: Sequence[LineFilter]
    """Textual's filters, applied to every finished row."""
    background: Color
    """Background colour that the filters receive."""


class Panel(Widget):
    """Draws the state as lines. The app calls `update` once per tick; it repaints only the lines that differ."""

    if TYPE_CHECKING:
        app = getters.app(App[Any])  # Textual's own declaration leaves the type argument of App unknown

    PANEL_TITLE: ClassVar[str] = ""
    """Initial title in the border; empty for none."""
    METRICS: ClassVar[tuple[str, ...]] = ()
    """Names of the shown metrics, keys of `METRIC_HELP`; the tooltip explains them."""

    _writes_border = False
    """True while the title or the subtitle is written."""

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = view
        self.panel_title: str | None = self.PANEL_TITLE or None
        """Text in the top border."""
        self.panel_subtitle: str | None = None
        """Text in the bottom border; if the panel has only a top border, at its right end."""
        self._border_key: Hashable = None
        """Everything that the text in the border depends on, as last written."""
        if self.METRICS:
            self.tooltip = "\n".join(f"{name}: {METRIC_HELP[name].meaning}" for name in self.METRICS)
        self._lines: list[Row] = []
        self._painted: dict[int, Strip] = {}
        """Painted rows of the widget, borders included, that are still up to date. Keyed by row."""
        self._frame: _Frame | None = None
        """Frame of the rows in `_painted`."""
        self._draw_key: tuple[Size, str, int, Hashable] | None = None
        """Everything that `_lines` depends on, as last drawn."""
        self._reported_height = -1
        """Height last reported to Textual's layout, lines."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that are shown now, keys of `METRIC_HELP`, the most important first."""
        return self.METRICS

    @property
    def metric_at_cursor(self) -> str | None:
        """Metric that the help shows first while the panel has the focus; None to show its start."""
        return None

    @property
    def state(self) -> RunState:
        """State of the run at the shown moment."""
        return self.view.source.state

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Return the lines from top to bottom. Lines that do not fit into `size` are not shown."""
        raise NotImplementedError

    def cache_key(self) -> Hashable:
        """Return what `draw_lines` depends on, except size and theme. The panel is drawn again when it changes."""
        return self.state.seq, self.view.selected_env

    def preferred_height(self) -> int:
        """Return the number of lines of the whole content, for a panel with `height: auto`."""
        raise NotImplementedError

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 (Textual's signature)
        """Return the preferred height. Textual calls this for a panel with `height: auto`."""
        self._reported_height = self.preferred_height()
        return self._reported_height

    def update(self) -> None:
        """Draw the panel if anything changed, and repaint the lines that differ."""
        if not self.size:
            return
        key = (self.size, self.view.palette.name, self.view.state_version, self.cache_key())
        if key == self._draw_key:
            return
        self._draw_key = key
        if self.styles.is_auto_height and self.preferred_height() != self._reported_height:
            self.refresh(layout=True)
        before, self._lines = self._lines, self._draw()
        self._write_border()
        changed = _changed_ranges(before, self._lines)
        if changed:
            left, width = self.gutter.left, self.outer_size.width  # Textual paints a whole row faster than a part of it
            self.refresh(*(Region(-left, first, width, count) for first, count in changed))

    def update_screen(self) -> None:
        """Update all panels of the screen after a change of shared state, such as the selected env or the cursor."""
        for panel in self.screen.query(Panel):
            panel.update()

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Discard the painted rows of these regions, or all, and have Textual paint them again.

        Textual calls this after every change of the widget; of its title, for the rows of the border only.
        """
        if self._writes_border and not regions:
            left, top = self.gutter.left, self.gutter.top
            width, height = self.outer_size
            regions = Region(-left, -top, width, 1), Region(-left, height - top - 1, width, 1)
        if regions and self._frame:
            for y in (y for region in regions for y in region.line_range):
                self._painted.pop(y + self._frame.rows.start, None)
        elif repaint:
            self._painted.clear()
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def _draw(self) -> list[Row]:
        width, height = self.size
        lines = self.draw_lines(self.size)[:height]
        rows = [line.row(width) if isinstance(line, Line) else line for line in lines]
        return rows + [self.line().row(width)] * (height - len(rows))

    def _write_border(self) -> None:
        """Write title and subtitle into the border if they changed, because writing repaints the whole border."""
        top, bottom = (bool(edge[0]) for edge in (self.styles.border_top, self.styles.border_bottom))
        key = self.panel_title, self.panel_subtitle, top, bottom, self.outer_size.width
        if key == self._border_key:
            return
        self._border_key = key
        title, subtitle = Content(self.panel_title or ""), Content(self.panel_subtitle or "")
        if top and not bottom:  # without corners, only spaces separate the title from the rule
            title = Content(" ").append(title).append(" ") if title else title
            room = self.outer_size.width - 2 - title.cell_length
            if subtitle and room >= subtitle.cell_length + 2:
                rule = Content.styled("─" * (room - subtitle.cell_length - 2), "$rule")
                title = title.append(rule).append(" ").append(subtitle).append(" ")
        else:  # a truncated number would read as a different number
            subtitle = Content(_whole_items(self.panel_subtitle or "", self.outer_size.width - 2 * BORDER_MARGIN_COLS))
        self._writes_border = True
        self.border_title, self.border_subtitle = title or None, subtitle or None
        self._writes_border = False

    def line(self, text: str = "", role: str = "normal") -> Line:
        """Return a line in the styles of the theme that begins with a text."""
        return Line(self.view.palette).append(text, role)

    def message(self, text: str) -> list[Line]:
        """Return a line in place of the content that is missing; none before the start of the run."""
        return [self.line(f" {text}", "dim")] if self.state.started else []

    def render_line(self, y: int) -> Strip:
        """Return line `y` of the content, for Textual's Line API."""
        return Strip(self._row_at(y, self.size.width), self.size.width)

    def _row_at(self, y: int, width: int) -> Row:
        """Return line `y` in any width, because Textual may paint in a new size before it reports that size."""
        row = self._lines[y] if y < len(self._lines) else self.line().row(width)
        if self._draw_key and self._draw_key[0].width == width:
            return row
        # Padding needs a style, because line filters read the style of every segment.
        return Segment.adjust_line_length(row, width, self.view.palette["normal"])

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return rows of the widget. Textual paints only the border rows: for every row it would look up all styles."""
        frame = self._frame
        # Textual may not have reported a new size yet.
        if not self._painted or frame is None or frame.size != self.outer_size:
            self._painted.clear()
            frame = self._frame = self._make_frame()
        rows: list[Strip] = []
        for y in crop.line_range:
            row = self._painted.get(y)
            if row is None:
                row = self._painted[y] = self._paint(y, frame)
            rows.append(row)
        return rows if crop.column_span == (0, frame.size.width) else [row.crop(*crop.column_span) for row in rows]

    def _make_frame(self) -> _Frame:
        styles, gutter, edge = self.styles, self.gutter, self.view.palette["faint"]
        if styles.border_left[0]:  # a theme may set a different colour for its rules
            background = self.screen.styles.background
            edge = Style.from_color((background + styles.border_left[1]).rich_color, background.rich_color)
        return _Frame(
            size=self.outer_size,
            rows=range(gutter.top, self.outer_size.height - gutter.bottom),
            width=self.size.width,
            left=Segment("│" * bool(styles.border_left[0]) + " " * styles.padding.left, edge),
            right=Segment(" " * styles.padding.right + "│" * bool(styles.border_right[0]), edge),
            filters=self.get_line_filters(),
            background=self.background_colors[1],
        )

    def _paint(self, y: int, frame: _Frame) -> Strip:
        if y not in frame.rows:
            [row] = super().render_lines(Region(0, y, frame.size.width, 1))
            return row
        line = self._row_at(y - frame.rows.start, frame.width)
        row = Strip([segment for segment in (frame.left, *line, frame.right) if segment.text], frame.size.width)
        for line_filter in frame.filters:
            row = row.apply_filter(line_filter, frame.background)
        return row

    def on_resize(self) -> None:
        """Draw in the new size."""
        self.update()

    def on_focus(self) -> None:
        """Draw the panel, which may show that keys now apply to it."""
        self.update()

    def on_blur(self) -> None:
        """Draw the panel without a mark of the focus."""
        self.update()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters without `ANSIToTruecolor`: palettes contain no ANSI colours for it to convert."""
        filters = super().get_line_filters()
        return [line_filter for line_filter in filters if not isinstance(line_filter, ANSIToTruecolor)]

    @property
    def text(self) -> str:
        """Text of the panel without its border and styles."""
        return "\n".join("".join(segment.text for segment in row).rstrip() for row in self._lines)


class DevicePanel(Panel):
    """Base class of a panel about the latest samples of the devices."""

    def cache_key(self) -> Hashable:
        """Return a key that changes with every device sample, and at the start of the run."""
        return device_key(self.state)


def device_key(state: RunState) -> tuple[Hashable, ...]:
    """Return a key that changes with every device sample, and at the start of the run."""
    return state.started is None, *(sample.seq for sample in state.devices.values())


class CyclingPanel(Panel):
    """Base class of a panel that shows one of several things first; a key shows the next one."""

    num_skipped = 0
    """Number of things to skip, wrapping around; the next one is shown first."""

    def show_next(self) -> None:
        """Show the next thing first."""
        self.num_skipped += 1
        self.update()


def _whole_items(text: str, width: int) -> str:
    """Return the leading items that fit into `width`, at least one. Items are separated by two spaces.

    The result separates them by one space if only then they fit, and ends in an ellipsis if some are left out.
    """
    items = text.split("  ")
    candidates = (
        gap.join(items[:count]) + " …" * (count < len(items))
        for count in range(len(items), 0, -1)
        for gap in ("  ", " ")
    )
    return next((line for line in candidates if len(line) <= width), items[0])


def _changed_ranges(before: Sequence[Row], after: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the ranges of lines that differ, as (first line, number of lines)."""
    if len(before) != len(after):
        return [(0, len(after))]
    ranges: list[tuple[int, int]] = []
    for y, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is not new and old != new:
            first, count = ranges.pop() if ranges and sum(ranges[-1]) == y else (y, 0)
            ranges.append((first, count + 1))
    return ranges
