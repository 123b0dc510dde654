"""The simulations that the dashboard requests by itself while cores are idle, the most useful first."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from esper.common.system.process import available_cores
from esper.recordings.effects.messages import AnyRequest, RoundsRequest, SimulationRequest
from esper.recordings.effects.plantings import RoundResults
from esper.recordings.events import RunStarted
from esper.recordings.health.root_cause import find_root_cause
from esper.recordings.state.health_stats import memory_name
from esper.recordings.state.state import RunState
from esper.sanctum.source import RunSource

ROUNDS_PER_REQUEST = 8
"""Maximum number of rounds whose references one process computes: its start takes seconds."""
MAX_EARLIER_ROUNDS = 32
"""Approximate number of earlier rounds with references, evenly spread: they are the points of a curve."""
LOOK_INTERVAL_S = 2.0
"""Minimum seconds between two looks for work."""


class IdleWork:
    """The queue of simulations that the dashboard requests by itself.

    References of the last rounds come first, then the causes of problems, the effects of the seeds of the last round,
    and the references of earlier rounds. Each is requested once; after a problem, nothing is.
    """

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._done: set[tuple[str, int]] = set()
        """Kind and round of everything that was requested, or that is known."""
        self._tested: set[tuple[int, int, int]] = set()
        """Round, env and step of the symptoms whose causes were requested."""
        self._running: set[tuple[str, int]] | None = None
        """Kind and rounds of the request that the process serves; None if it serves none of this queue."""
        self._next_look = 0.0
        self._length, self._rounds_ended = -1, 0
        """Length of the history, and number of rounds that had ended there."""
        self.problem = ""
        """Why nothing is requested any more; empty if something is."""

    @property
    def is_running(self) -> bool:
        """True while the process serves a request of this queue."""
        return self._running is not None

    @property
    def obstacle(self) -> str:
        """Why references cannot be computed here, in a few words; empty if they can."""
        started = self._source.state.started
        if started is None or self._source.state.search is not None:
            return ""
        if started.task_code and not self._source.task:
            return "needs --task FILE.py"
        if not self._has_torch:
            return "needs torch"
        if not _is_of_cpu(started):
            return "esper-sanctum whatif RUN --growth computes it"
        return self.problem

    @cached_property
    def _has_torch(self) -> bool:
        return find_spec("torch") is not None

    def next_request(self, troubled_envs: Iterable[int]) -> AnyRequest | None:
        """Return the next request, for which a process is to be started; None without one, or while cores are busy.

        Args:
            troubled_envs: Envs with an active anomaly.
        """
        now, directory = time.monotonic(), self._source.directory
        if now < self._next_look or directory is None:
            return None
        self._next_look = now + LOOK_INTERVAL_S
        state = self._source.state
        if state.started is None or state.search is not None or self.obstacle or not self._has_idle_core:
            return None
        ended = self._count_ended_rounds()
        first_of_last = max(ended - ROUNDS_PER_REQUEST, 0) + 1
        earlier = range(first_of_last - 1, 0, -max(ended // MAX_EARLIER_ROUNDS, 1))
        return (
            self._request_rounds(directory, range(ended, first_of_last - 1, -1), "references")
            or self._request_causes(directory, state, troubled_envs)
            or self._request_rounds(directory, [ended] if ended else [], "seeds")
            or self._request_rounds(directory, earlier, "references")
        )

    @property
    def must_end(self) -> bool:
        """True if the process serves this queue while the run needs all cores."""
        return self.is_running and self._trains and os.getloadavg()[0] > available_cores()

    def end(self, problem: str = "") -> None:
        """Note that the process has ended, and its problem if it has one."""
        self._running = None
        self.problem = self.problem or problem

    def cancel(self) -> None:
        """Note that the process was ended early: its request is made again."""
        self._done -= self._running or set()
        self._running = None

    def skip(self, found: RoundResults) -> None:
        """Note which results of a round are complete."""
        known = {"references": found.has_all_references, "seeds": found.has_all_effects}
        self._done |= {(aim, found.round) for aim, is_known in known.items() if is_known}

    @property
    def _trains(self) -> bool:
        """True if the run trains now, on this machine."""
        source = self._source
        return (source.live or source.following) and source.status().name in ("starting", "running", "silent", "stuck")

    @property
    def _has_idle_core(self) -> bool:
        """True if the run does not train, or leaves a core idle; a process of low priority needs no more than that."""
        history = self._source.history
        if not self._source.live and (history is None or not history.is_fully_read):
            return False
        return not self._trains or os.getloadavg()[0] <= available_cores() - 1

    def _count_ended_rounds(self) -> int:
        """Return how many rounds of the run have ended, in a replay also after the shown moment."""
        history = self._source.history
        if self._source.live or history is None:
            return self._source.live_state.rounds_ended
        if history.length != self._length:
            self._length = history.length
            self._rounds_ended = history.state_at(history.length).rounds_ended
        return self._rounds_ended

    def _request_rounds(
        self, directory: Path, rounds: Iterable[int], aim: Literal["references", "seeds"]
    ) -> RoundsRequest | None:
        missing = [number for number in rounds if (aim, number) not in self._done][:ROUNDS_PER_REQUEST]
        if not missing:
            return None
        self._running = {(aim, number) for number in missing}
        self._done |= self._running
        return RoundsRequest(recording=str(directory), rounds=missing, aim=aim, task=self._source.task)

    def _request_causes(self, directory: Path, state: RunState, envs: Iterable[int]) -> SimulationRequest | None:
        """Return the request for the possible causes of the last drop of an env's score that was not tested."""
        for env in envs:
            cause = find_root_cause(state, env)
            symptom = cause.symptom
            if symptom is None or not cause.is_drop or (symptom.round, env, symptom.step) in self._tested:
                continue
            self._tested.add((symptom.round, env, symptom.step))
            steps = [candidate.decision_step for candidate in cause.candidates]
            if steps:
                self._running = set()
                return SimulationRequest(
                    recording=str(directory), round=symptom.round, env=env, without=steps, task=self._source.task
                )
        return None


def _is_of_cpu(started: RunStarted) -> bool:
    """Return True if a run trained on CPUs."""
    return all(memory_name(lane) != lane for lane in started.lanes)
