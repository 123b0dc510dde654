"""The env table: a row per env, steady under the cursor, drawn again only where an env changed."""

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

_UPWARDS = frozenset({"env", "lane"})
"""Columns that are read from the least to the greatest."""


class EnvTable(EnvRowsPanel):
    """A heading, the envs that pass the filter in the chosen order, and their medians and extremes."""

    METRICS = ("accuracy", "reward", "stage", "gradient norm", "loss scale")
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.TABLE)]

    def __init__(self, view: ViewState) -> None:
        super().__init__(view)
        self._by, self._descending = "env", False
        self._spans: list[tuple[range, str]] = []
        self._filter: tuple[str, EnvPredicate] | None = None
        self._pinned: frozenset[int] = frozenset()
        self._following = False

    def cache_key(self) -> Hashable:
        """The state, and what the user has chosen."""
        chosen = (self._by, self._descending, self.filter, self._pinned, self._following)
        return self.state.seq, self.view.selected_env, chosen

    def preferred_height(self) -> int:
        """Every env, the heading, a rule and the summaries."""
        return len(self.state.envs) + 2 + len(env_columns.AGGREGATES)

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Heading, the rows in sight, a rule where there is room, medians; least and greatest where there is more."""
        width, height = size
        started = self.state.started
        if started is None:
            return self._starting(width, height)
        palette = self.view.palette
        layout = env_columns.choose_layout(width - 1, started)
        severities = worst_severity_by_env(self.state)
        envs = self._choose(severities)
        names = list(env_columns.AGGREGATES)[: 3 if height >= min(len(envs) + 5, 30) else 1]
        shown = self.visible_rows([env.env for env in envs], max(height - 1 - len(names), 1))
        self._label(len(envs))
        arrow = "↓" if self._descending else "↑"
        heading, self._spans = env_columns.header_row(palette, layout, started.slots, self._by, arrow)
        rows = [heading.row(width)]
        for index in shown:
            env, severity, here = self.state.envs[index], severities.get(index), index == self.view.selected_env
            pinned = index in self._pinned
            draw = partial(
                env_columns.draw_row, palette, layout, started, env, severity=severity, here=here, pinned=pinned
            )
            rows.append(self.cached_row(env, width, draw, layout, severity, here, pinned))
        if len(shown) < len(envs):
            self.draw_scroll_arrows(rows, width)
        elif height > len(rows) + len(names):
            rows.append(self.line().append("─" * (width - 1), "faint").row(width))
        return rows + [line.row(width) for line in env_columns.aggregate_rows(palette, layout, started, envs, names)]

    def _choose(self, severities: dict[int, str]) -> list[EnvState]:
        """The envs to show, in their order."""
        assert self.state.started is not None
        envs: Sequence[EnvState] = self.state.envs
        if self._filter is not None:
            passes = self._filter[1]
            envs = [env for env in envs if env.env in self._pinned or passes(env, severities.get(env.env))]
        if self._following and (worst := worst_env(envs, severities)) is not None:
            self.view.selected_env = worst
        value = env_columns.sort_value(self._by, self.state.started)
        order = sort_envs(envs, value, descending=self._descending, first=self._pinned)
        return [self.state.envs[index] for index in order]

    def _label(self, count: int) -> None:
        total = len(self.state.envs)
        title = f"envs ─ by {self._by} {'↓' if self._descending else '↑'}"
        if self._pinned:
            title += f" ─ {len(self._pinned)} pinned"
        self.panel_title = title + (" ─ following the worst" if self._following else "")
        of = f"{count} of {total}" if self.filter else str(total)
        self.panel_subtitle = f"{self._top + 1}–{self._top + len(self._shown)} of {of}" if count else f"none of {total}"

    def _starting(self, width: int, height: int) -> list[Line]:
        present = self.view.source.live and self.view.source.playback is None
        text = "starting: loading torch…" if present else "the recording has no run yet"
        return [self.line()] * ((height - 1) // 2) + [self.line().append(text.center(width), "normal")]

    @property
    def filter(self) -> str:
        """The filter that holds; empty for none."""
        return self._filter[0] if self._filter else ""

    @property
    def num_matching(self) -> int:
        """How many envs pass the filter; all of them without one."""
        if self._filter is None:
            return len(self.state.envs)
        passes, severities = self._filter[1], worst_severity_by_env(self.state)
        return sum(passes(env, severities.get(env.env)) for env in self.state.envs)

    def show_only(self, text: str) -> None:
        """Hold a filter.

        Raises:
            FilterError: it has no meaning, and the one before still holds.
        """
        started = self.state.started
        term = parse_filter(text, started.lanes if started else [])
        self._filter = (text, term) if text.strip() else None
        self.update()

    def order_by(self, column: str) -> None:
        """Order by a column, or the other way round where the table is in that order."""
        self._descending = not self._descending if column == self._by else column not in _UPWARDS
        self._by = column
        self.update()

    def action_order(self) -> None:
        """Order by the next column."""
        if self.state.started is not None:
            names = env_columns.sortable_columns(self.state.started.slots)
            self.order_by(names[(names.index(self._by) + 1) % len(names)])

    def action_reverse(self) -> None:
        """The other way round."""
        self.order_by(self._by)

    def action_follow(self) -> None:
        """Keep the cursor on the worst env, until it is moved by hand."""
        self._following = not self._following
        self.update()

    def action_pin(self) -> None:
        """Pin the env under the cursor to the top, or let it go."""
        self._pinned ^= {self.view.selected_env}
        self.update()

    def select(self, env: int) -> None:
        """Put the cursor on an env; it follows no longer."""
        self._following = False
        super().select(env)

    def on_click(self, event: Click) -> None:
        """A click on a heading orders by it; a row as in all panels of rows."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y == 0:
            for columns, name in self._spans:
                if offset.x in columns:
                    self.order_by(name)
            event.prevent_default()


