"""Base classes of panels about the selected env, and of panels with one row per env."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from rich.segment import Segment
from textual.events import Click
from textual.geometry import Size

from esper.effects.episode import GERMINATE, WAIT, choices_of
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.symbols import wrap_cells
from esper.sanctum.view import ViewState
from esper.sanctum.what_if import KnownEffects
from esper.sanctum.widgets.panel import Line, Panel, Row
from esper.telemetry.series import StepTrace
from esper.telemetry.state import SERIES_POINTS, EnvState

_OP_MARKS = {
    GERMINATE: ("g", "germinated"),
    "advance": ("b", "blending"),
    "set_alpha": ("α", "blending"),
    "cull": ("x", "culled"),
    "fossilize": ("F", "fossilized"),
}
"""Glyph and role of the mark of a decision, keyed by op."""


def op_mark(op: str) -> tuple[str, str]:
    """Return glyph and role of the mark of a decision: the letter of the stage that it leads to, where it has one."""
    return _OP_MARKS.get(op, (op[:1], "normal"))


def step_axis(steps: int, done: int) -> tuple[int, int]:
    """Return the length of the step axis of an episode and its first step number.

    Of an episode longer than `SERIES_POINTS` steps, only the last steps are kept.

    Args:
        steps: Number of steps of the episode.
        done: Number of the last step with a value.
    """
    return min(steps, SERIES_POINTS), max(done - SERIES_POINTS, 0) + 1


class EpisodePanel(Panel):
    """Base class of a panel about the current episode of the selected env."""

    @property
    def env(self) -> EnvState | None:
        """The selected env; None before the run has started."""
        envs = self.state.envs
        return envs[self.view.selected_env] if self.view.selected_env < len(envs) else None

    @property
    def ghost(self) -> EnvState | None:
        """The same env of the ghost run in the same round; None if there is none."""
        ghost = self.view.ghost
        if ghost is None or ghost.round != self.state.round or self.view.selected_env >= len(ghost.envs):
            return None
        return ghost.envs[self.view.selected_env]

    @property
    def known(self) -> KnownEffects | None:
        """Known effects of the decisions of the episode; None if the episode was not read."""
        return self.view.what_if.known_effects(self.env, self.state.round) if self.env is not None else None

    def cache_key(self) -> Hashable:
        """Return the selected env and decision, the revisions of env and ghost, and the version of the effects."""
        env, ghost = self.env, self.ghost
        if env is None:
            return None
        return env.env, env.revision, ghost and ghost.revision, self.view.selected_decision, self.view.what_if.version

    def trace(self) -> list[StepTrace]:
        """Return the steps of the episode so far: those that the state keeps, and earlier ones if they were read."""
        env, known = self.env, self.known
        kept = ascending_steps(env) if env is not None else []
        return [*known.trace[: kept[0].step - 1], *kept] if kept and known is not None else kept

    def decisions(self) -> dict[int, Mapping[str, str]]:
        """Return the decisions of the episode so far, except to wait, keyed by step."""
        return {step.step: choices_of(step) for step in self.trace() if step.op != WAIT}

    def select_step(self, step: int | None) -> None:
        """Select a step of the episode, None for no step, and update all panels."""
        self.view.selected_decision = None if step is None else (self.state.round, self.view.selected_env, step)
        self.update_screen()


class EnvPanel(EpisodePanel):
    """Base class of a panel with lines about the selected env. Subclasses implement `draw_env`."""

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the lines of the selected env; none before the run has started."""
        return [] if self.env is None else self.draw_env(self.env, size)

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw the lines of an env."""
        raise NotImplementedError

    def wrapped_message(self, text: str, width: int) -> list[Line]:
        """Return lines in place of the content that is missing."""
        return [self.line(f" {row}", "dim") for row in wrap_cells(text, max(width - 1, 1))]


def ascending_steps(env: EnvState) -> list[StepTrace]:
    """Return the traces of an episode whose steps ascend. A damaged recording may lack the start of the round."""
    trace = env.trace
    for index in range(len(trace) - 1, 0, -1):
        if trace[index - 1].step >= trace[index].step:
            return trace[index:]
    return trace


class EnvRowsPanel(Panel, can_focus=True):
    """Base class of a panel with one row per env below a line of headings; `view.selected_env` is the cursor."""

    BINDINGS = bindings(KeyCategory.ROWS, KeyCategory.ENVS)

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._top = 0
        """Index in `_order` of the first visible env."""
        self._room = 0
        """Number of rows for envs."""
        self._order: Sequence[int] = ()
        """Envs from top to bottom, visible or not."""
        self._visible_envs: Sequence[int] = ()
        self._row_cache: dict[int, tuple[Hashable, Row]] = {}
        """Cached rows, each with the values that it depends on. Keyed by env index."""

    def visible_rows(self, order: Sequence[int], room: int) -> Sequence[int]:
        """Return the envs of `order` that fit into `room` rows, scrolled so that the selected env is one of them."""
        self._order = order
        count = len(order)
        if count and self.view.selected_env not in order:
            self.view.selected_env = order[0]
        index = order.index(self.view.selected_env) if count else 0
        top, self._room = self._top if room == self._room else 0, room
        self._top = min(max(top, index - room + 1), index, max(count - room, 0))
        self._visible_envs = order[self._top : self._top + room]
        return self._visible_envs

    def cached_row(self, env: EnvState, width: int, draw: Callable[[], Line], *inputs: Hashable) -> Row:
        """Return the row of an env, drawn again if the env, the width, the theme or one of `inputs` has changed."""
        key = env.revision, width, self.view.palette.name, self.view.state_version, inputs
        cached = self._row_cache.get(env.env)
        if cached is None or cached[0] != key:
            cached = self._row_cache[env.env] = key, draw().row(width)
        return cached[1]

    def draw_scroll_arrows(self, rows: list[Row], width: int) -> None:
        """Draw an arrow at the right edge of the first and last visible row if further envs lie above or below."""
        if self._top > 0:
            rows[1] = self._with_arrow(rows[1], "↑", width)
        if self._top + len(self._visible_envs) < len(self._order):
            last = min(len(self._visible_envs), len(rows) - 1)
            rows[last] = self._with_arrow(rows[last], "↓", width)

    def _with_arrow(self, row: Row, arrow: str, width: int) -> Row:
        return [*Segment.adjust_line_length(row, width - 1), *self.line(arrow, "dim").row(1)]

    def select(self, env: int) -> None:
        """Select an env and update all panels, because some show the selected env."""
        self.view.selected_env = env
        self.update_screen()

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows."""
        order = self._order
        if order:
            index = order.index(self.view.selected_env) if self.view.selected_env in order else 0
            self.select(order[min(max(index + rows, 0), len(order) - 1)])

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages."""
        self.action_move(pages * max(len(self._visible_envs) - 1, 1))

    def action_first(self) -> None:
        """Move the cursor to the first row."""
        self.action_move(-len(self.state.envs))

    def action_last(self) -> None:
        """Move the cursor to the last row."""
        self.action_move(len(self.state.envs))

    def env_at(self, x: int, y: int) -> int | None:  # noqa: ARG002 (a panel may have several rows side by side)
        """Return the env in a column and line of the content; None if there is none."""
        return self._visible_envs[y - 1] if 1 <= y <= len(self._visible_envs) else None

    def on_click(self, event: Click) -> None:
        """Select the clicked row; open its env on a double click."""
        offset = event.get_content_offset(self)
        env = self.env_at(offset.x, offset.y) if offset is not None else None
        if env is not None:
            self.select(env)
            if event.chain == 2:
                self.app.simulate_key("enter")

    def on_mouse_scroll_down(self) -> None:
        """Move the cursor three rows down."""
        self.action_move(3)

    def on_mouse_scroll_up(self) -> None:
        """Move the cursor three rows up."""
        self.action_move(-3)
