"""The blueprints: what became of their seeds, over all envs and rounds."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.symbols import Cell, number
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.series import BlueprintRecord

_COLUMNS: dict[str, tuple[int, Callable[[BlueprintRecord], float | None]]] = {
    "worth %": (9, lambda record: None if record.contribution is None else record.contribution * 100),
    "planted": (9, lambda record: record.planted),
    "fossil": (8, lambda record: record.fossilized),
    "culled": (8, lambda record: record.culled),
    "params": (9, lambda record: record.size),
}
"""By heading: its width, and what it shows."""


class League(Panel):
    """A line per blueprint, the greatest first in the column that `shift` chooses."""

    METRICS = ("league", "contribution")

    def on_mount(self) -> None:
        """By what the seeds were worth."""
        self._by = 0

    def key(self) -> Hashable:
        """Changes with every step, at most."""
        return self.state.seq, self._by

    def wanted_height(self) -> int:
        """The heading and the blueprints."""
        return max(len(self.state.blueprints), 1) + 1

    def shift(self) -> None:
        """Order by the next column."""
        self._by = (self._by + 1) % len(_COLUMNS)
        self.update()

    def draw(self, size: Size) -> list[Line]:
        """Heading and blueprints, as many as fit."""
        if self.state.started is None:
            return []
        by = list(_COLUMNS)[self._by]
        self.heading = f"blueprints ─ all envs and rounds, by {by.removesuffix(' %')} ↓"
        records = self.state.blueprints
        self.note = f"{size.height - 1} of {len(records)}" if size.height <= len(records) else None
        if not records:
            return [self.line().add(" nothing was planted yet", "dim")]
        head = self.line().add(" blueprint   ", "head")
        for name, (width, _) in _COLUMNS.items():
            head.add(name.rjust(width), "key" if name == by else "head")
        value = _COLUMNS[by][1]

        def place(name: str) -> tuple[bool, float, str]:
            known = value(records[name])
            return known is None, -(known or 0.0), name

        return [head, *(self._row(name, records[name]) for name in sorted(records, key=place))]

    def _row(self, name: str, record: BlueprintRecord) -> Line:
        line = self.line().add(" ").fit(plain(name), 12)
        for heading, (width, value) in _COLUMNS.items():
            shown = value(record)
            if heading == "worth %":
                line.add(" " * (width - 6)).cell(number(shown, 4, 1, signed=True, fixed=True), "bright")
            else:
                line.cell(_count(shown, width))
        return line


def _count(value: float | None, width: int) -> Cell:
    if value is None:
        return Cell("–".rjust(width), "absent")
    return Cell(f"{value:,.0f}".rjust(width), "normal" if value else "dim")
