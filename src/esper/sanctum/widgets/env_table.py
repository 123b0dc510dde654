"""Table of envs with one row each, and the input line of its filter."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Size
from textual.message import Message
from textual.widgets import Input, Static

from esper.recordings.events import RunStarted
from esper.recordings.state.state import EnvState
from esper.sanctum.env_filter import find_worst, sort_envs, worst_env
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.view import ViewState
from esper.sanctum.widgets import env_columns, env_summary
from esper.sanctum.widgets.env_panel import EnvRowsPanel
from esper.sanctum.widgets.header import status_label
from esper.sanctum.widgets.panel import Line, Row

_ASCENDING_COLUMNS = frozenset({"env", env_columns.STRUCTURE, "lane"})
"""Columns whose initial sort order is ascending."""
_MIN_AGGREGATES_ROWS = 30
"""Minimum height for several summary rows if not all envs fit."""
_SUMMARY_ROWS = 4
"""Maximum number of summary rows then."""


class EnvTable(EnvRowsPanel):
    """Heading, sorted rows of the envs that pass the filter, and summary rows.

    Only the rows of envs that changed are drawn again. Sorting keeps the selected env. In the initial order, the envs
    with anomalies and the ones with the lowest scores come first if not all envs fit.
    """

    METRICS = ("score", "return", "stage", "gradient norm", "loss scale")
    BINDINGS = bindings(KeyCategory.TABLE)

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._sort_column, self._descending = "env", False
        self._pinned: frozenset[int] = frozenset()
        self._worst: frozenset[int] = frozenset()
        """Envs with the lowest scores that are shown first."""
        self._following = False
        self._worst_first = False
        """True if envs with anomalies and the worst ones come first."""
        self._seconds_starting = 0
        """Seconds for which the run has been starting."""

    @property
    def metric_at_cursor(self) -> str | None:
        """Metric of the sorted column; None for a column without one, such as the number."""
        is_slot = self.state.started is not None and self._sort_column in self.state.started.slot_names
        name = "stage" if is_slot else self._sort_column
        return name if name in self.METRICS else None

    def on_mount(self) -> None:
        """Count the seconds until the run has started, because no event arrives before."""
        self._start_timer = self.set_interval(1.0, self._count_start)

    def _count_start(self) -> None:
        if self.state.started is None:
            self._seconds_starting += 1
            self.update()
        else:
            self._start_timer.stop()

    def cache_key(self) -> Hashable:
        """Return the event number, the selected env, the user's choices, and the seconds of the start."""
        choices = (self._sort_column, self._descending, self.view.env_filter, self._pinned, self._following)
        return self.state.seq, self.view.selected_env, choices, self._seconds_starting

    def wanted_height(self, limit: int, *, is_short: bool) -> int:
        """Return the height of all envs, the heading, a rule and the summary rows, at most `limit`.

        Args:
            limit: Maximum height.
            is_short: Count minimum and maximum as no rows that are needed, because other panels have little room.
        """
        started = self.state.started
        summary = len(env_summary.summary_labels(started, limit)) if started else 0
        if started and is_short and not started.structures:
            summary = 1
        return min(len(self.state.envs) + 2 + summary, limit)

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heading, the visible rows, a rule if it fits, and the summary rows."""
        width, height = size
        started = self.state.started
        if started is None:
            return self._draw_start(width, height)
        palette = self.view.palette
        layout = self._choose_layout(width - 1, started)
        severities = self.view.severity_by_env()
        envs = self._filter_envs(severities)
        summary_room = max(height - len(envs) - 2, _SUMMARY_ROWS if height >= _MIN_AGGREGATES_ROWS else 1)
        labels = env_summary.summary_labels(started, summary_room)
        room = max(height - 1 - len(labels), 1)
        visible = self.visible_envs(self._sort(envs, severities, room), room)
        self._write_titles(len(envs))
        arrow = "↓" if self._descending else "↑"
        heading, self._heading_ranges = env_columns.header_row(palette, layout, started, self._sort_column, arrow)
        rows = [heading.row(width)]
        for index in visible:
            env, severity, selected = self.state.envs[index], severities.get(index), index == self.view.selected_env
            worst = env_columns.WORST_GLYPH if index in self._worst else " "
            mark = env_columns.PIN_GLYPH if index in self._pinned else worst
            idle = self.state.idle_reason(env)
            draw = partial(
                env_columns.draw_row, palette, layout, started, env,
                severity=severity, selected=selected, mark=mark, trial=self._trial(env), idle=idle,
            )  # fmt: skip
            rows.append(self.cached_row(index, width, draw, env.revision, layout, severity, selected, mark, idle))
        if len(visible) < len(envs):
            self.draw_scroll_arrows(rows, width)
        elif height > len(rows) + len(labels):
            rows.append(self.line("─" * (width - 1), "faint").row(width))
        return rows + [line.row(width) for line in env_summary.aggregate_rows(palette, layout, started, envs, labels)]

    def _trial(self, env: EnvState) -> str | None:
        """Return the candidate of a growth that an env trains in this round; None for another run."""
        training = self.state.search.training.get(env.env) if self.state.search is not None else None
        return training.candidate if training is not None else None

    def _choose_layout(self, width: int, started: RunStarted) -> env_columns.Layout:
        """Return the layout of the columns, computed again if anything that it depends on has changed."""
        key = width, started.seq, len(self.state.blueprints), self.view.state_version
        return self.fitted(key, lambda: env_columns.choose_layout(width, started, self.state.blueprints))

    def _filter_envs(self, severities: dict[int, str]) -> Sequence[EnvState]:
        """Return the envs to show. In follow mode, select the worst of them."""
        envs: Sequence[EnvState] = self.state.envs
        if (env_filter := self.view.env_filter) is not None:
            passes = env_filter.passes
            envs = [env for env in envs if env.env in self._pinned or passes(env, severities.get(env.env))]
        if self._following and (worst := worst_env(envs, severities, self.state.score_scale)) is not None:
            self.view.selected_env = worst
        return envs

    def _sort(self, envs: Sequence[EnvState], severities: dict[int, str], room: int) -> list[int]:
        """Return the indices of the envs in their order. `room` is the number of rows for them."""
        assert self.state.started is not None
        value = env_columns.sort_value(self._sort_column, self.state.started)
        order = sort_envs(envs, value, descending=self._descending, first=self._pinned)
        self._worst_first = (self._sort_column, self._descending) == ("env", False) and len(envs) > room
        if not self._worst_first:
            self._worst = frozenset()
            return order
        healthy = [env for env in envs if env.env not in severities and env.env not in self._pinned]
        num_first = len(envs) - len(healthy)
        count = max(min(room // 4, room - 1 - num_first), 0)
        self._worst = find_worst(healthy, self._worst, count, self.state.score_scale)

        def rank(env: int) -> int:
            if env in self._pinned:
                return 0
            if env in severities:
                return 1 if severities[env] == "error" else 2
            return 3 if env in self._worst else 4

        return sorted(order, key=rank)

    def _write_titles(self, count: int) -> None:
        total = len(self.state.envs)
        column = self.state.score_name if self._sort_column == "score" else self._sort_column
        round_ = self.state.round - (not any(env.stepped for env in self.state.envs))
        of_round = f", round {round_}" if round_ > 0 else ""  # charts of the same quantity are about other rounds
        title = f"envs{of_round} ─ by {column} {'↓' if self._descending else '↑'}"
        if self._pinned:
            title += f" ─ {len(self._pinned)} pinned"
        if self._worst_first:
            title += " ─ anomalies and worst first"
        self.panel_title = title + (" ─ following the worst" if self._following else "")
        of = f"{count} of {total}" if self.view.env_filter else str(total)
        last = self._top + self.num_visible
        self.panel_subtitle = f"{self._top + 1}–{last} of {of}" if count else f"0 of {total}"

    def _draw_start(self, width: int, height: int) -> list[Line]:
        source = self.view.source
        at_present = source.live and source.playback is None
        seconds = f" {self._seconds_starting} s" if self._seconds_starting else ""
        if not at_present:
            text = "the run has not started yet"
        elif source.attached:
            text = status_label(self.view).note
        else:
            text = f"starting: {source.start_stage}…{seconds}"
        return [self.line()] * ((height - 1) // 2) + [self.line(text.center(width), "normal")]

    def sort_by(self, key: str) -> None:
        """Sort by a column; reverse the order if the table is already sorted by it."""
        already_sorted = key == self._sort_column
        self._descending = not self._descending if already_sorted else key not in _ASCENDING_COLUMNS
        self._sort_column = key
        self.update()

    def action_order(self) -> None:
        """Sort by the next column."""
        if self.state.started is not None:
            names = env_columns.sortable_columns(self.state.started)
            index = names.index(self._sort_column) if self._sort_column in names else -1  # a resumed run may lack it
            self.sort_by(names[(index + 1) % len(names)])

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

    def select(self, key: int) -> None:
        """Select an env, and stop following the worst one."""
        self._following = False
        super().select(key)


class FilterBox(Horizontal):
    """Input line of a filter, with a message about its result."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel: keep the previous filter")]

    @dataclass
    class Closed(Message):
        """The user has pressed Enter or Escape."""

        text: str
        """The filter to apply from now on: the new one after Enter, the previous one after Escape."""

    is_accepted = True
    """True if the message is not about an error, so that Enter may apply the filter."""
    previous_text = ""
    """The last applied filter."""

    def compose(self) -> ComposeResult:
        """Yield the slash, the input and the message."""
        yield Static("/")
        yield Input(compact=True, disabled=True)
        yield Static(id="message", markup=False)

    def open(self) -> None:
        """Show the input and focus it."""
        self.display = True
        field = self.query_one(Input)
        field.disabled = False
        self.previous_text = field.value
        self.screen.set_focus(field)  # at once, so that no key typed meanwhile acts on the run

    @property
    def typing(self) -> bool:
        """True while the input accepts keys."""
        return not self.query_one(Input).disabled

    @property
    def text(self) -> str:
        """The text in the input."""
        return self.query_one(Input).value

    def set_message(self, text: str, *, accepted: bool = True, invalid: bool = False) -> None:
        """Show the number of matches, or the error of the filter.

        Args:
            accepted: True if Enter may apply the filter.
            invalid: Show the message as an error.
        """
        self.is_accepted = accepted
        message = self.query_one("#message", Static)
        message.update(text)
        message.set_class(invalid, "invalid")

    def clear(self) -> None:
        """Remove the filter and hide the input."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = ""
        self._close("")

    def _close(self, text: str) -> None:
        self.query_one(Input).disabled, self.is_accepted = True, True
        self.display = bool(text.strip())
        self.post_message(self.Closed(text))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the input, unless the filter is incomplete or invalid."""
        event.stop()
        if self.is_accepted:
            self._close(event.value)
        else:
            self.query_one("#message", Static).add_class("invalid")

    def action_cancel(self) -> None:
        """Close the input and restore the previous filter."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = self.previous_text
        self._close(self.previous_text)
