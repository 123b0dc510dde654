"""The env screen: the story of the selected env in its episode, its rewards and its last step."""

from __future__ import annotations

from itertools import zip_longest

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Size

from esper.common.decisions import describe_decision
from esper.common.formatting import short_score_name, strip_control
from esper.common.score_scale import ScoreScale
from esper.recordings.events import EnvStepped
from esper.recordings.state.series import decision_of
from esper.recordings.state.state import EnvState
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import (
    SCALE_TOO_SMALL,
    Cell,
    ellipsise,
    is_scale_too_small,
    norm_cell,
    number_cell,
    scale_cell,
    score_cell,
    score_heading,
)
from esper.sanctum.view import EffectNeeded, ExplanationNeeded
from esper.sanctum.widgets.env_decision import EnvDecision
from esper.sanctum.widgets.env_explanation import EnvExplanation
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.env_story import EnvRewardChart, EnvStory, SlotLanes
from esper.sanctum.widgets.panel import Line

_VALUE_NAME_COLS, _PAIR_COLS = 14, 22
"""Width of the name of a value, and of a space, the name and the value."""
_PANES = ("", "-explained", "-values")
"""Classes of the screen that choose the panel beside the story: decision, explanation, or values of the last step."""


class EnvDetailScreen(RunScreen):
    """The story of the selected env: score with decisions, slots as lanes, the selected decision and its effect."""

    CATEGORIES = (KeyCategory.DETAIL,)
    FITS_SMALL = True
    BINDINGS = bindings(KeyCategory.DETAIL)

    def body(self) -> ComposeResult:
        """Yield the story beside the decisions, the lanes below both, and the rewards beside the last step."""
        with Horizontal(id="story"):
            yield EnvStory(self.view)
            with Vertical(id="side"):
                yield EnvDecision(self.view)
                yield EnvExplanation(self.view)
                yield EnvStep(self.view, id="side-step")
        yield SlotLanes(self.view)
        with Horizontal(id="last-step"):
            yield EnvRewardChart(self.view)
            yield EnvStep(self.view)

    def update(self) -> None:
        """Update all panels. While an explanation is shown, request that of the last decision."""
        super().update()
        if self.has_class("-explained"):
            self.post_message(ExplanationNeeded())

    def action_explain_decision(self) -> None:
        """Show the explanation of the last decision; then, if they have no other place, the last step's values."""
        panes = _PANES if self.has_class("-short") or self.has_class("-low") else _PANES[:2]
        shown = next((pane for pane in panes if pane and self.has_class(pane)), "")
        self._show_pane(panes[(panes.index(shown) + 1) % len(panes)])
        if self.view.source.requests:
            self.view.source.requests.explanation_refusal = None
        self.update()

    def _show_pane(self, pane: str) -> None:
        """Show one of `_PANES` beside the story."""
        for name in filter(None, _PANES):
            self.set_class(name == pane, name)

    def action_select_decision(self, direction: int) -> None:
        """Select the next decision (1) or the previous one (-1), if there is one; without a selected step, the last."""
        story, selected = self.query_one(EnvStory), self.view.selected_step
        steps = list(story.decisions())
        if selected is not None:
            later, earlier = [step for step in steps if step > selected], [step for step in steps if step < selected]
            steps = later[:1] if direction > 0 else earlier
        if steps:
            self.view.charts_on(self).set_cursor("", None)
            story.select_step(steps[-1])
        else:
            which = "the first" if direction < 0 else "the last"
            self.notify(f"This is {which} decision." if selected is not None else "No decision yet.", timeout=3)

    def action_travel(self) -> None:
        """Go to the end of the selected step."""
        self.query_one(EnvStory).travel()

    def action_without(self) -> None:
        """Compute the effect of the selected decision, by default of the last one, unless it is known."""
        story = self.query_one(EnvStory)
        self._show_pane("")
        if self.view.selected_step is None:
            self.action_select_decision(-1)
        step, known = self.view.selected_step, story.known
        if step is None:
            self.notify("This episode has no decision yet.", severity="warning")
        elif step not in story.decisions():
            self.notify(f"The env waited in step {step}: there is no decision to leave out.", severity="warning")
        elif known is None or known.without(step) is None:
            self._request_effects([step])

    def action_effects(self) -> None:
        """Compute the effects of all decisions of the episode."""
        self._show_pane("")
        self._request_effects(None)

    def _request_effects(self, steps: list[int] | None) -> None:
        self.post_message(EffectNeeded(self.view.source.state.round, self.view.selected_env, steps))

    def action_back(self) -> None:
        """Cancel the computation of effects, else close the screen."""
        if self.view.what_if.is_running:
            self.view.what_if.cancel()
            self.update()
        else:
            self.dismiss()


