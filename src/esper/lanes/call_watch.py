"""Watches calls of the user's code that do not return: which env, which line, and how a stop request ends the run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from esper.code_places import find_own, frames_of_call
from esper.lanes.errors import FaultError

if TYPE_CHECKING:
    from esper.envs.env import Env

POLL_S = 1.0
"""Seconds between two looks at a call in progress."""
STUCK_AFTER_S = 10.0
"""Seconds in one forward pass, or without any, after which the line is reported in which the user's code is."""
PAUSE_S = 5.0
"""Seconds between two looks after which the duration of a call is counted from the start."""
ABANDONED_AFTER_S = 20.0
"""Further seconds after which a stop request ends the run without waiting for the call."""
STOP_GRACE_S = 5.0
"""Seconds between a stop request and the end of a run whose call is to be abandoned."""


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
        self._description: str | None = None

    def begin(self, env: Env) -> None:
        """Note that the current thread begins to work for an env."""
        self._number += 1
        self._call = self._number, env, threading.get_ident()

    def end(self) -> None:
        """Note that it has ended."""
        self._call = None

    def look(self) -> str | None:
        """Return the env and the line in which the user's code has been for long; None if it goes on. Called often."""
        call, now = self._call, time.monotonic()
        seen = call and (call[0], call[1].network.passes)
        was_stopped = now - self._looked_at > PAUSE_S  # with the call: the process was stopped, or the machine slept
        self._looked_at = now
        if call is None or seen != self._seen or was_stopped:
            self._seen, self._since, self._description = seen, now, None
        elif self._description is None and now - self._since >= STUCK_AFTER_S:
            self._description = self._describe(call[1], call[2])
        return self._description

    def _describe(self, env: Env, thread: int) -> str | None:
        """Return the sentence about a call, without its duration; None if the user's code is not in the stack."""
        frames = frames_of_call(sys._current_frames().get(thread))  # pyright: ignore[reportPrivateUsage]
        places = [(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in reversed(frames)]
        place = find_own(places, libraries=False)
        if place is None:
            return None
        file, line, function = place
        where = f"env {env.index:02d} on {self._lane}"
        return f"{where} has been in {function} for {STUCK_AFTER_S:.0f} s ({file}, line {line})"


class CallSupervisor:
    """Reports calls that do not return, and abandons them if the run is to end.

    Attributes:
        report: Logs a sentence.
        seconds_since_stop: Returns the seconds since a stop was requested; None if none was.
    """

    def __init__(self) -> None:
        self.report: Callable[[str], None] = lambda _: None
        self.seconds_since_stop: Callable[[], float | None] = lambda: None
        self._reported: set[str] = set()
        self._stuck_since: dict[object, float] = {}
        """Time of `monotonic` of the first description of each call in progress, keyed by lane or worker."""

    def check(self, waited_for: object, description: str | None) -> None:
        """Handle the result of `CallWatch.look`.

        Args:
            waited_for: Lane or worker whose results are waited for.

        Raises:
            FaultError: A stop was requested, and the call has not returned for long.
        """
        if description is None:
            self._stuck_since.pop(waited_for, None)
            return
        if description not in self._reported:
            self._reported.add(description)
            self.report(f"{description}; a stop ends the run without waiting for it")
        now = time.monotonic()
        stuck_for = now - self._stuck_since.setdefault(waited_for, now)
        since_stop = self.seconds_since_stop()
        if since_stop is not None and since_stop >= STOP_GRACE_S and stuck_for >= ABANDONED_AFTER_S:
            raise FaultError(f"{description}, and did not return when the run was stopped")
