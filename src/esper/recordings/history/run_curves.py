"""Curves of many runs, read in slices: those of the runs that a screen overlays."""

from __future__ import annotations

import time
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from esper.recordings.files.segments import ReadError
from esper.recordings.history.curve_cache import (
    CachedCurves,
    CacheError,
    Signature,
    event_files,
    load_curves,
    store_curves,
)
from esper.recordings.history.curve_store import CurvePoints, CurveStore, StepAxes, env_of
from esper.recordings.history.history import History
from esper.recordings.history.run_cache import RunCache
from esper.recordings.history.run_status import is_being_written

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_RUNS = 200
"""Maximum number of runs whose curves are kept: those that were requested last."""
CHECK_S = 2.0
"""Seconds between two looks for new events of the same run."""


class RunCurveLibrary:
    """Curves over all envs of many runs. Those of a run are read from the first request on, live runs as they grow.

    The curves of an ended run are cached when it has been read completely. Not thread-safe.

    Args:
        cache: Cache of the curves of ended runs.
    """

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._runs: dict[Path, _RequestedRun] = {}
        """From the run that was requested longest ago to the newest."""
        self.version = 0
        """Number that increases when a curve may have changed."""

    @property
    def notices(self) -> list[str]:
        """Sentences for the user: which runs cannot be read."""
        return [run.problem for run in self._runs.values() if run.problem is not None]

    @property
    def fraction_read(self) -> float:
        """Fraction of the requested runs that was read; 1 without a request."""
        fractions = [run.fraction_read for run in self._runs.values()]
        return sum(fractions) / len(fractions) if fractions else 1.0

    def poll(self, within: float) -> bool:
        """Read requested runs: cached ones first, then the others, small ones first.

        Args:
            within: Seconds after which reading is interrupted, at the next block of events.

        Returns:
            True if a curve may have changed.
        """
        deadline, before = perf_counter() + within, self.version
        due = sorted((run for run in reversed(self._runs.values()) if run.is_due), key=lambda run: run.next_check)
        for run in due:  # new ones first, those that were requested last
            self.version += run.check(self._cache)
            if perf_counter() >= deadline:
                break
        unread = sorted((run for run in self._runs.values() if run.is_unread), key=lambda run: run.size)
        for run in unread:
            self.version += run.read(deadline - perf_counter(), self._cache)
            if perf_counter() >= deadline:
                break
        return self.version != before

    def names(self, run: Path) -> list[str]:
        """Return the names of the curves of a run over all envs; empty until it is read."""
        return self._request(run).names

    def curve(self, run: Path, name: str) -> CurvePoints:
        """Return the points of a curve; none until the run is read, and if it does not have the curve.

        Args:
            run: Directory of the run.
            name: Name of a curve over all envs. Curves of single envs are not read.
        """
        return self._request(run).curve(name)

    def x_values(self, run: Path, steps: NDArray[np.uint32], axis: str) -> NDArray[np.float64]:
        """Return steps of a run as values of an axis of `AXES`; see `StepAxes.x_values`."""
        return self._request(run).axes.x_values(steps, axis)

    def forget(self, run: Path) -> None:
        """Drop the curves of a run. They are read again when one of them is requested."""
        if self._runs.pop(run, None) is not None:
            self.version += 1

    def _request(self, run: Path) -> _RequestedRun:
        found = self._runs[run] = self._runs.pop(run, None) or _RequestedRun(run)
        if len(self._runs) > MAX_RUNS:
            self.forget(next(iter(self._runs)))
        return found


_MIN_UPDATE_S = 0.001
"""Seconds for which events that the history had read before are added in every call, so that it makes progress."""
_NO_CURVES = CurveStore()