class EnvStep(EnvPanel):
    """Values of the last step, and the components of its reward."""

    METRICS = ("score", "gradient norm", "loss scale", "reward")

    PANEL_TITLE = "last step"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw one line per value: the step beside its reward if there is room, else below each other."""
        step = env.stepped
        self.panel_title = self.PANEL_TITLE if step is None else f"{self.PANEL_TITLE}: {step.step}"
        if step is None:
            return self.wrapped_message("no step yet in this round", size.width)
        decision = strip_control(describe_decision(decision_of(step)))
        lines = [self.line(" op ", "dim").append(ellipsise(decision, size.width - 4), "bright")]
        values, rows = _values(step, self.state.score_name, self.state.score_scale), size.height - 1
        if size.width >= 2 * _PAIR_COLS:
            columns = [values[:rows], self._rewards(step, rows)]
        else:
            rewards = self._rewards(step, rows // 2)
            columns = [[*values[: rows - len(rewards)], *rewards]]
        for row in zip_longest(*columns):
            line = self.line()
            for index, pair in enumerate(row):
                if pair is not None:
                    line.pad_to(index * size.width // 2).append(" ")
                    line.append_fitted(pair[0], _VALUE_NAME_COLS, "dim").append_cell(pair[1])
            lines.append(line)
        return lines

    def _rewards(self, step: EnvStepped, rows: int) -> list[tuple[str, Cell]]:
        """Return the reward and its components, the largest ones if not all fit, the task's score by its name."""
        largest = sorted(step.reward_parts, key=lambda part: -abs(step.reward_parts[part]))[: rows - 1]
        parts = {part: value for part, value in step.reward_parts.items() if part in largest}
        names = {"score": f"· {self.state.score_name}"} | {part: f"· {part}" for part in parts if part != "score"}
        pairs = [("reward", step.reward), *((names[part].replace("_", " "), parts[part]) for part in parts)]
        return [(strip_control(name), number_cell(value, 3, 3, signed=True)) for name, value in pairs]


def _values(step: EnvStepped, score: str, scale: ScoreScale) -> list[tuple[str, Cell]]:
    """Name and value of each quantity of a step, most important first."""
    values = [
        ("loss", number_cell(step.loss, 3, 3)),
        ("train loss", number_cell(step.train_loss, 3, 3)),
        (f"train {score_heading(short_score_name(score), scale)}", score_cell(step.train_score, scale)),
        ("host norm", norm_cell(step.grad_norm)),
        ("op chance", number_cell(step.op_probability, 3, 3)),
        ("value", number_cell(step.value, 3, 3)),
        ("params ×", number_cell(step.parameter_ratio, 3, 3)),
        ("loss scale", scale_cell(step.loss_scale)),
    ]
    if is_scale_too_small(step.loss_scale):
        values = [values.pop(), (f"· {SCALE_TOO_SMALL}", Cell("")), *values]
    values += [(strip_control(name), number_cell(value, 3, 3)) for name, value in step.metrics.items()]
    return values + [
        (f"{strip_control(owner)} overflow", Cell(f"{count:>3}", "warning"))
        for owner, count in step.overflows_by_owner.items()
    ]
