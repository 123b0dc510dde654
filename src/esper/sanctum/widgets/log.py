"""The event log: a line for each notable event, the newest at the bottom."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from textual.geometry import Size

from esper.formatting import plain, time_of_day
from esper.sanctum.symbols import SEVERITIES, wrapped
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.state import LogLine

_INDENT = 12
"""Columns of the time and the glyph."""


class Log(Panel):
    """As many of the last lines as fit."""

    METRICS = ("log",)

    HEADING = "log"

    def key(self) -> Hashable:
        """Changes with every line."""
        return self.state.log[-1].seq if self.state.log else 0

    def draw(self, size: Size) -> list[Line]:
        """The entries that fit, the last one whole."""
        lines: list[Line] = []
        for entry in reversed(self.state.log[-size.height :]):
            lines = self._entry(entry, size.width) + lines
            if len(lines) >= size.height:
                break
        return lines[-size.height :]

    def _entry(self, entry: LogLine, width: int) -> list[Line]:
        """Time, a glyph where it is not mere information, and the sentence, wrapped below its own beginning."""
        lines: list[Line] = []
        role = "normal" if entry.severity == "info" else "bright"
        hanging = " " * (_INDENT if width >= 50 else 3)
        for number, text in enumerate(_wrapped(entry.text, width, hanging)):
            line = self.line()
            if number == 0:
                line.add(f" {time_of_day(entry.time)} ", "dim")
                if entry.severity != "info":
                    line.add(SEVERITIES[entry.severity].glyph, entry.severity)
            lines.append(line.add(text[line.width :], role))
        return lines


@lru_cache(512)
def _wrapped(text: str, width: int, hanging: str) -> list[str]:
    first = wrapped(plain(text), max(width - _INDENT, 1))[0]
    rest = plain(text)[len(first) :].strip()
    more = wrapped(rest, max(width - len(hanging), 1)) if rest else []
    return [" " * _INDENT + first, *(hanging + line for line in more)]
