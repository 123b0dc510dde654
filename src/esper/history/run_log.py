"""The log of a whole run: lines read by a history, lines of unread segments, and the newest lines of a live run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esper.history.history import History
from esper.history.log_index import LogIndex
from esper.history.log_search import LogFilter, LogRow, LogSearch
from esper.history.unread_log import UnreadLog
from esper.telemetry.log_lines import LogLine


class RunLog:
    """Rows of all log lines of a run that match a filter; `update` searches on."""

    def __init__(self) -> None:
        self.filter = LogFilter()
        self._opened: set[int] = set()
        """Event numbers of the first lines of the groups that are open."""
        self._recorded = self._search(LogIndex())
        """Rows of the lines that the history has read."""
        self._unread_log: UnreadLog | None = None
        self._paused: History | None = None
        """History that reads nothing until the unread log has found the first line."""
        self._unread: dict[Path, LogSearch] = {}
        """Rows of segments that the history has not read completely, keyed by path in order."""
        self._newer = self._search(LogIndex())
        """Rows of lines that are not in the recording yet, or not read from it."""
        self._newer_lines: list[LogLine] = []
        self._fraction_read = 1.0

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def _parts(self) -> list[LogSearch]:
        return [self._recorded, *self._unread.values(), self._newer]

    @property
    def num_lines(self) -> int:
        """Number of matching lines found so far."""
        return sum(part.num_lines for part in self._parts)

    @property
    def num_read_rows(self) -> int:
        """Number of rows of what the history has read: after them, rows may be missing until all is searched."""
        return len(self._recorded)

    @property
    def last_seq(self) -> int:
        """Event number of the newest line; 0 if there are no lines."""
        return max(part.index.last_seq for part in self._parts)

    @property
    def is_waiting(self) -> bool:
        """True if further calls of `update` may find rows although the history does not change."""
        return self._unread_log is not None or not all(part.is_done for part in self._parts)

    @property
    def fraction_searched(self) -> float:
        """Fraction of the run that was searched."""
        fraction = self._recorded.fraction * self._fraction_read
        if self._unread_log is not None:  # the segment that the history reads now counts as one more
            ahead = sum(part.fraction for part in self._unread.values()) / (self._unread_log.num_segments + 1)
            fraction += (1 - self._fraction_read) * ahead
        return fraction

    def set_filter(self, **changes: Any) -> None:
        """Change conditions of the filter, and search again."""
        self.filter = self.filter._replace(**changes)
        self._recorded = self._search(self._recorded.index)
        self._unread = {path: self._search(part.index) for path, part in self._unread.items()}
        self._newer = self._search(self._newer.index)

    def update(self, history: History | None, newest: Sequence[LogLine], within: float) -> None:
        """Search further lines.

        Args:
            history: History of the run, as far as it was read; None if none of it was.
            newest: Newest lines of a live run; the history may contain some of them.
            within: Seconds after which the search of a part of the run is interrupted.
        """
        if history is not None:
            if history.log is not self._recorded.index:
                self._recorded = self._search(history.log)
            self._fraction_read = history.fraction_read
            self._recorded.advance(within)
            self._update_unread(history, within)
        read_until = max(part.index.last_seq for part in self._parts[:-1])
        lines = [line for line in newest if line.seq > read_until]
        if lines != self._newer_lines:
            self._newer_lines, index = lines, LogIndex()
            index.extend(lines)
            self._newer = self._search(index)
        self._newer.advance(math.inf)

    def _update_unread(self, history: History, within: float) -> None:
        """Search the segments that the history has not read, once there is something to search for."""
        if history.fraction_read == 1:
            self.close()
        elif self._unread_log is None and self.filter != LogFilter():
            self._unread_log = UnreadLog(history.unread_segments())
        if self._unread_log is None:
            return
        is_reading = self._unread_log.is_reading
        read_until, indexes = history.log.last_seq, self._unread_log.indexes.copy()
        searches = {path: self._unread.get(path) or self._search(indexes[path]) for path in sorted(indexes)}
        self._unread = searches
        for search in searches.values():
            search.drop_until(read_until)
            search.advance(within)
        self._paused, history.is_paused = history, is_reading and not self.num_lines

    def close(self) -> None:
        """Stop reading the segments that the history has not read."""
        if self._unread_log is not None:
            self._unread_log.stop()
            self._unread_log, self._unread = None, {}
        if self._paused is not None:
            self._paused.is_paused, self._paused = False, None

    def row(self, number: int) -> LogRow:
        """Return a row, given its number from 0, the oldest first."""
        part, local = self._locate(number)
        return part.row(local)

    def toggle(self, number: int) -> None:
        """Show or hide the lines of the group in a row."""
        part, local = self._locate(number)
        part.toggle(local)

    def find(self, seq: int, *, is_group: bool = False) -> int:
        """Return the number of the row of an event's line, or of the nearest earlier one; 0 if there is none."""
        before = len(self)
        for part in reversed(self._parts):
            before -= len(part)
            if (found := part.find(seq, is_group=is_group)) >= 0:
                return before + found
        return 0

    def _locate(self, number: int) -> tuple[LogSearch, int]:
        for part in self._parts[:-1]:
            if number < len(part):
                return part, number
            number -= len(part)
        return self._newer, number

    def _search(self, index: LogIndex) -> LogSearch:
        return LogSearch(index, self.filter, self._opened)
