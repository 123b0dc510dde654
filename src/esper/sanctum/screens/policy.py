"""The policy: what its heads learn, how its learning goes, what it decides."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.bindings import Category, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import OPS, brief, head_label, number, percent
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.heads import HeadNorms, HeadShares, no_update
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.series import Trace
from esper.telemetry.state import EnvState
from esper.text_plot import axis_of, extent_of_rounds, sparkline


class Policy(RunScreen):
    """Heads above; learning, and what comes of it, below."""

    AUTO_FOCUS = ""
    CATEGORIES = (Category.POLICY,)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.POLICY)]

    def body(self) -> ComposeResult:
        """Two rows of two panels."""
        with Horizontal(id="heads"):
            yield HeadNorms(self.view)
            yield HeadShares(self.view)
        with Horizontal(id="update"):
            yield Learning(self.view)
            yield Decisions(self.view)

    def action_next_figure(self) -> None:
        """Show the next figure of the updates first."""
        self.query_one(Learning).shift()

    def action_move(self, envs: int) -> None:
        """Look at the decisions of a neighbour."""
        self.view.move(envs)
        self.update()


FIGURES: dict[str, tuple[str, float | None]] = {
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


class Learning(Panel):
    """As many charts as fit, the first of them chosen by `shift`."""

    METRICS = ("update",)

    HEADING = "learning ─ by round"

    def on_mount(self) -> None:
        """Begin with the return."""
        self._first = 0

    def key(self) -> Hashable:
        """Changes with every update of the policy, and with the choice of the first chart."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0), self._first

    def shift(self) -> None:
        """Begin with the next figure."""
        self._first = (self._first + 1) % len(FIGURES)
        self.update()

    def draw(self, size: Size) -> list[Line]:
        """The charts side by side, in rows."""
        if self.state.started is None:
            return []
        if not self.state.learning:
            return [self.line().add(f" {no_update(self.state.started)}", "dim")]
        columns, rows = max(size.width // _WIDTH, 1), max(size.height // _HEIGHT, 1)
        columns = min(columns, -(-len(FIGURES) // rows))
        rows = min(rows, -(-len(FIGURES) // columns))
        names = list(FIGURES)
        shown = (names[self._first :] + names[: self._first])[: columns * rows]
        self.note = f"{len(shown)} of {len(names)} ─ o next" if len(shown) < len(names) else None
        width, height = size.width // columns, size.height // rows
        lines: list[Line] = []
        for row in range(0, len(shown), columns):
            band = [self.line() for _ in range(height)]
            for place, name in enumerate(shown[row : row + columns]):
                for line, part in zip(band, self._chart(name, width - 1, height), strict=False):
                    line.to(place * width).join(part)
            lines += band
        return lines

    def _chart(self, name: str, width: int, height: int) -> list[Line]:
        assert self.state.started is not None
        course = self.state.learning[name]
        values = course.values
        label, least = FIGURES[name]
        axis = axis_of(values, height - 2, least=least)
        title = self.line().add(f"  {label} ", "dim").cell(brief(course.last), "bright")
        chart = Chart(
            values=values,
            extent=extent_of_rounds(len(values), -(-self.state.started.rounds // course.every)),
            each=course.every,
            low=axis.low,
            high=axis.high,
            ticks=axis.ticks,
        )
        return [title, *chart.lines(self.view.palette, width, height - 1)]


_ROOM_FOR_COURSE = 46
_BESIDE = 57
"""Columns from which on the other heads stand beside the op, where 24 are left for them; else they stand below."""


class Decisions(EnvPanel):
    """A line per op, and below them the heads that the env's last decision used."""

    METRICS = ("decisions",)

    HEADING = "decisions"

    def key(self) -> Hashable:
        """Changes with every step."""
        return self.state.seq, self.view.selected_env

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Ops, then heads."""
        step = env.stepped
        width = size.width
        course = min(max(width - 37, 0), 24) if width >= _ROOM_FOR_COURSE else 0
        self.heading = f"decisions ─ env {env.env:02d}" + (f", step {step.step}" if step else "")
        gauge = max(min(width - 31 - course, 16), 0)
        head = self.line().add("  op         chosen ", "head").fit("by round", course + (course > 0), "head")
        lines = [head.add(f"  p of env {env.env:02d}", "head")]
        rounds = self.state.ops
        for op in OPS:
            chosen = step is not None and step.op == op
            line = self.line().add("▸ " if chosen else "  ", "key").fit(op.replace("_", " "), 10, _bold(chosen))
            shares = [_share(counts, op) for counts in rounds]
            line.cell(percent(shares[-1] if shares else None)).add("% ", "dim")
            if course:
                line.add(sparkline(shares[-course:], 0.0, 1.0).ljust(course), "spark").add(" ")
            line.add("  ")
            if step is not None and step.op_probabilities and op not in step.op_probabilities:
                line.add("illegal", "faint")
            else:
                probability = step.op_probabilities.get(op, step.op_probability if chosen else None) if step else None
                line.cell(number(probability, 1, 3, fixed=True), _bold(chosen)).add(" ")
                line.gauge(probability, gauge, "spark")
            lines.append(line)
        room = size.height - len(lines) - 2
        if room > 0 and env.trace:
            how = "    how" if width >= _BESIDE else ""
            lines += [self.line(), self.line().add(f" step op           where     p{how}", "head")]
            lines += last_decisions(self.view.palette, env.trace, room, width)
        return lines


def last_decisions(palette: Palette, trace: Sequence[Trace], room: int, width: int) -> list[Line]:
    """The last steps that fit into `room` lines, the newest first: op, slot, and the other heads with their odds."""
    lines: list[Line] = []
    beside = width >= _BESIDE
    for step in reversed(trace):
        parts = [
            f"{head_label(name, short=True)} {plain(chosen.choice)}"
            + (f" ({brief(chosen.probability, 2).text})" if chosen.probability is not None else "")
            for name, chosen in step.decision.items()
            if name != "slot"
        ]
        acts = step.op != "wait"
        line = Line(palette).add(f" {step.step:>4} ", "dim").fit(step.op.replace("_", " "), 12, _bold(acts))
        line.add(" ").fit(plain(step.target or ""), 8).add(" ").cell(number(step.probability, 1, 2, fixed=True)).add(
            " "
        )
        indent = line.width if beside else 6
        texts = wrap(" · ".join(parts), width - indent, break_long_words=False)
        lines.append(line.add(texts.pop(0), "dim") if texts and beside else line)
        lines += [Line(palette).to(indent).add(text, "dim") for text in texts]
        if len(lines) >= room:
            break
    return lines[:room]


def _bold(chosen: bool) -> str:
    return "bright" if chosen else "normal"


def _share(counts: dict[str, int], op: str) -> float | None:
    """Of all decisions of a round; None where none was taken."""
    total = sum(counts.values())
    return counts.get(op, 0) / total if total else None
