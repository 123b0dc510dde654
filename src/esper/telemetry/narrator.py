"""A run told in plain sentences, one for each notable change: for people who listen to it, for logs and for pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from esper.telemetry import events as ev
from esper.telemetry.console import Console, Show, round_line
from esper.telemetry.sentences import in_ascii, sentence
from esper.telemetry.state import Record

_UNDATED = frozenset({ev.SeedMoved, ev.AnomalyFound, ev.AnomalyEnded, ev.ControlRequested})
"""Of these the sentence need not say itself at which round and step it became true."""


class Narrator(Console):
    """Prints a run as lines of ASCII that draw nothing, on a terminal too. Each says when in the run it is true."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._moment: tuple[int, int] | None = None
        """Round and step of the last event that had both."""

    def _hear(self, record: Record) -> Iterator[tuple[float, str, str]]:
        round_, step = getattr(record, "round", None), getattr(record, "step", None)
        if round_ is not None and step is not None:
            self._moment = round_, step
        yield from super()._hear(record)

    def _line(self, record: ev.AnyEvent) -> tuple[str, str] | None:
        line = sentence(record)
        if line is None or isinstance(record, ev.PolicyUpdated):  # the line of the round tells of the update
            return None
        severity, text = line
        if type(record) in _UNDATED and self._moment is not None and f"round {self._moment[0]}" not in text:
            text += f", at round {self._moment[0]} step {self._moment[1]}"
        return severity, text

    def _round_line(self, number: int) -> str:
        return round_line(self._state, number)

    @contextmanager
    def _lines(self) -> Iterator[tuple[Show, Callable[[], None]]]:
        def show(_time: float, severity: str, text: str) -> None:
            mark = "" if severity == "info" else f"{severity}: "
            print(in_ascii(mark + text), file=self._stream, flush=True)

        yield show, lambda: None
