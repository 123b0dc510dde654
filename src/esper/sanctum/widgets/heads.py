"""The policy's heads: how strong a gradient reaches each, and how open its choice still is."""

from __future__ import annotations

from collections.abc import Hashable

from textual.geometry import Size

from esper.sanctum.symbols import brief, head_label, number
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.events import RunStarted
from esper.telemetry.state import HeadState
from esper.text_plot import span_of, sparkline


def no_update(started: RunStarted) -> str:
    """What is said where there is none."""
    return "no update of the policy yet" if started.policy == "ppo" else "this policy learns nothing"


class Heads(Panel):
    """A line per head: gradient norm, its course over the updates, entropy as a bar and a number."""

    METRICS = ("heads", "update")

    HEADING = "heads ─ |g|, entropy"

    def key(self) -> Hashable:
        """Changes with every update of the policy."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0)

    def wanted_height(self) -> int:
        """One line a head."""
        return max(len(self.state.heads), 1)

    def draw(self, size: Size) -> list[Line]:
        """All heads on one line where there is only one; else a table."""
        if not self.state.heads:
            self.note = None
            if self.state.started is None:
                return []
            return [self.line().add(f" {no_update(self.state.started)}", "dim")]
        self.note = self._summary()
        if size.height == 1 and len(self.state.heads) > 1:
            return [self._compact(size.width)]
        return [self._row(name, head, size.width) for name, head in self.state.heads.items()]

    def _row(self, name: str, head: HeadState, width: int) -> Line:
        room = max(width - 25, 6)
        graph, gauge = room * 3 // 5, room - room * 3 // 5
        line = self.line().add(" ").fit(head_label(name), 10, "dim")
        line.cell(number(head.grad_norm[-1], 2, 3)).add(" ")
        recent = head.grad_norm[-graph:]
        extent = span_of(recent)
        line.add(sparkline(recent, 0.0, extent[1] if extent else 1.0).ljust(graph), "spark").add(" ")
        entropy = head.entropy[-1]
        line.gauge(entropy, gauge, "spark").add(" ")
        return line.cell(number(entropy, 2, 2))

    def _compact(self, width: int) -> Line:
        cells = [(head_label(name, short=True), brief(head.grad_norm[-1], 2, tight=True))
                 for name, head in self.state.heads.items()]  # fmt: skip
        taken = len(" heads") + sum(len(name) + 1 + len(cell.text) for name, cell in cells)
        line = self.line().add(" heads", "head")
        gap = "  " if taken + 2 * len(cells) <= width else " "
        for name, cell in cells:
            line.add(gap).add(name, "dim").add(" ").cell(cell)
        return line

    def _summary(self) -> str | None:
        """KL, clipped share and explained variance of the last update, for the border."""
        update = self.state.update
        if update is None:
            return None
        values = (update.kl, update.clip_fraction, update.explained_variance)
        return "KL {}  clip {}  EV {}".format(*(brief(value, 2).text for value in values))
