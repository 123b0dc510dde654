"""One env from close by."""

from __future__ import annotations

from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.bindings import Category, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import SEVERITIES, STAGES, Cell, brief, number, percent, power_of_two, shorten
from esper.sanctum.widgets.accuracy import percent_ticks
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line
from esper.telemetry.events import EnvStepped, GateCheck, GateRefused, SeedMoved, SlotReading
from esper.telemetry.state import EnvState
from esper.text_plot import round_up, span_of


class EnvDetail(RunScreen):
    """The env under the cursor: its courses, its slots, its last step, its lifecycle."""

    AUTO_FOCUS = ""
    CATEGORIES = (Category.DETAIL,)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.DETAIL)]

    def body(self) -> ComposeResult:
        """Courses, slots, and the last step beside the lifecycle."""
        with Horizontal(id="courses"):
            yield EnvAccuracy(self.view)
            yield EnvRewards(self.view)
        yield EnvSlots(self.view)
        with Horizontal(id="facts"):
            yield EnvStep(self.view)
            yield EnvReward(self.view)
            yield EnvMoves(self.view)

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
        self.heading = f"env {env.env:02d} on {plain(env.lane)} ─ accuracy %"
        best, ever = max(env.accuracy, default=None), env.best_accuracy
        self.note = f"best {percent(best).text.strip()}"
        if ever != best:
            self.note += f"  ever {percent(ever).text.strip()}"
        extent, first = self.axis(env.accuracy)
        ghost = self.ghost
        if ghost is not None and ghost.accuracy:
            self.note += f"  ghost {percent(ghost.accuracy[-1]).text.strip()}"
        chart = Chart(
            values=env.accuracy,
            extent=extent,
            first=first,
            low=0.0,
            high=1.0,
            ticks=percent_ticks(size.height),
            others=[(ghost.accuracy, "dim")] if ghost is not None else [],
        )
        return chart.lines(self.view.palette, *size)


class EnvRewards(EnvPanel):
    """Reward by step of this episode."""

    METRICS = ("reward",)

    HEADING = "reward"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """The chart, its axis a round number around zero; the return so far in the border."""
        total = number(env.episode_return, 3, 3, signed=True).text.strip()
        self.note = f"return {total}" if env.rewards else None
        least, greatest = span_of(env.rewards) or (0.0, 0.0)
        high = round_up(greatest) if greatest > 0 else 0.0
        low = -round_up(-least) if least < 0 else 0.0
        if high == low:
            high = 1.0
        ticks = [(value, f"{value:g}".replace("-", "−")) for value in sorted({low, 0.0, high})]
        extent, first = self.axis(env.rewards)
        chart = Chart(values=env.rewards, extent=extent, first=first, low=low, high=high, ticks=ticks)
        return chart.lines(self.view.palette, *size)


_INDENT = 7
"""Of what a gate holds against a seed: below the step and the sign."""


class EnvMoves(EnvPanel):
    """The last moves that fit, and below them the refusals."""

    METRICS = ("lifecycle",)

    HEADING = "lifecycle"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """A line per move; each refusing gate with all that it holds against the seed."""
        refusals = [line for refusal in env.refusals.values() for line in self._refusal(refusal, size.width)]
        room = max(size.height - len(refusals), 0)
        moves = [self._move(move, size.width) for move in env.moves[-room:]] if room else []
        if not moves and not refusals:
            return [self.line().add(" no seed in this episode", "dim")]
        return moves + refusals

    def _move(self, move: SeedMoved, width: int) -> Line:
        line = self.line().add(f" {move.step:>3} ", "dim").add(f"{plain(move.slot)} ", "dim")
        line.add(STAGES[move.before].glyph, move.before).add(" → ", "faint").add(STAGES[move.after].glyph, move.after)
        text = f" {move.blueprint or ''}".rstrip() + f"  {move.reason}"
        return line.add(shorten(plain(text), max(width - line.width, 0)))

    def _refusal(self, refusal: GateRefused, width: int) -> list[Line]:
        who = f"{refusal.gate} holds {plain(refusal.slot)}"
        failed = "; ".join(_check(check) for check in refusal.checks if not check.passed)
        first, *rest = wrap(f"{who}: {failed}", max(width - _INDENT, len(who) + 1))
        line = self.line().add(f" {refusal.step:>3} ", "dim").add(f"{SEVERITIES['warning'].glyph} ", "warning")
        line.add(who, "bright").add(first[len(who) :])
        return [line, *(self.line().add(" " * _INDENT + text) for text in rest)]


