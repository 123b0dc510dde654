"""Curves of a run for the dashboard, read from its history in time slices.

The methods that return arrays import numpy when they are called, because numpy would delay the first frame.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from esper.recordings import events as ev
from esper.recordings.history.curves import Point, RunCurves, split_name
from esper.recordings.history.history import History

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AXES = ("round", "step", "env-steps", "time")
"""Possible x axes of a curve over the whole run."""
MAX_ENVS = 8
"""Maximum number of envs whose curves are kept: those that panels requested last."""
_EVENTS_PER_CHECK = 64
"""Number of events between two looks at the clock."""
_WANTED_UPDATES = 2
"""Number of updates after a request for a curve: one more than until panels repeat the request."""
_ENV_OWNER = "env "


class CurvePoints(NamedTuple):
    """Points of a curve up to the playhead."""

    steps: NDArray[np.uint32]
    """Steps of the run over all rounds, from 1."""
    values: NDArray[np.float64]


class StepAxes(NamedTuple):
    """Positions of the steps of a run on the possible x axes. N ended steps."""

    steps_per_round: int
    steps: NDArray[np.uint32]
    """Numbers of the ended steps, over all rounds. [N]"""
    env_steps: NDArray[np.float64]
    """Number of env-steps until the end of each. [N]"""
    seconds: NDArray[np.float64]
    """Recorded seconds from the first event to the end of each. [N]"""

    def x_values(self, steps: NDArray[np.uint32], axis: str) -> NDArray[np.float64]:
        """Return steps of the run as values of an axis.

        Args:
            axis: Of `AXES`. A round ends at its number. Time is recorded time, in seconds.
        """
        import numpy as np

        if axis == "step" or not len(self.steps):
            return steps.astype(np.float64)
        if axis == "round":
            return steps / max(self.steps_per_round, 1)
        return np.interp(steps, self.steps, {"env-steps": self.env_steps, "time": self.seconds}[axis])


class CurveStore:
    """Curves of a run up to the playhead: those of `RunCurves`, of a single env once a panel requests one.

    Events that the history reads are added as they come, so that they are decoded once; those that it had read before
    are read again from its files. If the history is rewound, the curves are read again from the start of the round.
    """

    def __init__(self) -> None:
        self._playhead: int | None = None
        """Last position with points of a curve; None for the end of the events that were read."""
        self._num_wanted_updates = 0
        """Number of further updates that panels want."""
        self._num_rewinds = 0
        self._step_range: tuple[Hashable, tuple[int, int]] = (None, (0, 0))
        """The last `step_range`, with its key."""
        self._envs: dict[int, int] = {}
        """Position up to which the curves of each env were read, from the env asked for longest ago to the newest."""
        self._begin(None)

    def _begin(self, history: History | None) -> None:
        """Drop all curves, and begin with those of another history."""
        self._history = history
        self._position = 0
        """Number of events that were added."""
        self._kept: int | None = None
        """Position to which the history was rewound since the last update; None if it was not."""
        self._run = RunCurves(history.state_at(0) if history is not None else None)
        self._points: dict[str, _Points] = {}
        self._ends = _StepEnds()
        self._envs = dict.fromkeys(self._envs, 0)
        self._events: Iterator[ev.AnyEvent] = iter(())
        """Events from `_position` on."""
        self._env_events: Iterator[ev.AnyEvent] = iter(())
        """Events from `_env_position` on, for the curves of envs that panels requested later."""
        self._env_position = 0
        if history is not None:
            history.readers.append(self)

    def update(self, history: History | None, playhead: int | None, within: float) -> bool:
        """Read further events of a history.

        Args:
            history: History of the run, as far as it was read; None if none of it was.
            playhead: Last position with points of a curve; None for the end of the history.
            within: Seconds after which reading is interrupted.

        Returns:
            True if the curves may have changed.
        """
        before, self._playhead = self._key, playhead
        self._num_wanted_updates = max(self._num_wanted_updates - 1, 0)
        if history is not None:
            if history is not self._history:
                self._begin(history)
            if self._kept is not None:
                self._rewind(history, self._kept)
            deadline = perf_counter() + within
            self._read_on(history, deadline)
            self._read_envs(history, deadline)
        return self._key != before

    @property
    def _key(self) -> Hashable:
        """Key that changes whenever a curve may have changed."""
        end = self._position if self._playhead is None else min(self._playhead, self._position)
        return id(self._history), self._num_rewinds, end, *sorted(self._envs.items())

    @property
    def fraction_read(self) -> float:
        """Fraction of the history whose events were added."""
        return self._position / self._history.length if self._history is not None and self._history.length else 1.0

    @property
    def is_wanted(self) -> bool:
        """True if a panel has requested a curve since the last updates, so that the store should be updated."""
        return self._num_wanted_updates > 0

    @property
    def is_waiting(self) -> bool:
        """True if further updates will add requested points, although the history does not change."""
        is_behind = self.fraction_read < 1 or any(read < self._position for read in self._envs.values())
        return self.is_wanted and is_behind

    @property
    def names(self) -> list[str]:
        """Names of the curves with points up to the playhead, those of single envs left out."""
        self._num_wanted_updates = _WANTED_UPDATES
        return [name for name, points in self._points.items() if env_of(name) is None and points.count(self._playhead)]

    def curve(self, name: str) -> CurvePoints:
        """Return the points of a curve up to the playhead. Those of an env are read from the first call on."""
        self._num_wanted_updates = _WANTED_UPDATES
        env = env_of(name)
        if env is not None:
            self._envs[env] = self._envs.pop(env, 0)
            if len(self._envs) > MAX_ENVS:
                dropped = next(iter(self._envs))
                del self._envs[dropped]
                self._points = {name: points for name, points in self._points.items() if env_of(name) != dropped}
        return self._points.get(name, _NO_POINTS).until(self._playhead)

    def key(self, *names: str) -> Hashable:
        """Return a key that changes with the points of these curves."""
        self._num_wanted_updates = _WANTED_UPDATES
        counts = [points.count(self._playhead) if (points := self._points.get(name)) else 0 for name in names]
        return id(self._history), self._num_rewinds, *counts

    @property
    def step_range(self) -> tuple[int, int]:
        """First and last step of the run with a point up to the playhead; zeros without one."""
        key = self._key
        if self._step_range[0] != key:
            ranges = [found for points in self._points.values() if (found := points.step_range(self._playhead))]
            first, last = min((start for start, _ in ranges), default=0), max((end for _, end in ranges), default=0)
            self._step_range = key, (first, last)
        return self._step_range[1]

    @property
    def axes(self) -> StepAxes:
        """Positions of all steps on the possible x axes, as copies."""
        import numpy as np

        ends = self._ends
        return StepAxes(
            self._run.env_curves.steps, np.array(ends.steps), np.array(ends.env_steps), np.array(ends.seconds)
        )

    def x_values(self, steps: NDArray[np.uint32], axis: str) -> NDArray[np.float64]:
        """Return steps of the run as values of an axis; see `StepAxes.x_values`."""
        return self.axes.x_values(steps, axis)

    def read(self, position: int, events: Sequence[ev.AnyEvent]) -> None:
        """Add events that the history has just read, if all before them were added.

        Args:
            position: Number of events before them.
        """
        if position == self._position and self._kept is None and self._history is not None:
            self._add(self._history, events)

    def rewind(self, position: int) -> None:
        """Note that the history has dropped the events after a position."""
        if position < self._position:
            self._kept = position if self._kept is None else min(position, self._kept)

    def _rewind(self, history: History, position: int) -> None:
        """Drop the curves from the start of the round of a position on."""
        self._kept, self._num_rewinds = None, self._num_rewinds + 1
        round_index = bisect_left(history.rounds, position) - 1
        self._position = history.rounds[round_index] + 1 if round_index >= 0 else 0
        for points in self._points.values():
            points.truncate_after(self._position)
        self._points = {name: points for name, points in self._points.items() if points}
        self._ends.truncate_after(self._position)
        planted = [name for name in self._points if split_name(name)[0] == "planted"]
        self._run = RunCurves(history.state_at(self._position), planted=planted)
        self._envs = {env: min(read, self._position) for env, read in self._envs.items()}
        self._events = self._env_events = iter(())

    def _read_on(self, history: History, deadline: float) -> None:
        """Add events that the history has read already."""
        while self._position < history.length and perf_counter() < deadline:
            events = list(islice(self._events, _EVENTS_PER_CHECK))
            if events:
                self._add(history, events)
            else:  # the iterator ends where the history ended when it was made
                self._events = history.events(self._position)

    def _add(self, history: History, events: Sequence[ev.AnyEvent]) -> None:
        followed = {env for env, read in self._envs.items() if read == self._position}
        for event in events:
            self._position += 1
            for point in self._run.points(event):
                if isinstance(point, Point):
                    self._add_point(point, self._position)
            if isinstance(event, ev.EnvStepped):
                self._ends.num_env_steps += 1
                if event.env in followed:
                    self._add_env(event, self._position)
            elif isinstance(event, ev.PhaseTimed):
                seconds = history.elapsed(self._position - 1, event.time)
                self._ends.append(self._position, self._run.env_curves.step_of(event), seconds)
        for env in followed:
            self._envs[env] = self._position

    def _read_envs(self, history: History, deadline: float) -> None:
        """Read the curves of envs that panels requested after their first events had been added."""
        while (behind := [env for env, read in self._envs.items() if read < self._position]) and (
            perf_counter() < deadline
        ):
            start = self._envs[behind[-1]]  # the env asked for last, and those that were read as far
            group = {env for env in behind if self._envs[env] == start}
            if start != self._env_position:
                self._env_position, self._env_events = start, iter(())
            events = list(islice(self._env_events, min(_EVENTS_PER_CHECK, self._position - start)))
            if not events:
                self._env_events = history.events(start)
            for event in events:
                self._env_position += 1
                if isinstance(event, ev.EnvStepped) and event.env in group:
                    self._add_env(event, self._env_position)
            for env in group:
                self._envs[env] = self._env_position

    def _add_env(self, event: ev.EnvStepped, position: int) -> None:
        for point in self._run.env_curves.points(event):
            self._add_point(point, position)

    def _add_point(self, point: Point, position: int) -> None:
        points = self._points.get(point.curve)
        if points is None:
            points = self._points[point.curve] = _Points()
        points.append(position, point.step, point.value)


def env_of(curve: str) -> int | None:
    """Return the env of a curve; None if it is not the curve of a single env."""
    owner = split_name(curve)[1]
    return int(owner.removeprefix(_ENV_OWNER)) if owner.startswith(_ENV_OWNER) else None


class _Points:
    """Points of a curve, with the position of the event that added each."""

    def __init__(self) -> None:
        self._positions = array("I")
        self._steps = array("I")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values)

    def append(self, position: int, step: int, value: float) -> None:
        self._positions.append(position)
        self._steps.append(step)
        self._values.append(value)

    def truncate_after(self, position: int) -> None:
        """Drop the points that were added after a position."""
        count = self.count(position)
        for column in (self._positions, self._steps, self._values):
            del column[count:]

    def count(self, playhead: int | None) -> int:
        """Return the number of points up to a position; None for all."""
        return len(self) if playhead is None else bisect_right(self._positions, playhead)

    def step_range(self, playhead: int | None) -> tuple[int, int] | None:
        """Return the steps of the first and the last point up to a position; None if there is none."""
        count = self.count(playhead)
        return (self._steps[0], self._steps[count - 1]) if count else None

    def until(self, playhead: int | None) -> CurvePoints:
        """Return copies of the points up to a position; None for all."""
        import numpy as np

        count = self.count(playhead)
        return CurvePoints(np.array(self._steps[:count]), np.array(self._values[:count]))


_NO_POINTS = _Points()


class _StepEnds:
    """End of each step: position, step of the run, number of env-steps and recorded seconds."""

    def __init__(self) -> None:
        self._positions = array("I")
        self.steps = array("I")
        self.env_steps = array("d")
        self.seconds = array("d")
        """Recorded seconds from the first event."""
        self.num_env_steps = 0
        """Number of env-steps since the first event."""

    def append(self, position: int, step: int, seconds: float) -> None:
        self._positions.append(position)
        self.steps.append(step)
        self.env_steps.append(self.num_env_steps)
        self.seconds.append(seconds)

    def truncate_after(self, position: int) -> None:
        """Drop the ends of steps after the start of a round at a position."""
        count = bisect_right(self._positions, position)
        for column in (self._positions, self.steps, self.env_steps, self.seconds):
            del column[count:]
        self.num_env_steps = int(self.env_steps[-1]) if self.env_steps else 0
