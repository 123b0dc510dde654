"""What of a recording could not be read: damage that costs a line, signs of a newer version, files of another kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from esper.telemetry import events as ev
from esper.telemetry.scan import KINDS, Unreadable, unknown_fields
from esper.telemetry.segments import ReadError, is_packed
from esper.telemetry.state import Record

NOTICES = 20
"""Damaged lines told one by one."""
STRANGERS = 50
"""Unreadable lines after which a type is another version's, or, at its beginning, a file no recording."""


class Notices:
    """Hears of every file, of what was read for the first time, and of every line that was not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[object, str] = {}
        self._damaged = 0
        self._seen: set[str] = set()
        """Types of which a record was read."""
        self._met: set[type[Record]] = set()
        """Those of which one was read in this file."""
        self._missing: dict[Path, tuple[int, int]] = {}
        """For each file: the number of the first event that is not in it, though later ones are, and how many such."""
        self._refused: dict[str, tuple[int, str]] = {}
        """For each type of which none was read: how many lines were not, and why the first was not."""

    @property
    def sentences(self) -> list[str]:
        """What there is to tell people."""
        more = [f"{self._damaged - NOTICES} more lines are damaged"] if self._damaged > NOTICES else []
        return [*self._told.values(), *more]

    def tell(self, about: object, sentence: str) -> None:
        """Say something of a thing, in place of what was said of it before."""
        self._told[about] = sentence

    def miss(self, path: Path, first: int, count: int) -> None:
        """Take note of so many events that should be in a file, and are not: those from a number on."""
        begin, before = self._missing.get(path, (first, 0))
        self._missing[path] = begin, before + count
        many = f"{before + count} events are" if before + count > 1 else "an event is"
        self._told["missing", path] = f"{many} missing in {path}, from number {begin} on"

    def begin_file(self) -> None:
        """What follows may have been written by another version."""
        self._met = set()

    def meet(self, text: bytes, records: Sequence[Record]) -> None:
        """Look at the first record of each type in a file, one a line of the text, for signs of a newer version."""
        new = set(map(type, records)) - self._met
        if not new:
            return
        self._met |= new
        for line, record in zip(text.split(b"\n"), records, strict=False):
            kind = type(record)
            if kind in new:
                new.remove(kind)
                self._seen.add(kind.__name__)
                if fields := unknown_fields(line, record):
                    skipped = f"fields of {kind.__name__} that a newer version wrote were skipped: {', '.join(fields)}"
                    self._told.setdefault(kind.__name__, skipped)

    def skip(self, bad: Unreadable, at: object, where: Callable[[], str]) -> None:
        """Take note of a line that was not read.

        Args:
            bad: why not.
            at: tells the line from others.
            where: gives its file and number, for people.

        Raises:
            ReadError: this is no recording, or that of another version.
        """
        if bad.kind is not None and bad.kind not in KINDS:
            self._told[bad.kind] = f"events of the unknown type {bad.kind} were skipped; a newer version wrote them"
            self._seen.add(bad.kind)
            return
        if bad.kind is not None and bad.kind not in self._seen:
            if bad.kind not in self._refused:
                self._refused[bad.kind] = (0, f"{where()}: this version cannot read {bad.kind}: {bad.reason}")
            count, first = self._refused[bad.kind]
            self._refused[bad.kind] = (count + 1, first)
            if count + 1 >= STRANGERS:
                raise ReadError(first)
        self._damaged += 1
        if self._damaged <= NOTICES:
            self._told[at] = f"{where()} is damaged and was skipped: {bad.reason}"
        if self._damaged >= STRANGERS and not self._seen:
            raise self._foreign()

    def check(self, *, begun: bool, sound: bool) -> None:
        """What was read to its end must be a recording, and of this version.

        Args:
            begun: it is known what the run is.
            sound: the files could be unpacked, and what follows the last line may be the beginning of another.

        Raises:
            ReadError: it is neither.
        """
        if not self._seen and (self._damaged or not sound):
            raise self._foreign()
        for kind, (count, first) in self._refused.items():
            # One line may be damaged. All of several are not, and without the first event there is no run.
            lost = not begun if kind == ev.RunStarted.__name__ else count > 1
            if kind not in self._seen and lost:
                raise ReadError(first)

    def _foreign(self) -> ReadError:
        for about, sentence in self._told.items():
            if isinstance(about, Path) and is_packed(about):  # told to be damaged
                return ReadError(sentence)
        expected = "expected the directory of a run, or JSON Lines of events"
        return ReadError(f"{self._path} is not a recording of esper-sanctum; {expected}")
