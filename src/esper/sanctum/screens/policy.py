"""The policy screen: gradient norms of the heads, statistics of the updates, and decisions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from textwrap import wrap

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Size

from esper.common.domain import Op
from esper.common.formatting import strip_control
from esper.common.plots.sparkline import sparkline
from esper.recordings.events import EnvStepped
from esper.recordings.state.curves import UPDATE_QUANTITIES
from esper.recordings.state.series import StepTrace
from esper.recordings.state.state import EnvState
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.screens.growth import BlueprintTable
from esper.sanctum.symbols import OPS, compact_cell, head_label, number_cell, percent_cell
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.chart_grid import ChartGrid
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.heads import GRADIENT_NORM, HeadFractionChart
from esper.sanctum.widgets.panel import Line, Panel
from esper.sanctum.widgets.policy_chart import PolicyChart, no_update_message

SHOWN_QUANTITIES = tuple(quantity for quantity in UPDATE_QUANTITIES.values() if quantity != "learning rate")
"""Quantities of the updates that have a chart. The learning rate is known before the run."""
_SPARKLINE_MIN_COLS = 46
"""Minimum width of the decisions panel for a sparkline of each op, and for head names that are spelled out."""
_LOW_ROWS = 34
"""Height of the screen below which the habits are those of the last rounds only."""
_MIN_HABIT_COLS = 20
"""Minimum width of a line about habits, also while the layout is unknown."""
_MAX_HABIT_LINES = 3
"""Maximum number of lines of a sentence about habits."""
_OP_COLS, _COUNT_COLS = 12, 7
"""Widths of the columns of the op counts."""
_MAX_SPARKLINE_COLS, _MAX_BAR_COLS = 24, 16
_SIDE_BY_SIDE_MIN_COLS = 57
"""Minimum width of the decisions panel for the other heads beside the op, with 24 columns; else they are below it."""


class PolicyScreen(RunScreen):
    """What the policy does, and head norms at the top; update statistics and decisions below."""

    CATEGORIES = (KeyCategory.POLICY,)
    BINDINGS = bindings(KeyCategory.POLICY)

    def body(self) -> ComposeResult:
        """Yield the habits and two rows of panels; without learning, counts in place of norms and updates."""
        yield PolicyHabits(self.view)
        with Horizontal(id="heads"):
            yield PolicyChart(self.view, GRADIENT_NORM, by_head=True)
            yield HeadFractionChart(self.view, GRADIENT_NORM, by_head=True)
            yield OpCounts(self.view)
        with Horizontal(id="update"):
            yield ChartGrid([PolicyChart(self.view, quantity) for quantity in SHOWN_QUANTITIES], "policy.charts")
            yield BlueprintTable(self.view)
            yield Decisions(self.view)

    def action_next_page(self) -> None:
        """Show the next charts of update statistics."""
        self.query_one(ChartGrid).turn_page(1)

    def update(self) -> None:
        """Update all panels, and show the ones that fit the policy."""
        started = self.view.source.state.started
        self.set_class(started is not None and started.policy != "ppo", "-no-learning")
        super().update()


class PolicyHabits(Panel):
    """What the policy does: a sentence on the last rounds, and one on the first rounds if there is room."""

    METRICS = ("habits",)

    def cache_key(self) -> Hashable:
        """Return the number of finished rounds, and whether the run has started."""
        return self.state.started is None, self.state.rounds_ended

    def preferred_height(self) -> int:
        """Return the number of lines of the sentences."""
        return max(len(self._texts(self.size.width)), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the sentences; before the end of the first round, and for a growth, a message."""
        texts = self._texts(size.width)
        if texts:
            return [self.line(text, "bright") for text in texts]
        is_growth = self.state.search is not None
        return self.message("the search of a growth decides" if is_growth else "habits: after the first round")

    def _texts(self, width: int) -> list[str]:
        habits = self.state.habits[: 1 if self.screen.size.height < _LOW_ROWS else None]
        return [
            text
            for sentence in habits
            for text in wrap(
                sentence,
                max(width, _MIN_HABIT_COLS),
                initial_indent=" ",
                subsequent_indent="   ",
                max_lines=_MAX_HABIT_LINES,
                placeholder=" …",
            )
        ]


