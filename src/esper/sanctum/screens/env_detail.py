"""One env from close by."""

from __future__ import annotations

from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.geometry import Size

from esper.formatting import strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import (
    SEVERITIES,
    STAGES,
    Cell,
    compact_cell,
    ellipsise,
    number_cell,
    percent_cell,
    scale_cell,
)
from esper.sanctum.widgets.accuracy import percent_ticks
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line
from esper.telemetry.events import EnvStepped, GateCheck, GateRefused, SeedMoved, SlotReading
from esper.telemetry.state import EnvState
from esper.text_plot import finite_range, next_nice


class EnvDetailScreen(RunScreen):
    """The env under the cursor: its courses, its slots, its last step, its lifecycle."""

    AUTO_FOCUS = ""
    CATEGORIES = (KeyCategory.DETAIL,)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.DETAIL)]

    def body(self) -> ComposeResult:
        """Courses, slots, and the last step beside the lifecycle."""
        with Horizontal(id="courses"):
            yield EnvAccuracy(self.view)
            yield EnvRewardChart(self.view)
        yield EnvSlots(self.view)
        with Horizontal(id="facts"):
            yield EnvStep(self.view)
            yield RewardComponents(self.view)
            yield EnvLifecycle(self.view)

    def action_move(self, envs: int) -> None:
        """Go to a neighbour."""
        self.view.move(envs)
        self.update()

    def action_back(self) -> None:
        """Back to where we came from."""
        self.dismiss()


class EnvAccuracy(EnvPanel):
    """Validation accuracy by step of this episode; that of the run that goes along as a ghost."""

    METRICS = ("accuracy",)

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """The chart; name and lane of the env stand in the border."""
        self.panel_title = f"env {env.env:02d} on {strip_control(env.lane)} ─ accuracy %"
        best, ever = max(env.accuracy, default=None), env.best_accuracy
        self.panel_subtitle = f"best {percent_cell(best).text.strip()}"
        if ever != best:
            self.panel_subtitle += f"  ever {percent_cell(ever).text.strip()}"
        extent, first = self.axis(env.accuracy)
        ghost = self.ghost
        if ghost is not None and ghost.accuracy:
            self.panel_subtitle += f"  ghost {percent_cell(ghost.accuracy[-1]).text.strip()}"
        chart = Chart(
            values=env.accuracy,
            x_length=extent,
            first=first,
            low=0.0,
            high=1.0,
            ticks=percent_ticks(size.height),
            extra_curves=[(ghost.accuracy, "dim")] if ghost is not None else [],
        )
        return chart.lines(self.view.palette, *size)


class EnvRewardChart(EnvPanel):
    """Reward by step of this episode."""

    METRICS = ("reward",)

    PANEL_TITLE = "reward"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """The chart, its axis a round number around zero; the return so far in the border."""
        total = number_cell(env.episode_return, 3, 3, signed=True).text.strip()
        self.panel_subtitle = f"return {total}" if env.rewards else None
        least, greatest = finite_range(env.rewards) or (0.0, 0.0)
        high = next_nice(greatest) if greatest > 0 else 0.0
        low = -next_nice(-least) if least < 0 else 0.0
        if high == low:
            high = 1.0
        ticks = [(value, f"{value:g}".replace("-", "−")) for value in sorted({low, 0.0, high})]
        extent, first = self.axis(env.rewards)
        chart = Chart(values=env.rewards, x_length=extent, first=first, low=low, high=high, ticks=ticks)
        return chart.lines(self.view.palette, *size)


_INDENT = 7
"""Of what a gate holds against a seed: below the step and the sign."""


class EnvLifecycle(EnvPanel):
    """The last moves that fit, and below them the refusals."""

    METRICS = ("lifecycle",)

    PANEL_TITLE = "lifecycle"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """A line per move; each refusing gate with all that it holds against the seed."""
        refusals = [line for refusal in env.refusals.values() for line in self._refusal(refusal, size.width)]
        room = max(size.height - len(refusals), 0)
        moves = [self._move(move, size.width) for move in env.moves[-room:]] if room else []
        if not moves and not refusals:
            return [self.line().append(" no seed in this episode", "dim")]
        return moves + refusals

    def _move(self, move: SeedMoved, width: int) -> Line:
        line = self.line().append(f" {move.step:>3} ", "dim").append(f"{strip_control(move.slot)} ", "dim")
        line.append(STAGES[move.before].glyph, move.before).append(" → ", "faint").append(
            STAGES[move.after].glyph, move.after
        )
        text = f" {move.blueprint or ''}".rstrip() + f"  {move.reason}"
        return line.append(ellipsise(strip_control(text), max(width - line.width, 0)))

    def _refusal(self, refusal: GateRefused, width: int) -> list[Line]:
        who = f"{refusal.gate} holds {strip_control(refusal.slot)}"
        failed = "; ".join(_check(check) for check in refusal.checks if not check.passed)
        first, *rest = wrap(f"{who}: {failed}", max(width - _INDENT, len(who) + 1))
        line = self.line().append(f" {refusal.step:>3} ", "dim").append(f"{SEVERITIES['warning'].glyph} ", "warning")
        line.append(who, "bright").append(first[len(who) :])
        return [line, *(self.line().append(" " * _INDENT + text) for text in rest)]