class _RequestedRun:
    """The curves of one run: from the cache, or read from its recording."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature: Signature | None = None
        """Signature of the events that are read, or were; None before the first check."""
        self._is_live = False
        self.next_check = 0.0
        """Time of the monotonic clock from which on the run should be checked for new events; 0 before the first check.
        """
        self._cached: CachedCurves | None = None
        """Curves from the cache; None if it has none. They are shown until newer events are read completely."""
        self._history: History | None = None
        self._store = CurveStore()
        self.is_unread = False
        """True if events are to be read."""
        self.problem: str | None = None
        """Why the run cannot be read."""

    @property
    def is_due(self) -> bool:
        """True if the run should be checked."""
        return monotonic() >= self.next_check

    @property
    def size(self) -> int:
        """Size of the events in bytes."""
        return sum(size for _, size, _ in self._signature or ())

    @property
    def fraction_read(self) -> float:
        """Fraction of the events that was read."""
        if self._cached is not None or self.problem is not None:
            return 1.0
        return self._history.fraction_read if self._history is not None else 0.0

    def check(self, cache: RunCache) -> bool:
        """Look for new events, and for cached curves of an ended run. Returns True if curves may have changed."""
        self.next_check = monotonic() + CHECK_S
        try:
            signature = event_files(self._path)
            written = max((when for _, _, when in signature), default=0) / 1e9
            is_live = is_being_written(self._path, written, time.time())
        except OSError as error:
            self._signature = None
            return self._fail(f"cannot read {self._path}: {error.strerror or error}")
        if (signature, is_live) == (self._signature, self._is_live):
            return False
        self._signature, self._is_live, self.problem = signature, is_live, None
        if not is_live and self._history is None and (cached := load_curves(cache, self._path, signature)):
            self._cached, self.is_unread = cached, False
            return True
        self.is_unread = True
        return False

    def read(self, within: float, cache: RunCache) -> bool:
        """Read further events for a number of seconds. Returns True if curves may have changed."""
        deadline = perf_counter() + within
        if self._history is None:
            self._history, self._store = History(self._path), CurveStore()
            self._store.update(self._history, None, 0.0)  # so that it receives the events as they are read
        length, history = self._history.length, self._history
        try:
            kept = history.poll(max(deadline - perf_counter(), 0.0))
        except ReadError as error:
            return self._fail(str(error))
        changed = self._store.update(history, None, max(deadline - perf_counter(), _MIN_UPDATE_S))
        changed |= history.length != length or kept != length
        if history.is_fully_read and self._store.fraction_read == 1:
            self.is_unread, self._cached = False, None
            if not self._is_live:
                self._keep(cache)
        return (changed and self._cached is None) or not self.is_unread

    def _keep(self, cache: RunCache) -> None:
        """Cache the curves of an ended run, and drop its history, unless the files have changed since the check."""
        try:
            signature = event_files(self._path)
        except OSError:
            return  # the next check reports it
        if signature == self._signature and (cached := store_curves(cache, self._path, signature, self._store)):
            self._cached, self._history, self._store = cached, None, CurveStore()

    def _fail(self, problem: str) -> bool:
        """Drop the curves of a run that cannot be read. Returns True if that changes anything."""
        changed = self.problem != problem
        self.problem, self.is_unread = problem, False
        self._cached, self._history, self._store = None, None, CurveStore()
        return changed

    @property
    def names(self) -> list[str]:
        """Names of the curves."""
        return self._cached.names if self._cached is not None else self._store.names

    def curve(self, name: str) -> CurvePoints:
        """Return the points of a curve; none if the run does not have it, or not yet."""
        if self._cached is not None:
            try:
                return self._cached.curve(name) or _NO_CURVES.curve("")
            except CacheError:
                self._read_again()
        return self._store.curve(name) if env_of(name) is None else _NO_CURVES.curve("")

    @property
    def axes(self) -> StepAxes:
        """Positions of all steps on the possible x axes."""
        if self._cached is not None:
            try:
                return self._cached.axes
            except CacheError:
                self._read_again()
        return self._store.axes

    def _read_again(self) -> None:
        """Read the recording, because the cache has changed or is damaged."""
        self._cached, self.is_unread = None, True
