"""Table of envs with one row each, and the input line of its filter."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.widgets import Input, Static

from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.env_filter import EnvPredicate, parse_filter, sort_envs, worst_env, worst_severity_by_env
from esper.sanctum.view import ViewState
from esper.sanctum.widgets import env_columns
from esper.sanctum.widgets.env_panel import EnvRowsPanel
from esper.sanctum.widgets.panel import Line, Row
from esper.telemetry.state import EnvState

_ASCENDING_COLUMNS = frozenset({"env", "lane"})
"""Columns whose initial sort order is ascending."""


class EnvTable(EnvRowsPanel):
    """Heading, sorted rows of the envs that pass the filter, and summary rows.

    Only the rows of envs that changed are drawn again. Sorting keeps the selected env.
    """

    METRICS = ("accuracy", "reward", "stage", "gradient norm", "loss scale")
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.TABLE)]

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._sort_column, self._descending = "env", False
        self._column_ranges: list[tuple[range, str]] = []
        """Columns of the terminal that each heading occupies, for clicks."""
        self._filter: tuple[str, EnvPredicate] | None = None
        self._pinned: frozenset[int] = frozenset()
        self._following = False

    def cache_key(self) -> Hashable:
        """Return the event number, the selected env, and the user's choices."""
        choices = (self._sort_column, self._descending, self.filter, self._pinned, self._following)
        return self.state.seq, self.view.selected_env, choices

    def preferred_height(self) -> int:
        """Return the height of all envs, the heading, a rule and the summary rows."""
        return len(self.state.envs) + 2 + len(env_columns.AGGREGATES)

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heading, the visible rows, a rule if it fits, and one or three summary rows."""
        width, height = size
        started = self.state.started
        if started is None:
            return self._draw_start(width, height)
        palette = self.view.palette
        layout = env_columns.choose_layout(width - 1, started)
        severities = worst_severity_by_env(self.state)
        envs = self._filter_and_sort(severities)
        names = list(env_columns.AGGREGATES)[: 3 if height >= min(len(envs) + 5, 30) else 1]
        visible = self.visible_rows([env.env for env in envs], max(height - 1 - len(names), 1))
        self._write_titles(len(envs))
        arrow = "↓" if self._descending else "↑"
        heading, self._column_ranges = env_columns.header_row(palette, layout, started.slots, self._sort_column, arrow)
        rows = [heading.row(width)]
        for index in visible:
            env, severity, selected = self.state.envs[index], severities.get(index), index == self.view.selected_env
            pinned = index in self._pinned
            draw = partial(
                env_columns.draw_row, palette, layout, started, env, severity=severity, selected=selected, pinned=pinned
            )
            rows.append(self.cached_row(env, width, draw, layout, severity, selected, pinned))
        if len(visible) < len(envs):
            self.draw_scroll_arrows(rows, width)
        elif height > len(rows) + len(names):
            rows.append(self.line().append("─" * (width - 1), "faint").row(width))
        return rows + [line.row(width) for line in env_columns.aggregate_rows(palette, layout, started, envs, names)]

    def _filter_and_sort(self, severities: dict[int, str]) -> list[EnvState]:
        """Return the envs to show in their order. In follow mode, select the worst of them."""
        assert self.state.started is not None
        envs: Sequence[EnvState] = self.state.envs
        if self._filter is not None:
            passes = self._filter[1]
            envs = [env for env in envs if env.env in self._pinned or passes(env, severities.get(env.env))]
        if self._following and (worst := worst_env(envs, severities)) is not None:
            self.view.selected_env = worst
        value = env_columns.sort_value(self._sort_column, self.state.started)
        order = sort_envs(envs, value, descending=self._descending, first=self._pinned)
        return [self.state.envs[index] for index in order]

    def _write_titles(self, count: int) -> None:
        total = len(self.state.envs)
        title = f"envs ─ by {self._sort_column} {'↓' if self._descending else '↑'}"
        if self._pinned:
            title += f" ─ {len(self._pinned)} pinned"
        self.panel_title = title + (" ─ following the worst" if self._following else "")
        of = f"{count} of {total}" if self.filter else str(total)
        last = self._top + len(self._visible_envs)
        self.panel_subtitle = f"{self._top + 1}–{last} of {of}" if count else f"0 of {total}"

    def _draw_start(self, width: int, height: int) -> list[Line]:
        at_present = self.view.source.live and self.view.source.playback is None
        text = "starting: loading torch…" if at_present else "the run has not started yet"
        return [self.line()] * ((height - 1) // 2) + [self.line().append(text.center(width), "normal")]

    @property
    def filter(self) -> str:
        """Text of the filter; empty for none."""
        return self._filter[0] if self._filter else ""

    @property
    def num_matching(self) -> int:
        """Number of envs that pass the filter; without a filter, number of envs."""
        if self._filter is None:
            return len(self.state.envs)
        passes, severities = self._filter[1], worst_severity_by_env(self.state)
        return sum(passes(env, severities.get(env.env)) for env in self.state.envs)

    def set_filter(self, text: str) -> None:
        """Show only the envs that pass a filter, and pinned ones; an empty text shows all.

        Raises:
            FilterError: The filter is invalid; the previous one remains.
        """
        started = self.state.started
        predicate = parse_filter(text, started.lanes if started else [])
        self._filter = (text, predicate) if text.strip() else None
        self.update()

    def sort_by(self, column: str) -> None:
        """Sort by a column; reverse the order if the table is already sorted by it."""
        already_sorted = column == self._sort_column
        self._descending = not self._descending if already_sorted else column not in _ASCENDING_COLUMNS
        self._sort_column = column
        self.update()

    def action_order(self) -> None:
        """Sort by the next column."""
        if self.state.started is not None:
            names = env_columns.sortable_columns(self.state.started.slots)
            self.sort_by(names[(names.index(self._sort_column) + 1) % len(names)])

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.sort_by(self._sort_column)

    def action_follow(self) -> None:
        """Start or stop following the worst env; moving the cursor also stops it."""
        self._following = not self._following
        self.update()

    def action_pin(self) -> None:
        """Pin the selected env to the top, or unpin it."""
        self._pinned ^= {self.view.selected_env}
        self.update()

    def select(self, env: int) -> None:
        """Select an env, and stop following the worst one."""
        self._following = False
        super().select(env)

    def on_click(self, event: Click) -> None:
        """Sort by the clicked heading. The base class handles clicks on rows."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y == 0:
            for columns, name in self._column_ranges:
                if offset.x in columns:
                    self.sort_by(name)
            event.prevent_default()


