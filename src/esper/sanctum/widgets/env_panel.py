"""Base classes of panels about the selected env, and of panels with one row per env."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from textual.geometry import Size

from esper.common.decisions import GERMINATE, WAIT, Decision
from esper.recordings.state.series import StepTrace, decision_of
from esper.recordings.state.state import SERIES_POINTS, EnvState
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.symbols import wrap_cells
from esper.sanctum.what_if import KnownEffects
from esper.sanctum.widgets.panel import Line, Panel
from esper.sanctum.widgets.row_list import RowList

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

    def decisions(self) -> dict[int, Decision]:
        """Return the decisions of the episode so far, except to wait, keyed by step."""
        return {step.step: decision_of(step) for step in self.trace() if step.op != WAIT}

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


class EnvRowsPanel(RowList[int]):
    """Base class of a panel with one row per env below a line of headings; `view.selected_env` is the cursor."""

    BINDINGS = bindings(KeyCategory.ENVS)

    @property
    def selected(self) -> int:
        """Index of the selected env."""
        return self.view.selected_env

    def select(self, key: int) -> None:
        """Select an env and update all panels, because some show the selected env."""
        self.view.selected_env = key
        self.update_screen()

    async def action_open(self) -> None:
        """Open the selected env."""
        await self.run_action("app.open_env")

    def visible_envs(self, order: Sequence[int], room: int) -> Sequence[int]:
        """Return the envs of `order` that fit into `room` rows. If the selected env is not in it, select the first."""
        if order and self.view.selected_env not in order:
            self.view.selected_env = order[0]
        self.view.env_order = order
        return self.scroll_to_cursor(order, room)
