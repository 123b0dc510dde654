"""What the policy decides: how often each op, and how probable each was for the env under the cursor."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from textwrap import wrap

from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.symbols import OPS, brief, head_label, number, percent
from esper.sanctum.theme import Palette
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line
from esper.telemetry.series import Trace
from esper.telemetry.state import EnvState
from esper.text_plot import sparkline

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
