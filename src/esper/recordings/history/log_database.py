"""Log database: the log lines of a recording in SQLite, and filters for them."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

from msgspec.structs import astuple

from esper.common.domain import Severity
from esper.recordings.state.log_lines import LogLine

LOG_CATEGORIES = {
    "seeds": {"SeedMoved"},
    "policy": {"PolicyUpdated"},
    "anomalies": {"AnomalyFound", "AnomalyJoined", "AnomalyEnded", "GovernorRolledBack"},
    "checkpoints": {"CheckpointSaved"},
    "control": {"ControlRequested", "Paused", "Resumed", "RunStarted", "RunEnded"},
    "messages": {"Logged", "CallOverdue", "CallEnded", "ClockChanged"},
    "trials": {"TrialEnded", "NetworkTested", "SearchEnded"},
}
"""Event types of each category of log lines."""
GROWTH_CATEGORIES = frozenset({"trials"})
"""Categories that only a growth has."""
SEVERITY_LEVELS: tuple[Severity, ...] = get_args(Severity)
"""In rising order."""
MIN_SEQ, MAX_SEQ = -(2**63), 2**63 - 1
"""Limits of integers in SQLite. A line with another event number or step, which must be damaged, is left out."""
MAX_ENVS = 2**16 - 1
"""Number of envs that lines can be about. A damaged line may name any number; it then counts as about no env."""
CHUNK_LINES = 4096
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

    def to_sql(self) -> tuple[str, list[Any]]:
        """Return the condition in SQL, with its parameters."""
        kinds = LOG_CATEGORIES[self.category] if self.category is not None else ()
        severities = SEVERITY_LEVELS[SEVERITY_LEVELS.index(self.min_severity) :]
        conditions, values = ["TRUE"], list[Any]()
        for condition, accepted in (
            (f"kind IN ({', '.join('?' * len(kinds))})", kinds),
            (f"severity IN ({', '.join('?' * len(severities))})", severities if severities != SEVERITY_LEVELS else ()),
            ("env = ?", () if self.env is None else (self.env,)),
            ("instr(ifnull(folded, text), ?)", (self.text.casefold(),) if self.text else ()),
        ):
            if accepted:
                conditions.append(condition)
                values += accepted
        return " AND ".join(conditions), values

    def __str__(self) -> str:
        env = "all envs" if self.env is None else f"env {self.env:02d}"
        severity = self.min_severity + ("" if self.min_severity == SEVERITY_LEVELS[-1] else "+")
        return " · ".join([self.category or "all kinds", severity, env, *([f"/{self.text}"] if self.text else [])])


class LogDatabase:
    """Log lines by event number: those that a history has read, and those of later events that are known already.

    Ranges of events exclude their first number and include their last.
    """

    def __init__(self) -> None:
        self.last_seq = 0
        """Event number of the last line that the history has read; 0 if it has read none."""
        self.num_rewinds = 0
        """Number of times that the history has dropped lines, or read lines that are not in order."""
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(
            "CREATE TABLE lines "
            '(seq INTEGER PRIMARY KEY, time, severity, kind, text, env, "group", step, moment, folded)'
        )  # the fields of LogLine, and the casefolded text if it differs
        weakref.finalize(self, self._connection.close)

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines that the history has read."""
        if rows := _to_rows(lines):
            self.num_rewinds += rows[0][0] <= self.last_seq
            self.last_seq = rows[-1][0]
            self._insert(rows)

    def truncate_after(self, seq: int) -> None:
        """Drop lines that the history has read, of events after number `seq`, because these events were undone."""
        if seq < self.last_seq:
            self._drop(seq, self.last_seq)
            self.last_seq = seq
            self.num_rewinds += 1

    def add_unread(self, lines: Iterable[LogLine]) -> None:
        """Add lines that the history has not read; those that it has read are left out."""
        self._insert([row for row in _to_rows(lines) if row[0] > self.last_seq])

    def drop_unread(self) -> None:
        """Drop the lines that the history has not read."""
        self._drop(self.last_seq, MAX_SEQ)

    @property
    def newest_seq(self) -> int:
        """Event number of the newest line; 0 if there are no lines."""
        return self._select("SELECT ifnull(max(seq), 0) FROM lines")[0][0]

    def line(self, seq: int) -> LogLine:
        """Return the line of an event."""
        [row] = self._select("SELECT * FROM lines WHERE seq = ?", seq)
        return LogLine(**dict(zip(LogLine.__struct_fields__, row, strict=False)))

    def groups(self, log_filter: LogFilter, begin: int, end: int) -> list[tuple[int, int, int]]:
        """Group the equal matching lines of each step in a range; while a text is searched, no lines are equal.

        Returns:
            Event number of the first line, that of the last line, and number of lines, for each group.
        """
        condition, values = log_filter.to_sql()
        equal = "seq" if log_filter.text else """step, kind, severity, "group", iif("group" = '', seq, 0)"""
        return self._select(
            "SELECT min(seq), max(seq), count(*) FROM lines "
            f"WHERE seq > ? AND seq <= ? AND {condition} GROUP BY {equal}",
            begin, end, *values,
        )  # fmt: skip

    def group_lines(self, log_filter: LogFilter, first: int, last: int) -> list[int]:
        """Return the event numbers of the lines of a group, given those of its first and its last line."""
        condition, values = log_filter.to_sql()
        return [seq for (seq,) in self._select(
            f"SELECT seq FROM lines WHERE seq BETWEEN ? AND ? AND {condition} AND "
            """(step, kind, severity, "group") = (SELECT step, kind, severity, "group" FROM lines WHERE seq = ?)""",
            first, last, *values, first,
        )]  # fmt: skip

    def chunk_start(self, end: int) -> int:
        """Return the start of a range of whole steps with about `CHUNK_LINES` lines, given its end."""
        found = self._select(
            "SELECT seq FROM lines WHERE seq <= ? ORDER BY seq DESC LIMIT 1 OFFSET ?", end, CHUNK_LINES
        )
        return self.step_range(found[0][0])[0] if found else MIN_SEQ

    def step_range(self, seq: int) -> tuple[int, int]:
        """Return the range of the step to which the first line after number `seq` belongs."""
        step = "(SELECT step FROM lines WHERE seq > ?1 ORDER BY seq LIMIT 1)"
        [(before, after)] = self._select(
            f"SELECT (SELECT max(seq) FROM lines WHERE seq <= ?1 AND step IS NOT {step}), "
            f"(SELECT min(seq) FROM lines WHERE seq > ?1 AND step IS NOT {step})",
            seq,
        )
        return MIN_SEQ if before is None else before, MAX_SEQ if after is None else after - 1

    def _insert(self, rows: list[tuple[Any, ...]]) -> None:
        with self._connection as connection:
            connection.executemany("INSERT OR REPLACE INTO lines VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _drop(self, begin: int, end: int) -> None:
        with self._connection as connection:
            connection.execute("DELETE FROM lines WHERE seq > ? AND seq <= ?", (begin, end))

    def _select(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()


def _to_rows(lines: Iterable[LogLine]) -> list[tuple[Any, ...]]:
    """Return lines as rows of the table."""
    rows: list[tuple[Any, ...]] = []
    for line in lines:
        seq, time, severity, kind, text, env, group, step, moment = astuple(line)
        if MIN_SEQ <= seq <= MAX_SEQ and MIN_SEQ <= step <= MAX_SEQ:
            folded = text.casefold()
            known_env = env if env is not None and 0 <= env < MAX_ENVS else None
            changed = None if folded == text else folded
            rows.append((seq, time, severity, kind, text, known_env, group, step, moment, changed))
    return rows