class FilterBox(Horizontal):
    """A slash, the filter, and what comes of it."""

    DEFAULT_CSS = """
    FilterBox { height: auto; max-height: 3; display: none; }
    FilterBox > Static { width: auto; padding: 0 1; color: $heading; }
    FilterBox > #said { width: 1fr; }
    FilterBox > #said.wrong { color: $error; }
    FilterBox > Input { width: 24; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", "leave the filter as it was")]

    @dataclass
    class Typed(Message):
        """The text has changed."""

        text: str

    @dataclass
    class Closed(Message):
        """Enter, or Escape: `text` is the filter that is to hold."""

        text: str

    def compose(self) -> ComposeResult:
        """One line."""
        yield Static("/")
        yield Input(compact=True, placeholder="acc<0.5 stage:blending anomaly", disabled=True)
        yield Static(id="said")

    def open(self) -> None:
        """Begin to type."""
        self.display = True
        field = self.query_one(Input)
        field.disabled = False
        self._before = field.value
        field.focus()

    @property
    def typing(self) -> bool:
        """Whether it is open."""
        return not self.query_one(Input).disabled

    def set_message(self, text: str, *, wrong: bool = False) -> None:
        """What the filter comes to, or why it is none."""
        said = self.query_one("#said", Static)
        said.update(text)
        said.set_class(wrong, "wrong")

    def clear(self) -> None:
        """No filter."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = ""
        self._close("")

    def _close(self, text: str) -> None:
        self.query_one(Input).disabled = True
        self.display = bool(text.strip())
        self.post_message(self.Closed(text))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tell who filters."""
        event.stop()
        self.post_message(self.Typed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep it, unless it has no meaning."""
        event.stop()
        if not self.query_one("#said", Static).has_class("wrong"):
            self._close(event.value)

    def action_give_up(self) -> None:
        """As it was."""
        with self.prevent(Input.Changed):
            self.query_one(Input).value = self._before
        self._close(self._before)
