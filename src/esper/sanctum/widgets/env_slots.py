"""The slots of one env: what grows in each, and what it is worth."""

from __future__ import annotations

from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.symbols import STAGES, number
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line
from esper.telemetry.events import SlotReading
from esper.telemetry.state import EnvState

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