class OpCounts(Panel):
    """Number of choices of each op, by round and in total, for a policy that does not learn."""

    METRICS = ("op counts",)

    PANEL_TITLE = "ops by round ─ number of choices"

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw one line per op: its count in the last rounds, latest last, and the sum."""
        if self.state.started is None:
            return []
        columns = max((size.width - _OP_COLS - _COUNT_COLS) // _COUNT_COLS, 1)
        rounds = self.state.ops[-columns:]
        first = self.state.round - len(rounds) + 1
        heading = self.line("  op        ", "head").append("sum".rjust(_COUNT_COLS), "head")
        for number in range(first, first + len(rounds)):
            heading.append(f"{number:>{_COUNT_COLS}}", "head")
        self.panel_subtitle = f"sum of the last {len(self.state.ops)} rounds"
        lines = [heading]
        for op in OPS:
            line = self.line("  ").append_fitted(op.replace("_", " "), _OP_COLS - 2)
            line.append(f"{sum(counts.get(op, 0) for counts in self.state.ops):>{_COUNT_COLS},}", "bright")
            for counts in rounds:
                line.append(f"{counts.get(op, 0):>{_COUNT_COLS},}", "normal" if counts.get(op) else "dim")
            lines.append(line)
        return [*lines, self.line(), self.line(f"  {no_update_message(self.state.started)}", "dim")]


class Decisions(EnvPanel):
    """One line per op, and the latest decisions of the selected env."""

    METRICS = ("decisions",)

    PANEL_TITLE = "decisions"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw the ops, and the latest decisions."""
        step, width = env.stepped, size.width
        sparkline_width = min(max(width - 37, 0), _MAX_SPARKLINE_COLS) if width >= _SPARKLINE_MIN_COLS else 0
        bar_width = max(min(width - 31 - sparkline_width, _MAX_BAR_COLS), 0)
        self.panel_title = f"decisions ─ env {env.env:02d}" + (f", step {step.step}" if step else "")
        heading = self.line("  op         chosen ", "head")
        heading.append_fitted("by round", sparkline_width + (sparkline_width > 0), "head")
        heading.append(f"  p of env {env.env:02d}", "head")
        lines = [heading, *(self._op(op, step, sparkline_width, bar_width) for op in OPS)]
        room = size.height - len(lines) - 2
        if room > 0 and env.trace:
            other_heads = "    other heads" if width >= _SIDE_BY_SIDE_MIN_COLS else ""
            lines += [self.line(), self.line(f" step op           slot      p{other_heads}", "head")]
            lines += decision_lines(self.view.palette, env.trace, room, width)
        return lines

    def _op(self, op: str, step: EnvStepped | None, sparkline_width: int, bar_width: int) -> Line:
        """Draw how often an op was chosen by round, and its probability in the last step of the env."""
        is_chosen = step is not None and step.op == op
        line = self.line("▸ " if is_chosen else "  ", "key")
        line.append_fitted(op.replace("_", " "), 10, _emphasis(is_chosen))
        fractions = [_op_fraction(counts, op) for counts in self.state.ops]
        line.append_cell(percent_cell(fractions[-1] if fractions else None)).append("% ", "dim")
        if sparkline_width:
            line.append(sparkline(fractions[-sparkline_width:], 0.0, 1.0).ljust(sparkline_width), "spark").append(" ")
        line.append("  ")
        if step is not None and step.op_probabilities and op not in step.op_probabilities:
            return line.append("illegal", "faint")
        probability = None
        if step is not None:
            probability = step.op_probabilities.get(op, step.op_probability if is_chosen else None)
        line.append_cell(number_cell(probability, 1, 3, fixed=True), _emphasis(is_chosen)).append(" ")
        return line.append_bar(probability, bar_width, "spark")


def decision_lines(palette: Palette, trace: Sequence[StepTrace], room: int, width: int) -> list[Line]:
    """Return up to `room` lines on the latest steps, newest first: op, slot, and other heads with probabilities."""
    lines: list[Line] = []
    side_by_side = width >= _SIDE_BY_SIDE_MIN_COLS
    for step in reversed(trace):
        parts = [
            f"{head_label(name, short=width < _SPARKLINE_MIN_COLS)} {strip_control(head.choice)}"
            + (f" ({compact_cell(head.probability, 2).text})" if head.probability is not None else "")
            for name, head in step.decision.items()
            if name != "slot"
        ]
        acts = step.op != Op.WAIT.label
        line = Line(palette).append(f" {step.step:>4} ", "dim")
        line.append_fitted(step.op.replace("_", " "), 12, _emphasis(acts)).append(" ")
        line.append_fitted(strip_control(step.target or ""), 8).append(" ")
        line.append_cell(number_cell(step.probability, 1, 2, fixed=True)).append(" ")
        indent = line.width if side_by_side else 6
        texts = _wrap_text(" · ".join(parts), width - indent)
        if side_by_side and texts:
            line.append(texts[0], "dim")
            texts = texts[1:]
        lines.append(line)
        lines += [Line(palette).pad_to(indent).append(text, "dim") for text in texts]
        if len(lines) >= room:
            break
    return lines[:room]


@lru_cache(maxsize=512)
def _wrap_text(text: str, width: int) -> tuple[str, ...]:
    """Wrap a text at spaces. Cached, because every refresh draws the same steps again."""
    return tuple(wrap(text, width, break_long_words=False))


def _emphasis(is_chosen: bool) -> str:
    return "bright" if is_chosen else "normal"


def _op_fraction(counts: dict[str, int], op: str) -> float | None:
    """Fraction of the decisions of a round with this op; None if there are no decisions."""
    total = sum(counts.values())
    return counts.get(op, 0) / total if total else None