class FilterBox(Horizontal):
    """Input line of a filter, with a message about its result."""

    DEFAULT_CSS = """
    FilterBox { height: auto; max-height: 3; display: none; }
    FilterBox > Static { width: auto; padding: 0 1; color: $heading; }
    FilterBox > #message { width: 1fr; }
    FilterBox > #message.invalid { color: $error; }
    FilterBox > Input { width: 24; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel: keep the previous filter")]

    @dataclass
    class Typed(Message):
        """The text has changed."""

        text: str

    @dataclass
    class Closed(Message):
        """The user has pressed Enter or Escape."""

        text: str
        """The filter to apply from now on: the new one after Enter, the previous one after Escape."""

    def compose(self) -> ComposeResult:
        """Yield the slash, the input and the message."""
        yield Static("/")
        yield Input(compact=True, placeholder="acc<0.5 stage:blending anomaly", disabled=True)
        yield Static(id="message")

    def open(self) -> None:
        """Show the input and focus it."""
        self.display = True
        field = self.query_one(Input)
        field.disabled = False
        self._previous_text = field.value
        field.focus()

    @property
    def typing(self) -> bool:
        """True while the input accepts keys."""
        return not self.query_one(Input).disabled

    def set_message(self, text: str, *, invalid: bool = False) -> None:
        """Show the result of the filter, or, if it is invalid, why. Enter does not accept an invalid filter."""
        message = self.query_one("#message", Static)
        message.update(text)
        message.set_class(invalid, "invalid")

    def clear(self) -> None:
        """Remove the filter and hide the input."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = ""
        self._close("")

    def _close(self, text: str) -> None:
        self.query_one(Input).disabled = True
        self.display = bool(text.strip())
        self.post_message(self.Closed(text))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Post the new text as a `Typed` message."""
        event.stop()
        self.post_message(self.Typed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the input, unless the filter is invalid."""
        event.stop()
        if not self.query_one("#message", Static).has_class("invalid"):
            self._close(event.value)

    def action_cancel(self) -> None:
        """Close the input and restore the previous filter."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = self._previous_text
        self._close(self._previous_text)
