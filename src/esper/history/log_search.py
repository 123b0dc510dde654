"""Filters and search of log lines, and the rows in which the matching lines are shown."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple, get_args

from esper.domain import Severity
from esper.history.log_index import BLOCK_LINES, LogClass, LogIndex
from esper.telemetry.log_lines import LogLine

LOG_CATEGORIES = {
    "seeds": {"SeedMoved"},
    "policy": {"PolicyUpdated"},
    "anomalies": {"AnomalyFound", "AnomalyJoined", "AnomalyEnded", "GovernorRolledBack"},
    "checkpoints": {"CheckpointSaved"},
    "control": {"ControlRequested", "Paused", "Resumed", "RunStarted", "RunEnded"},
    "messages": {"Logged"},
}
"""Event types of each category of log lines."""
SEVERITY_LEVELS: tuple[Severity, ...] = get_args(Severity)
"""In rising order."""
MIN_GROUP_LINES = 3
"""Minimum number of equal lines of a step that form a group. Fewer take little room, and name their envs."""
CHUNK_LINES = 16 * BLOCK_LINES
"""Number of lines that are searched between two reads of the clock."""


class LogFilter(NamedTuple):
    """Condition for log lines to be shown."""

    category: str | None = None
    """Key of `LOG_CATEGORIES`; None for all lines."""
    min_severity: str = "info"
    env: int | None = None
    """Env index; None for all lines."""
    text: str = ""
    """Text that a line must contain, ignoring case."""

    def accepts(self, log_class: LogClass) -> bool:
        """Return True if lines of a class have the category and the severity."""
        in_category = self.category is None or log_class.kind in LOG_CATEGORIES[self.category]
        return in_category and SEVERITY_LEVELS.index(log_class.severity) >= SEVERITY_LEVELS.index(self.min_severity)

    def __str__(self) -> str:
        env = "all envs" if self.env is None else f"env {self.env:02d}"
        severity = self.min_severity + ("" if self.min_severity == SEVERITY_LEVELS[-1] else "+")
        return " · ".join([self.category or "all kinds", severity, env, *([f"/{self.text}"] if self.text else [])])


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

    @property
    def text(self) -> str:
        """Text of the line, or number and kind of the lines of a group."""
        return f"{self.num_lines} {self.line.group}" if self.num_lines > 1 else self.line.text


class LogSearch:
    """Rows of the lines of an index that match a filter, found from the newest line backwards, in time slices.

    Equal lines of a step form one row, unless a text is searched: then every line has its own.

    Args:
        index: Log lines. Lines may be added to it, or dropped from its end, between two calls.
        log_filter: Condition for lines to be shown.
        opened: Event numbers of the first lines of the groups that are open.
    """

    def __init__(self, index: LogIndex, log_filter: LogFilter, opened: set[int]) -> None:
        self.index = index
        self.filter = log_filter
        self.num_lines = 0
        """Number of matching lines found so far."""
        self._text = log_filter.text.casefold()
        self._opened = opened
        self._first = array("I")
        """Number of the first line of each row."""
        self._count = array("I")
        """Number of lines of each row; 0 for a line in an open group."""
        self._begin = 0
        """Number of the first line that is searched at all."""
        self._start = self._stop = len(index)
        """Range of the lines that were searched."""
        self._accepted: list[bool] = []
        """For each class of the index: True if the filter accepts it."""
        self._num_truncations = index.num_truncations

    def __len__(self) -> int:
        return len(self._first)

    @property
    def is_done(self) -> bool:
        """True if all lines of the index were searched."""
        return self._start <= self._begin and self._stop == len(self.index)

    @property
    def fraction(self) -> float:
        """Fraction of the lines of the index that were searched."""
        return (self._stop - self._start) / len(self.index) if len(self.index) else 1.0

    def advance(self, within: float) -> None:
        """Search further lines: first those that were added, then the newest of the others.

        Args:
            within: Seconds after which the method returns.
        """
        if self._num_truncations != self.index.num_truncations:
            self._num_truncations = self.index.num_truncations
            self._drop_from(0)
            self._start = self._stop = len(self.index)
        deadline = perf_counter() + within
        if self._stop < len(self.index):  # the last step may have grown
            self._drop_from(self._first_of_step(self._stop - 1) if self._stop else 0)
        while self._stop < len(self.index):
            end = self._chunk_end(self._stop)
            self._insert(len(self), self._stop, end)
            self._stop = end
            if perf_counter() > deadline:
                return
        while self._start > self._begin:
            begin = max(self._first_of_step(max(self._start - CHUNK_LINES, 0)), self._begin)
            self._insert(0, begin, self._start)
            self._start = begin
            if perf_counter() > deadline:
                return

    def drop_until(self, seq: int) -> None:
        """Leave out the lines of events up to number `seq`."""
        begin = self.index.count_until(seq)
        if begin <= self._begin:
            return
        self._begin, steps = begin, self.index.steps
        end = bisect_right(steps, steps[begin - 1])  # the rest of this step is searched again
        self._delete(0, bisect_left(self._first, end))
        self._start = max(self._start, min(end, self._stop))

    def row(self, number: int) -> LogRow:
        """Return a row, given its number from 0, the oldest line first."""
        line, count = self.index.line(self._first[number]), self._count[number]
        return LogRow(line, max(count, 1), is_open=count > 1 and line.seq in self._opened, in_group=count == 0)

    def find(self, seq: int, *, is_group: bool = False) -> int:
        """Return the number of the row of an event's line, or of the nearest earlier line; -1 if there is none.

        Args:
            seq: Number of the event.
            is_group: Prefer the row of a group that begins with the line to the row of the line.
        """
        line = self.index.count_until(seq) - 1
        if line < 0:
            return -1
        first, last = self._rows_of_step(self.index.steps[line])
        nearest = first - 1
        for number in range(first, last):
            if self._first[number] == line and (self._count[number] > 1) == is_group:
                return number
            if self._first[number] <= line:
                nearest = number
        return nearest

    def toggle(self, number: int) -> None:
        """Show or hide the lines of the group in a row."""
        steps, step = self.index.steps, self.index.steps[self._first[number]]
        self._opened ^= {self.row(number).line.seq}
        first, last = self._rows_of_step(step)
        self._delete(first, last)
        self._insert(first, max(bisect_left(steps, step), self._begin), bisect_right(steps, step, hi=self._stop))

    def _rows_of_step(self, step: int) -> tuple[int, int]:
        """Return the number of the first row of a step, and that after its last row."""
        step_of = self.index.steps.__getitem__
        return bisect_left(self._first, step, key=step_of), bisect_right(self._first, step, key=step_of)

    def _first_of_step(self, line: int) -> int:
        """Return the number of the first line in the step of a line. Rows are made of whole steps."""
        return bisect_left(self.index.steps, self.index.steps[line])

    def _chunk_end(self, begin: int) -> int:
        """Return the end of some whole steps from a line on; the end of the index may lie within a step."""
        end = begin + CHUNK_LINES
        if end >= len(self.index):
            return len(self.index)
        end = self._first_of_step(end)
        return end if end > begin else bisect_right(self.index.steps, self.index.steps[begin])

    def _drop_from(self, line: int) -> None:
        """Forget the rows of the lines from a number on."""
        kept = len(self)
        while kept and self._first[kept - 1] >= line:
            kept -= 1
        self._delete(kept, len(self))
        self._start, self._stop = min(self._start, line), line

    def _delete(self, first: int, last: int) -> None:
        self.num_lines -= sum(self._count[first:last])
        del self._first[first:last], self._count[first:last]

    def _insert(self, at: int, begin: int, end: int) -> None:
        """Insert the rows of a range of lines before row `at`."""
        index, groups = self.index, dict[tuple[int, int], list[int]]()
        for line in self._matching(begin, end):
            log_class = index.class_numbers[line]
            is_single = self._text or not index.classes[log_class].group
            groups.setdefault((-1, line) if is_single else (index.steps[line], log_class), []).append(line)
        rows: list[tuple[int, int, list[int]]] = []
        for lines in groups.values():
            if len(lines) < MIN_GROUP_LINES:
                rows += [(line, 1, []) for line in lines]
            else:
                rows.append((lines[0], len(lines), lines if index.line(lines[0]).seq in self._opened else []))
        first, count = array("I"), array("I")
        for line, num_lines, opened in sorted(rows):
            first.extend([line, *opened])
            count.extend([num_lines, *(0 for _ in opened)])
        self._first[at:at], self._count[at:at] = first, count
        self.num_lines += sum(count)

    def _matching(self, begin: int, end: int) -> Iterator[int]:
        """Yield the numbers of the matching lines of a range."""
        index, env = self.index, self.filter.env
        self._accepted += map(self.filter.accepts, index.classes[len(self._accepted) :])
        for line in range(begin, end):
            if not self._accepted[index.class_numbers[line]] or (env is not None and index.envs[line] != env):
                continue
            if not self._text or self._text in index.line(line).text.casefold():
                yield line