def _check(check: GateCheck) -> str:
    """A failed check: name, value, and what it was held against."""
    threshold = "" if check.threshold is None else f", needs {compact_cell(check.threshold).text}"
    return strip_control(f"{check.name} {compact_cell(check.value).text}{threshold}")


_BAR = 8


class EnvSlots(EnvPanel):
    """A line per slot. Contribution is in points of accuracy, with its standard error."""

    METRICS = ("stage", "contribution", "gradient norm")

    PANEL_TITLE = "slots"

    def preferred_height(self) -> int:
        """The heading and the slots."""
        return 1 + (len(self.state.started.slots) if self.state.started else 0)

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Heading and slots."""
        assert self.state.started is not None
        wide = size.width >= 96
        head = self.line().append(" slot    stage          blueprint  ", "head")
        head.append(" " * (_BAR + 1) if wide else "").append("alpha  worth % ± se     |g|   params  age", "head")
        lines = [head]
        for index, name in enumerate(self.state.started.slots):
            line = self.line().append(" ").append_fitted(strip_control(name), 8, "dim")
            if env.stepped is None:
                lines.append(line.append("–", "absent"))
            else:
                lines.append(_slot(line, env.stepped.slots[index], wide=wide))
        return lines


def _slot(line: Line, slot: SlotReading, *, wide: bool) -> Line:
    symbol = STAGES[slot.stage]
    line.append(symbol.glyph, slot.stage).append(" ").append_fitted(slot.stage, 13, slot.stage)
    if slot.blueprint is None:
        return line
    line.append_fitted(strip_control(slot.blueprint), 10, "normal").append(" ")
    if wide:
        line.append_bar(slot.alpha, _BAR, slot.stage).append(" ")
    line.append_cell(number_cell(slot.alpha, 2, 2, fixed=True)).append("  ")
    line.append_cell(number_cell(_points(slot.contribution), 3, 1, signed=True, fixed=True))
    if slot.contribution is None:
        line.append(" " * 8)
    else:
        line.append(" ± ", "dim").append_cell(
            number_cell(_points(slot.contribution_se), 2, 1, fixed=True), "dim"
        ).append(" ")
    return line.append_cell(number_cell(slot.grad_norm, 4, 2)).append(f"{slot.parameters:>9,}{slot.age:>5}")


def _points(share: float | None) -> float | None:
    return None if share is None else share * 100


_NAME = 12


class EnvStep(EnvPanel):
    """Op, losses, norms, scale."""

    METRICS = ("accuracy", "gradient norm", "loss scale")

    PANEL_TITLE = "last step"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """A line per number, in two columns where one is too high."""
        step = env.stepped
        if step is None:
            return [self.line().append(" none yet in this round", "dim")]
        target = f" {strip_control(step.target)}" if step.target else ""
        lines = [self.line().append(" op ", "dim").append(f"{strip_control(step.op)}{target}", "bright")]
        facts = _facts(step)
        columns = 2 if len(facts) >= size.height and size.width >= 2 * (_NAME + 8) else 1
        rows = -(-len(facts) // columns)
        for row in range(rows):
            line = self.line()
            for name, cell in facts[row::rows]:
                line.append(" ").append_fitted(name, _NAME, "dim").append_cell(cell)
            lines.append(line)
        return lines


def _facts(step: EnvStepped) -> list[tuple[str, Cell]]:
    """Names and values, the most wanted first."""
    facts = [
        ("loss", number_cell(step.loss, 3, 3)),
        ("train loss", number_cell(step.train_loss, 3, 3)),
        ("train acc", number_cell(step.train_accuracy, 3, 3)),
        ("host |g|", number_cell(step.grad_norm, 3, 3)),
        ("p(op)", number_cell(step.op_probability, 3, 3)),
        ("value", number_cell(step.value, 3, 3)),
        ("params ×", number_cell(step.parameter_ratio, 3, 3)),
        ("loss scale", scale_cell(step.loss_scale)),
    ]
    return facts + [
        (f"skip {strip_control(owner)}", Cell(f"{count:>3}", "warning")) for owner, count in step.skipped.items()
    ]


class RewardComponents(EnvPanel):
    """The parts of the last reward, the smallest left out where there is no room, and their sum."""

    METRICS = ("reward",)

    PANEL_TITLE = "its reward"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """A line per part; the sum last."""
        step = env.stepped
        if step is None:
            return [self.line().append(" –", "absent")]
        name = max(size.width - 9, 4)
        greatest = sorted(step.reward_parts, key=lambda part: -abs(step.reward_parts[part]))[: size.height - 1]
        lines = [
            self.line()
            .append(" ")
            .append_fitted(strip_control(part).replace("_", " "), name, "dim")
            .append_cell(number_cell(value, 3, 3, signed=True))
            for part, value in step.reward_parts.items()
            if part in greatest
        ]
        total = (
            self.line()
            .append(" ")
            .append_fitted("sum", name, "normal")
            .append_cell(number_cell(step.reward, 3, 3, signed=True), "bright")
        )
        return [*lines, total]
