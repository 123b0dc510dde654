"""Watches calls of the user's code that do not return: which env, which line, and how a stop request ends the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from esper.common.user_code.code_places import find_in_thread
from esper.training.lanes.errors import FaultError

if TYPE_CHECKING:
    from esper.training.envs.env import Env

POLL_S = 1.0
"""Seconds between two looks at a call in progress."""
OVERDUE_S = 10.0
"""Seconds in one forward pass, or without any, after which the line is reported in which the user's code is."""
LIMIT_S = 30.0
"""Seconds after which a stop request ends the run without waiting for the call."""
STOP_GRACE_S = 5.0
"""Seconds between a stop request and the end of a run whose call is to be abandoned."""
PAUSE_S = 5.0
"""Seconds between two looks after which the duration of a call is counted from the start."""


class OverdueCall(NamedTuple):
    """A call of the user's code that has not returned for long. The fields are those of the event `CallOverdue`."""

    env: int
    lane: str
    function: str
    file: str
    line: int
    seconds: float


class CallWatch:
    """The call in progress of a lane or worker, for another thread.

    Args:
        lane: Name of the lane, for messages.
    """

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._call: tuple[int, Env, int] | None = None
        """Number of the call, its env and its thread; None between calls."""
        self._number = 0
        self._seen: tuple[int, int] | None = None
        """Number of the call at the last look, and number of the forward passes of its env."""
        self._since = self._looked_at = 0.0
        self._overdue: OverdueCall | None = None

    def begin(self, env: Env) -> None:
        """Note that the current thread begins to work for an env."""
        self._number += 1
        self._call = self._number, env, threading.get_ident()

    def end(self) -> None:
        """Note that it has ended."""
        self._call = None

    def look(self) -> OverdueCall | None:
        """Return the call in which the user's code has been for long; None if it goes on. Called often."""
        call, now = self._call, time.monotonic()
        seen = call and (call[0], call[1].network.passes)
        was_stopped = now - self._looked_at > PAUSE_S  # with the call: the process was stopped, or the machine slept
        self._looked_at = now
        if call is None or seen != self._seen:
            self._seen, self._since, self._overdue = seen, now, None
        elif was_stopped:
            self._since = now
        elif self._overdue is None and now - self._since >= OVERDUE_S and (place := find_in_thread(call[2])):
            file, line, function = place
            self._overdue = OverdueCall(call[1].index, self._lane, function, file, line, now - self._since)
        return self._overdue


class CallSupervisor:
    """Reports calls that do not return, and abandons them if the run is to end.

    Attributes:
        report: Logs a sentence.
        report_call: Reports a call that is overdue, or one that has ended, with its duration.
        seconds_since_stop: Returns the seconds since a stop was requested; None if none was.
        abandoned: Message of the fault that abandoned all calls; None if none were abandoned. The run then waits for no
            further call. If a call is in a thread of this process, only `os._exit` can end the process.
    """

    def __init__(self) -> None:
        self.report: Callable[[str], None] = lambda _: None
        self.report_call: Callable[[OverdueCall, float | None], None] = lambda _, __: None
        self.seconds_since_stop: Callable[[], float | None] = lambda: None
        self.abandoned: str | None = None
        self._overdue: dict[object, tuple[OverdueCall, float]] = {}
        """Overdue calls with the time of `monotonic` when each began, keyed by lane, worker or rank."""

    def check(self, waited_for: object, call: OverdueCall | None) -> None:
        """Handle the result of `CallWatch.look`.

        Args:
            waited_for: Lane, worker or rank whose results are waited for.

        Raises:
            FaultError: A stop was requested, and this call or another one has not returned for long.
        """
        self.note(waited_for, call)
        since_stop, found = self.seconds_since_stop(), self._find(LIMIT_S)
        if self.abandoned is None and found and since_stop is not None and since_stop >= STOP_GRACE_S:
            self.abandoned = f"{_describe(*found)}, and did not return when the run was stopped"
        if self.abandoned is not None:
            raise FaultError(self.abandoned)

    def note(self, waited_for: object, call: OverdueCall | None) -> None:
        """Report a call that is overdue, and again when it has ended."""
        now = time.monotonic()
        known, begun = self._overdue.get(waited_for, (None, now))
        if call == known:
            return
        if known is not None:
            del self._overdue[waited_for]
            self.report_call(known, now - begun)
        if call is not None:
            self._overdue[waited_for] = call, now - call.seconds
            self.report_call(call, None)

    @property
    def overdue(self) -> OverdueCall | None:
        """A call that is overdue; None if none is."""
        return next((call for call, _ in self._overdue.values()), None)

    def stop_effect(self) -> str | None:
        """Return the effect of a stop request while a call is overdue; None if none is. For any thread."""
        if (found := self._find()) is None:
            return None
        call, taken = found
        left = max(LIMIT_S - taken, STOP_GRACE_S)
        return f"{_describe(call, taken)}; unless it returns, the run ends in {left:.0f} s with its last checkpoint"

    def _find(self, seconds: float = 0.0) -> tuple[OverdueCall, float] | None:
        """Return a call that takes at least so long, and its duration in seconds; None without one."""
        now = time.monotonic()
        durations = ((call, now - begun) for call, begun in tuple(self._overdue.values()))
        return next((found for found in durations if found[1] >= seconds), None)


def _describe(call: OverdueCall, seconds: float) -> str:
    where = f"env {call.env:02d} on {call.lane} has been in {call.function} for {seconds:.0f} s"
    return f"{where} ({call.file}, line {call.line})"
