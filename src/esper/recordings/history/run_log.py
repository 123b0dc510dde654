"""The log of a whole run: rows of the log lines that match a filter."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from operator import itemgetter
from time import perf_counter
from typing import Any, NamedTuple

from esper.recordings.history.history import History
from esper.recordings.history.log_database import MAX_SEQ, MIN_SEQ, LogDatabase, LogFilter
from esper.recordings.state.log_lines import LogLine

MIN_GROUP_LINES = 3
"""Minimum number of equal lines of a step that form a group. Fewer take little room, and name their envs."""


class LogRow(NamedTuple):
    """A row of the log: one line, or several equal lines of a step."""

    line: LogLine
    """The line, or the first line of a group."""
    num_lines: int = 1
    """Number of lines of the group; 1 for a single line."""
    is_open: bool = False
    """The lines of the group are shown below it."""
    in_group: bool = False
    """The line belongs to the open group above it."""
    envs: Sequence[int] = ()
    """Envs of the lines of a group, if known."""

    @property
    def text(self) -> str:
        """Text of the line, or number and kind of the lines of a group."""
        return f"{self.num_lines} {self.line.group}" if self.num_lines > 1 else self.line.text


def group_rows(lines: Sequence[LogLine]) -> list[LogRow]:
    """Return the rows of log lines, with equal lines of a step in one row at the place of the first."""
    groups: dict[tuple[int, str], list[LogLine]] = {}
    for line in lines:
        if line.group:
            groups.setdefault((line.step, line.group), []).append(line)
    rows: list[LogRow] = []
    for line in lines:
        group = groups.get((line.step, line.group), [])
        if len(group) < MIN_GROUP_LINES:
            rows.append(LogRow(line))
        elif group[0] is line:
            rows.append(LogRow(line, len(group), envs=[line.env for line in group if line.env is not None]))
    return rows


class RunLog:
    """Rows of the log lines of a run that match a filter, found from the newest line backwards, in time slices.

    Covers the lines that a history has read, and the newest lines of a live run. Equal lines of a step form one row,
    unless a text is searched: then every line has its own.
    """

    def __init__(self) -> None:
        self.filter = LogFilter()
        self.num_lines = 0
        """Number of matching lines found so far."""
        self._log = LogDatabase()
        self._opened: set[int] = set()
        """Event numbers of the first lines of the groups that are open."""
        self._firsts = array("q")
        """Event number of each row's line; in an open group, of the first line of the group. In rising order."""
        self._seqs = array("q")
        """Event number of each row's line."""
        self._counts = array("q")
        """Number of lines of each row; 0 for a line in an open group."""
        self._pending: list[tuple[int, int]] = []
        """Ranges of event numbers still to be searched, the newest at the end."""
        self._read_until = 0
        self._num_rewinds = 0
        """`last_seq` and `num_rewinds` of the log when it was searched last."""
        self._newest: LogLine | None = None
        """Line that `update` was given last, of those that the history had not read."""
        self._fraction_read = 1.0

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def num_read_rows(self) -> int:
        """Number of rows of what the history has read: after them, rows may be missing until all is searched."""
        return bisect_right(self._firsts, self._log.last_seq)

    @property
    def read_until(self) -> float | None:
        """Time of the last line that the history has read; None if it has read everything, or no line yet."""
        last = self._log.last_seq
        return self._log.line(last).time if last and self._fraction_read < 1 else None

    @property
    def last_seq(self) -> int:
        """Event number of the newest line; 0 if there are no lines."""
        return self._log.newest_seq

    @property
    def is_waiting(self) -> bool:
        """True if further calls of `update` may find rows although the history does not change."""
        return bool(self._pending)

    @property
    def fraction_searched(self) -> float:
        """Fraction of the run that was searched."""
        last = max(self.last_seq, 1)
        pending = sum(max(min(end, last) - max(begin, 0), 0) for begin, end in self._pending)
        return self._fraction_read * max(1 - pending / last, 0)

    def set_filter(self, **changes: Any) -> None:
        """Change conditions of the filter, and search again."""
        self.filter = self.filter._replace(**changes)
        self._restart()

    def update(self, history: History | None, newest: Sequence[LogLine], within: float) -> None:
        """Search further lines.

        Args:
            history: History of the run, as far as it was read; None if none of it was.
            newest: Newest lines of a live run; the history may contain some of them.
            within: Seconds after which the search is interrupted.
        """
        if history is not None:
            self._follow(history)
        self._add_newest(newest)
        deadline = perf_counter() + within
        while self._pending:
            begin, end = self._pending.pop()
            start = max(self._log.chunk_start(end), begin)
            if start > begin:
                insort(self._pending, (begin, start), key=itemgetter(1))
            self._search(start, end)
            if perf_counter() > deadline:
                break

    def _follow(self, history: History) -> None:
        """Search lines that the history has read since the last call."""
        log = history.log
        if log is not self._log:
            self._log, self._newest = log, None
            self._restart()
        elif log.num_rewinds != self._num_rewinds:
            self._restart()
        elif log.last_seq > self._read_until:
            self._add_pending(self._read_until, log.last_seq)
        self._read_until, self._num_rewinds = log.last_seq, log.num_rewinds
        self._fraction_read = history.fraction_read

    def _add_newest(self, newest: Sequence[LogLine]) -> None:
        """Search the newest lines of a live run that are not read from its recording."""
        known = self._log.last_seq
        if self._newest is not None and self._newest.seq > known:
            if self._newest in newest:
                known = self._newest.seq
            else:  # the run restored a checkpoint
                self._newest = None
                self._log.drop_unread()
                self._restart()
        if lines := [line for line in newest if line.seq > known]:
            self._newest = lines[-1]
            self._log.add_unread(lines)
            self._add_pending(lines[0].seq - 1, MAX_SEQ)

    def row(self, number: int) -> LogRow:
        """Return a row, given its number from 0, the oldest first."""
        first, count = self._firsts[number], self._counts[number]
        line = self._log.line(self._seqs[number])
        return LogRow(line, max(count, 1), is_open=count > 1 and first in self._opened, in_group=count == 0)

    def toggle(self, number: int) -> None:
        """Show or hide the lines of the group in a row."""
        first = self._firsts[number]
        self._opened ^= {first}
        self._search(*self._log.step_range(first - 1))

    def find(self, seq: int, *, is_group: bool = False) -> int:
        """Return the number of the row of an event's line, or of the nearest earlier one; 0 if there is none.

        Args:
            seq: Number of the event.
            is_group: Prefer the row of a group that begins with the line to the row of the line.
        """
        for first in self._opened:
            begin, end = bisect_left(self._firsts, first), bisect_right(self._firsts, first)
            number = bisect_left(self._seqs, seq, min(begin + (not is_group), end), end)
            if number < end and self._seqs[number] == seq:
                return number
        end = bisect_right(self._firsts, seq)
        begin = bisect_left(self._firsts, self._firsts[end - 1]) if end else 0
        return max(bisect_right(self._seqs, seq, begin, end) - 1, 0)

    def _restart(self) -> None:
        """Search all lines again."""
        for column in (self._firsts, self._seqs, self._counts):
            del column[:]
        self.num_lines = 0
        self._pending = [(MIN_SEQ, MAX_SEQ)]

    def _add_pending(self, begin: int, end: int) -> None:
        """Search the lines of a range of events, and the others of the same steps."""
        begin, end = self._log.step_range(begin)[0], self._log.step_range(end)[1]
        if not any(first <= begin and end <= last for first, last in self._pending):
            insort(self._pending, (begin, end), key=itemgetter(1))

    def _search(self, begin: int, end: int) -> None:
        """Replace the rows of a range of whole steps."""
        rows: list[tuple[int, int, int]] = []
        for first, last, count in self._log.groups(self.filter, begin, end):
            if count < MIN_GROUP_LINES:
                rows += [(seq, seq, 1) for seq in sorted({first, last})]
                continue
            rows.append((first, first, count))
            if first in self._opened:
                rows += [(first, seq, 0) for seq in self._log.group_lines(self.filter, first, last)]
        rows.sort(key=itemgetter(0))
        start, stop = bisect_right(self._firsts, begin), bisect_right(self._firsts, end)
        self.num_lines += sum(count for _, _, count in rows) - sum(self._counts[start:stop])
        for number, column in enumerate((self._firsts, self._seqs, self._counts)):
            column[start:stop] = array("q", [row[number] for row in rows])
