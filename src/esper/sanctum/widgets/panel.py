"""The base of every panel: lines drawn by hand, and only those that changed are painted again."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import ClassVar, NamedTuple, Self, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.content import Content
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from esper.sanctum.explanations import METRIC_HELP
from esper.sanctum.symbols import Cell
from esper.sanctum.theme import Palette
from esper.sanctum.view import ViewState
from esper.telemetry.state import RunState

Row: TypeAlias = list[Segment]
"""A line in its colours, as wide as there is room."""

_CORNER = 3
"""Columns at each end of a border that what stands in it leaves free."""
_REVERSED = frozenset({"bad", "error", "outlier"})
"""Roles in which a space is not the same as in all others."""


class StyledText:
    """Texts one after another, each in its role; what they look like is not said yet."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._roles: list[str] = []
        self.width = 0

    def append(self, text: str, role: str = "normal") -> Self:
        """Append a text in the style of a role."""
        if not text:
            return self
        self.width += len(text) if text.isascii() else cell_len(text)
        last = self._roles[-1] if self._roles else None
        if role == last or (last is not None and last not in _REVERSED and text.isspace()):
            self._texts[-1] += text  # fewer pieces are painted faster
        else:
            self._texts.append(text)
            self._roles.append(role)
        return self

    def append_cell(self, cell: Cell, role: str | None = None) -> Self:
        """Append a formatted value; a given role replaces the ordinary one, never that of a missing or bad value."""
        chosen = role if role is not None and cell.role == "normal" else cell.role
        if chosen != "bad":
            return self.append(cell.text, chosen)
        text = cell.text.strip()  # reversed, so only the word
        before = len(cell.text) - len(cell.text.lstrip())
        return self.append(" " * before).append(text, "bad").append(" " * (len(cell.text) - before - len(text)))

    def pad_to(self, column: int) -> Self:
        """Pad with spaces up to a column."""
        return self.append(" " * (column - self.width))

    def append_fitted(self, text: str, width: int, role: str = "normal") -> Self:
        """Append a text cut or padded to exactly `width` columns."""
        return self.append(set_cell_size(text, max(width, 0)), role)

    def extend(self, other: StyledText) -> Self:
        """Append the pieces of another."""
        self._texts += other._texts
        self._roles += other._roles
        self.width += other.width
        return self

    def append_bar(self, share: float | None, width: int, role: str = "curve") -> Self:
        """Append a share of 1 as a line over a fainter one; blank where it was not measured."""
        if share is None or not math.isfinite(share):
            return self.append(" " * max(width, 0))
        halves = round(min(max(share, 0.0), 1.0) * width * 2)
        done = "━" * (halves // 2) + ("╸" if halves % 2 else "")
        return self.append(done, role).append("─" * (width - len(done)), "faint")


class Line(StyledText):
    """One line of a panel in the making, in the colours of a theme; `here` says that the cursor is on it."""

    def __init__(self, palette: Palette, *, here: bool = False) -> None:
        super().__init__()
        self._styles = palette.selected_styles if here else palette.styles

    def row(self, width: int) -> Row:
        """The line, cut or padded to `width`."""
        styles = self._styles
        segments = [Segment(text, styles[role]) for text, role in zip(self._texts, self._roles, strict=True)]
        if self.width < width:
            segments.append(Segment(" " * (width - self.width), styles["normal"]))
        return segments if self.width <= width else Segment.adjust_line_length(segments, width)


class _Frame(NamedTuple):
    """What the rows of a panel have in common."""

    size: Size
    """Of the panel, borders and all."""
    rows: range
    """Those that hold the lines."""
    width: int
    """Of a line."""
    left: Segment
    right: Segment
    """What stands beside it."""
    filters: Sequence[LineFilter]
    """What it goes through last."""
    ground: Color
    """What stands behind it."""


class Panel(Widget):
    """Draws the state as lines. `update` is called once a tick, and repaints the lines that differ."""

    DEFAULT_CSS = """
    Panel { height: auto; }
    """
    PANEL_TITLE: ClassVar[str] = ""
    """Title in the border."""
    METRICS: ClassVar[tuple[str, ...]] = ()
    """What it shows, by the names of `telemetry.explanations`."""

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = view
        self.panel_title: str | None = self.PANEL_TITLE or None
        """What stands in the border above."""
        self.panel_subtitle: str | None = None
        """What stands in the border below; where there is none, to the right of the heading."""
        self._written: Hashable = None
        if self.METRICS:
            self.tooltip = "\n".join(f"{name}: {METRIC_HELP[name].what}" for name in self.METRICS)
        self._lines: list[Row] = []
        self._painted: dict[int, Strip] = {}
        """Rows of the widget, borders and all, that are as they were painted last."""
        self._frame: _Frame | None = None
        """Of the rows that have been painted."""
        self._drawn: tuple[Size, str, int, Hashable] | None = None
        self._lines_wanted = -1

    @property
    def state(self) -> RunState:
        """What is true now."""
        return self.view.source.state

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """The lines, from the top; those that do not fit are not shown."""
        raise NotImplementedError

    def cache_key(self) -> Hashable:
        """What `draw` depends on besides size and theme; while it stays the same, nothing is drawn."""
        return self.state.seq

    def preferred_height(self) -> int:
        """Lines that the content would like to have, where the height is left to it."""
        raise NotImplementedError

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 (Textual's signature)
        """Textual asks this where the style says `height: auto`."""
        self._lines_wanted = self.preferred_height()
        return self._lines_wanted

    def update(self) -> None:
        """Draw again if anything changed; repaint the lines that differ."""
        if not self.size:
            return
        drawn = (self.size, self.view.palette.name, self.view.state_version, self.cache_key())
        if drawn == self._drawn:
            return
        self._drawn = drawn
        if self.styles.is_auto_height and self.preferred_height() != self._lines_wanted:
            self.refresh(layout=True)
        before, self._lines = self._lines, self._draw()
        self._write_border()
        changed = _changed(before, self._lines)
        if changed:
            left, width = self.gutter.left, self.outer_size.width  # a whole row is painted faster than a piece of it
            self.refresh(*(Region(-left, first, width, count) for first, count in changed))

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Textual's, which it calls whatever it changes: all rows are painted anew, or regions of the lines."""
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
        """Write heading and note into the border, where they differ from what is there: that paints all of it."""
        top, bottom = (bool(edge[0]) for edge in (self.styles.border_top, self.styles.border_bottom))
        written = self.panel_title, self.panel_subtitle, top, bottom, self.outer_size.width
        if written == self._written:
            return
        self._written = written
        heading, note = Content(self.panel_title or ""), Content(self.panel_subtitle or "")
        if top and not bottom:  # no corners either, which would set the heading off
            heading = Content(" ").append(heading).append(" ") if heading else heading
            room = self.outer_size.width - 2 - heading.cell_length
            if note and room >= note.cell_length + 2:
                rule = Content.styled("─" * (room - note.cell_length - 2), "$rule")
                heading = heading.append(rule).append(" ").append(note).append(" ")
        else:  # half a figure would read as another
            note = Content(_whole_items(self.panel_subtitle or "", self.outer_size.width - 2 * _CORNER))
        self.border_title, self.border_subtitle = heading or None, note or None

    def line(self) -> Line:
        """An empty line in the colours of the theme."""
        return Line(self.view.palette)

    def render_line(self, y: int) -> Strip:
        """Textual's Line API: the line at `y` of the content."""
        return Strip(self._row_at(y, self.size.width), self.size.width)

    def _row_at(self, y: int, width: int) -> Row:
        """The same, in any width: Textual may paint a new size before it has told of it."""
        row = self._lines[y] if y < len(self._lines) else self.line().row(width)
        if self._drawn and self._drawn[0].width == width:
            return row
        return Segment.adjust_line_length(row, width, self.view.palette["normal"])  # filters ask each for its style

    def render_lines(self, crop: Region) -> list[Strip]:
        """Rows of the widget. Textual draws those of its border; for each of the others it would look up all styles."""
        frame = self._frame
        # It may not have told of a new size yet.
        if not self._painted or frame is None or frame.size != self.outer_size:
            self._painted.clear()
            frame = self._frame = self._find_frame()
        rows: list[Strip] = []
        for y in crop.line_range:
            row = self._painted.get(y)
            if row is None:
                row = self._painted[y] = self._paint(y, frame)
            rows.append(row)
        return rows if crop.column_span == (0, frame.size.width) else [row.crop(*crop.column_span) for row in rows]

    def _find_frame(self) -> _Frame:
        styles, gutter, edge = self.styles, self.gutter, self.view.palette["faint"]
        if styles.border_left[0]:  # a theme may give its rules a colour of their own
            ground = self.screen.styles.background
            edge = Style.from_color((ground + styles.border_left[1]).rich_color, ground.rich_color)
        return _Frame(
            size=self.outer_size,
            rows=range(gutter.top, self.outer_size.height - gutter.bottom),
            width=self.size.width,
            left=Segment("│" * bool(styles.border_left[0]) + " " * styles.padding.left, edge),
            right=Segment(" " * styles.padding.right + "│" * bool(styles.border_right[0]), edge),
            filters=self.get_line_filters(),
            ground=self.background_colors[1],
        )

    def _paint(self, y: int, frame: _Frame) -> Strip:
        """The row at `y` of the widget."""
        if y not in frame.rows:
            [row] = super().render_lines(Region(0, y, frame.size.width, 1))
            return row
        line = self._row_at(y - frame.rows.start, frame.width)
        row = Strip([each for each in (frame.left, *line, frame.right) if each.text], frame.size.width)
        for each in frame.filters:
            row = row.apply_filter(each, frame.ground)
        return row

    def on_resize(self) -> None:
        """A new size is a new drawing."""
        self.update()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's, without the one that looks at every piece for a colour of the terminal: a palette has none."""
        return [each for each in super().get_line_filters() if not isinstance(each, ANSIToTruecolor)]

    @property
    def text(self) -> str:
        """What stands in the panel, without its colours."""
        return "\n".join("".join(segment.text for segment in row).rstrip() for row in self._lines)


def _whole_items(text: str, width: int) -> str:
    """Of the items of a text, which are two spaces apart, those that fit, with one space if need be; at least one."""
    items = text.split("  ")
    fitting = (gap.join(items[:count]) for count in range(len(items), 0, -1) for gap in ("  ", " "))
    return next((line for line in fitting if len(line) <= width), items[0])


def _changed(before: Sequence[Row], after: Sequence[Row]) -> list[tuple[int, int]]:
    """Stretches of lines that differ: the first of each, and how many."""
    if len(before) != len(after):
        return [(0, len(after))]
    stretches: list[tuple[int, int]] = []
    for y, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is not new and old != new:
            first, count = stretches.pop() if stretches and sum(stretches[-1]) == y else (y, 0)
            stretches.append((first, count + 1))
    return stretches