def _check(check: GateCheck) -> str:
    """A failed check: name, value, and what it was held against."""
    threshold = "" if check.threshold is None else f", needs {brief(check.threshold).text}"
    return plain(f"{check.name} {brief(check.value).text}{threshold}")


_BAR = 8


class EnvSlots(EnvPanel):
    """A line per slot. Contribution is in points of accuracy, with its standard error."""

    METRICS = ("stage", "contribution", "gradient norm")

    HEADING = "slots"

    def wanted_height(self) -> int:
        """The heading and the slots."""
        return 1 + (len(self.state.started.slots) if self.state.started else 0)

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Heading and slots."""
        assert self.state.started is not None
        wide = size.width >= 96
        head = self.line().add(" slot    stage          blueprint  ", "head")
        head.add(" " * (_BAR + 1) if wide else "").add("alpha  worth % ± se     |g|   params  age", "head")
        lines = [head]
        for index, name in enumerate(self.state.started.slots):
            line = self.line().add(" ").fit(plain(name), 8, "dim")
            if env.stepped is None:
                lines.append(line.add("–", "absent"))
            else:
                lines.append(_slot(line, env.stepped.slots[index], wide=wide))
        return lines


def _slot(line: Line, slot: SlotReading, *, wide: bool) -> Line:
    symbol = STAGES[slot.stage]
    line.add(symbol.glyph, slot.stage).add(" ").fit(slot.stage, 13, slot.stage)
    if slot.blueprint is None:
        return line
    line.fit(plain(slot.blueprint), 10, "normal").add(" ")
    if wide:
        line.gauge(slot.alpha, _BAR, slot.stage).add(" ")
    line.cell(number(slot.alpha, 2, 2, fixed=True)).add("  ")
    line.cell(number(_points(slot.contribution), 3, 1, signed=True, fixed=True))
    if slot.contribution is None:
        line.add(" " * 8)
    else:
        line.add(" ± ", "dim").cell(number(_points(slot.contribution_se), 2, 1, fixed=True), "dim").add(" ")
    return line.cell(number(slot.grad_norm, 4, 2)).add(f"{slot.parameters:>9,}{slot.age:>5}")


def _points(share: float | None) -> float | None:
    return None if share is None else share * 100


_NAME = 12


class EnvStep(EnvPanel):
    """Op, losses, norms, scale."""

    METRICS = ("accuracy", "gradient norm", "loss scale")

    HEADING = "last step"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """A line per number, in two columns where one is too high."""
        step = env.stepped
        if step is None:
            return [self.line().add(" none yet in this round", "dim")]
        target = f" {plain(step.target)}" if step.target else ""
        lines = [self.line().add(" op ", "dim").add(f"{plain(step.op)}{target}", "bright")]
        facts = _facts(step)
        columns = 2 if len(facts) >= size.height and size.width >= 2 * (_NAME + 8) else 1
        rows = -(-len(facts) // columns)
        for row in range(rows):
            line = self.line()
            for name, cell in facts[row::rows]:
                line.add(" ").fit(name, _NAME, "dim").cell(cell)
            lines.append(line)
        return lines


def _facts(step: EnvStepped) -> list[tuple[str, Cell]]:
    """Names and values, the most wanted first."""
    facts = [
        ("loss", number(step.loss, 3, 3)),
        ("train loss", number(step.train_loss, 3, 3)),
        ("train acc", number(step.train_accuracy, 3, 3)),
        ("host |g|", number(step.grad_norm, 3, 3)),
        ("p(op)", number(step.op_probability, 3, 3)),
        ("value", number(step.value, 3, 3)),
        ("params ×", number(step.parameter_ratio, 3, 3)),
        ("loss scale", power_of_two(step.loss_scale)),
    ]
    return facts + [(f"skip {plain(owner)}", Cell(f"{count:>3}", "warning")) for owner, count in step.skipped.items()]


class EnvReward(EnvPanel):
    """The parts of the last reward, the smallest left out where there is no room, and their sum."""

    METRICS = ("reward",)

    HEADING = "its reward"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """A line per part; the sum last."""
        step = env.stepped
        if step is None:
            return [self.line().add(" –", "absent")]
        name = max(size.width - 9, 4)
        greatest = sorted(step.reward_parts, key=lambda part: -abs(step.reward_parts[part]))[: size.height - 1]
        lines = [
            self.line().add(" ").fit(plain(part).replace("_", " "), name, "dim").cell(number(value, 3, 3, signed=True))
            for part, value in step.reward_parts.items()
            if part in greatest
        ]
        total = self.line().add(" ").fit("sum", name, "normal").cell(number(step.reward, 3, 3, signed=True), "bright")
        return [*lines, total]
