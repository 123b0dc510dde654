"""The policy: what its heads learn, how its learning goes, what it decides."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.geometry import Size

from esper.formatting import strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import OPS, compact_cell, head_label, number_cell, percent_cell
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.heads import HeadFractionChart, HeadNormChart, no_update_message
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.series import StepTrace
from esper.telemetry.state import EnvState
from esper.text_plot import linear_axis, round_axis_length, sparkline


class PolicyScreen(RunScreen):
    """Heads above; learning, and what comes of it, below."""

    AUTO_FOCUS = ""
    CATEGORIES = (KeyCategory.POLICY,)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.POLICY)]

    def body(self) -> ComposeResult:
        """Two rows of two panels."""
        with Horizontal(id="heads"):
            yield HeadNormChart(self.view)
            yield HeadFractionChart(self.view)
        with Horizontal(id="update"):
            yield UpdateCharts(self.view)
            yield Decisions(self.view)

    def action_next_figure(self) -> None:
        """Show the next figure of the updates first."""
        self.query_one(UpdateCharts).show_next()

    def action_move(self, envs: int) -> None:
        """Look at the decisions of a neighbour."""
        self.view.move(envs)
        self.update()


UPDATE_METRICS: dict[str, tuple[str, float | None]] = {
    "episode_return": ("mean return", None),
    "entropy": ("entropy", 0.0),
    "kl": ("KL, nats", 0.0),
    "clip_fraction": ("clipped share", 0.0),
    "explained_variance": ("explained variance", None),
    "value_loss": ("value loss", 0.0),
    "policy_loss": ("policy loss", None),
    "grad_norm": ("gradient norm", 0.0),
}
"""By field of PolicyUpdated: its name on the screen, and the value that its axis shows in any case."""
_WIDTH, _HEIGHT = 30, 7
"""Least size of a chart with its title."""


class UpdateCharts(Panel):
    """As many charts as fit, the first of them chosen by `shift`."""

    METRICS = ("update",)

    PANEL_TITLE = "learning ─ by round"

    def on_mount(self) -> None:
        """Begin with the return."""
        self._first = 0

    def cache_key(self) -> Hashable:
        """Changes with every update of the policy, and with the choice of the first chart."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0), self._first

    def show_next(self) -> None:
        """Begin with the next figure."""
        self._first = (self._first + 1) % len(UPDATE_METRICS)
        self.update()

    def draw_lines(self, size: Size) -> list[Line]:
        """The charts side by side, in rows."""
        if self.state.started is None:
            return []
        if not self.state.learning:
            return [self.line().append(f" {no_update_message(self.state.started)}", "dim")]
        columns, rows = max(size.width // _WIDTH, 1), max(size.height // _HEIGHT, 1)
        columns = min(columns, -(-len(UPDATE_METRICS) // rows))
        rows = min(rows, -(-len(UPDATE_METRICS) // columns))
        names = list(UPDATE_METRICS)
        shown = (names[self._first :] + names[: self._first])[: columns * rows]
        self.panel_subtitle = f"{len(shown)} of {len(names)} ─ o next" if len(shown) < len(names) else None
        width, height = size.width // columns, size.height // rows
        lines: list[Line] = []
        for row in range(0, len(shown), columns):
            band = [self.line() for _ in range(height)]
            for place, name in enumerate(shown[row : row + columns]):
                for line, part in zip(band, self._chart(name, width - 1, height), strict=False):
                    line.pad_to(place * width).extend(part)
            lines += band
        return lines

    def _chart(self, name: str, width: int, height: int) -> list[Line]:
        assert self.state.started is not None
        course = self.state.learning[name]
        values = course.values
        label, least = UPDATE_METRICS[name]
        axis = linear_axis(values, height - 2, include=least)
        title = self.line().append(f"  {label} ", "dim").append_cell(compact_cell(course.last), "bright")
        chart = Chart(
            values=values,
            x_length=round_axis_length(len(values), -(-self.state.started.rounds // course.every)),
            stride=course.every,
            low=axis.low,
            high=axis.high,
            ticks=axis.ticks,
        )
        return [title, *chart.lines(self.view.palette, width, height - 1)]


_SPARKLINE_MIN_COLS = 46
_SIDE_BY_SIDE_MIN_COLS = 57
"""Columns from which on the other heads stand beside the op, where 24 are left for them; else they stand below."""


class Decisions(EnvPanel):
    """A line per op, and below them the heads that the env's last decision used."""

    METRICS = ("decisions",)

    PANEL_TITLE = "decisions"

    def cache_key(self) -> Hashable:
        """Changes with every step."""
        return self.state.seq, self.view.selected_env

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Ops, then heads."""
        step = env.stepped
        width = size.width
        course = min(max(width - 37, 0), 24) if width >= _SPARKLINE_MIN_COLS else 0
        self.panel_title = f"decisions ─ env {env.env:02d}" + (f", step {step.step}" if step else "")
        gauge = max(min(width - 31 - course, 16), 0)
        head = (
            self.line().append("  op         chosen ", "head").append_fitted("by round", course + (course > 0), "head")
        )
        lines = [head.append(f"  p of env {env.env:02d}", "head")]
        rounds = self.state.ops
        for op in OPS:
            chosen = step is not None and step.op == op
            line = (
                self.line()
                .append("▸ " if chosen else "  ", "key")
                .append_fitted(op.replace("_", " "), 10, _bold(chosen))
            )
            shares = [_share(counts, op) for counts in rounds]
            line.append_cell(percent_cell(shares[-1] if shares else None)).append("% ", "dim")
            if course:
                line.append(sparkline(shares[-course:], 0.0, 1.0).ljust(course), "spark").append(" ")
            line.append("  ")
            if step is not None and step.op_probabilities and op not in step.op_probabilities:
                line.append("illegal", "faint")
            else:
                probability = step.op_probabilities.get(op, step.op_probability if chosen else None) if step else None
                line.append_cell(number_cell(probability, 1, 3, fixed=True), _bold(chosen)).append(" ")
                line.append_bar(probability, gauge, "spark")
            lines.append(line)
        room = size.height - len(lines) - 2
        if room > 0 and env.trace:
            how = "    how" if width >= _SIDE_BY_SIDE_MIN_COLS else ""
            lines += [self.line(), self.line().append(f" step op           where     p{how}", "head")]
            lines += decision_lines(self.view.palette, env.trace, room, width)
        return lines


def decision_lines(palette: Palette, trace: Sequence[StepTrace], room: int, width: int) -> list[Line]:
    """The last steps that fit into `room` lines, the newest first: op, slot, and the other heads with their odds."""
    lines: list[Line] = []
    beside = width >= _SIDE_BY_SIDE_MIN_COLS
    for step in reversed(trace):
        parts = [
            f"{head_label(name, short=True)} {strip_control(chosen.choice)}"
            + (f" ({compact_cell(chosen.probability, 2).text})" if chosen.probability is not None else "")
            for name, chosen in step.decision.items()
            if name != "slot"
        ]
        acts = step.op != "wait"
        line = (
            Line(palette).append(f" {step.step:>4} ", "dim").append_fitted(step.op.replace("_", " "), 12, _bold(acts))
        )
        line.append(" ").append_fitted(strip_control(step.target or ""), 8).append(" ").append_cell(
            number_cell(step.probability, 1, 2, fixed=True)
        ).append(" ")
        indent = line.width if beside else 6
        texts = wrap(" · ".join(parts), width - indent, break_long_words=False)
        lines.append(line.append(texts.pop(0), "dim") if texts and beside else line)
        lines += [Line(palette).pad_to(indent).append(text, "dim") for text in texts]
        if len(lines) >= room:
            break
    return lines[:room]


def _bold(chosen: bool) -> str:
    return "bright" if chosen else "normal"


def _share(counts: dict[str, int], op: str) -> float | None:
    """Of all decisions of a round; None where none was taken."""
    total = sum(counts.values())
    return counts.get(op, 0) / total if total else None
