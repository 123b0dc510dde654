"""The known effects of the decisions of a run, and the process that computes more of them."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from esper.common.configuration.config import ConfigError
from esper.common.decisions import WAIT
from esper.common.formatting import format_duration
from esper.common.system.process import NamedThread, python_command
from esper.recordings.effects.change import UNCHANGED, without_decision
from esper.recordings.effects.episode import RecordedEpisode, read_round
from esper.recordings.effects.messages import AnyRequest, SimulationRequest, SimulationUpdate
from esper.recordings.effects.paying import PayingPlantings, paying_plantings
from esper.recordings.effects.plantings import planting_effects, read_round_results
from esper.recordings.effects.references import HostReference, summarise_references
from esper.recordings.effects.results import Effect, EpisodeResults, Simulation, reproduced_results
from esper.recordings.effects.store import EffectStore
from esper.recordings.events.codec import DECODE_ERRORS, encode_json, make_decoder
from esper.recordings.files.segments import ReadError
from esper.recordings.history.summary import BlueprintWorth, RoundReference
from esper.recordings.state.series import StepTrace
from esper.recordings.state.state import EnvState
from esper.sanctum.idle_work import IdleWork
from esper.sanctum.source import RunSource

_PROGRAM = "from esper.studies.simulation.process import main; main()"
"""Program of the process. The dashboard itself must not import torch."""


class SimulationProcess:
    """A process that simulates episodes, and a thread that reads its messages.

    Args:
        request: Episodes, and the results that are computed of them.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, request: AnyRequest) -> None:
        self.request = request
        self.messages: queue.SimpleQueue[SimulationUpdate | None] = queue.SimpleQueue()
        """Messages that were not handled yet; None once the process has ended."""
        self._is_closed = False
        command, environment = python_command(_PROGRAM)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by the thread)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # closed when this process ends, however it does
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,  # signals of the terminal are for the dashboard
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(encode_json(request) + b"\n")
            self._process.stdin.flush()
        NamedThread(target=self._read, name="what if", daemon=True).start()

    def close(self) -> None:
        """Kill the process. Its stored results stay. The thread waits for its end."""
        self._is_closed = True
        self._process.kill()

    def _read(self) -> None:
        """Read messages until the process has ended. Without one that says why it failed, report its last output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(*DECODE_ERRORS):
            for line in self._process.stdout:
                self.messages.put(_decoder.decode(line))
        if self._process.wait() and not self._is_closed:
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().splitlines() or ["its process was killed"]
            self.messages.put(SimulationUpdate(error=last[-1]))
        self.messages.put(None)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()


class KnownEffects(NamedTuple):
    """The known effects of the decisions of one episode."""

    results: EpisodeResults
    effects: dict[int, Effect]
    """Known effects of single decisions, keyed by step, from 1."""
    trace: list[StepTrace]
    """Traces of all recorded steps."""

    @property
    def episode(self) -> RecordedEpisode:
        """The episode."""
        return self.results.episode

    @property
    def unchanged(self) -> Simulation | None:
        """Simulation of the episode without a change; None if no effect is known."""
        return self.results.get()

    def without(self, step: int) -> Simulation | None:
        """Return the simulation without the decision of a step; None if it is not known."""
        return self.results.get(without_decision(self.episode, step)) if step <= len(self.episode.steps) else None


class WhatIf:
    """The known effects of the decisions of a run, its references, and the process that computes more.

    The process serves one request at a time: one of the user, or the next of `IdleWork`, which it ends for the user.
    """

    def __init__(self, source: RunSource) -> None:
        self._source = source
        self._process: SimulationProcess | None = None
        self._idle_work = IdleWork(source)
        self._progress = (0, 0)
        self._computed, self._wanted = 0, 0
        """Number of decisions whose effects the process has computed, and of all that it computes; 0 if not known."""
        self._simulating_since: float | None = None
        """Monotonic time of the first message about the progress, seconds."""
        self._store: EffectStore | None = None
        self._store_version: tuple[int, ...] = ()
        self._stored: list[Simulation] = []
        self._received: list[Simulation] = []
        """Results of the process, because it may not be able to store them."""
        self._by_episode: dict[tuple[int, int], list[Simulation]] = {}
        """All of these results, keyed by round and env."""
        self._episodes: dict[tuple[int, int], RecordedEpisode] = {}
        """Recorded episodes that were read so far, keyed by round and env."""
        self._unreadable: dict[int, int] = {}
        """Length of the history when a round could not be read from it, keyed by round."""
        self._known: dict[tuple[int, int], KnownEffects] = {}
        """Keyed by round and env. Emptied when there are new results."""
        self._rounds_to_read: dict[int, int] = {}
        """Number of stored results of each round that is to be read for them, keyed by round."""
        self._rounds_read: dict[int, int] = {}
        """The same for each round when it was read."""
        self._results: dict[tuple[int, int], EpisodeResults] = {}
        """Results of episodes with effects of seeds, keyed by round and env."""
        self.references: dict[int, list[HostReference]] = {}
        """Known references of the hosts, keyed by round."""
        self._of_plantings: tuple[Hashable, dict[str, BlueprintWorth], PayingPlantings | None] = (None, {}, None)
        """The last `blueprint_effects` and `paying_plantings`, with their key."""
        self.version = 0
        """Incremented when anything has changed that a panel shows."""
        self.failures: list[str] = []
        """Why simulations failed, or could not be stored; the app shows and removes these sentences."""

    # State that panels show

    @property
    def is_running(self) -> bool:
        """True while the process computes for the user."""
        return self._process is not None and not self._idle_work.is_running

    @property
    def progress_text(self) -> str:
        """Subject, number of decisions, percentage and time left of the process; empty unless it serves the user."""
        process = self._process
        if process is None or not isinstance(process.request, SimulationRequest) or not self.is_running:
            return ""
        request, (done, total) = process.request, self._progress
        what = f"Effects in env {request.env:02d}, round {request.round}: "
        what += f"{self._computed} of {self._wanted}, " if self._wanted else ""
        if self._simulating_since is None or not done:
            return f"{what}starting…"
        elapsed = time.monotonic() - self._simulating_since
        return f"{what}{100 * done // total} %, {format_duration(elapsed / done * (total - done))} left"

    def known_effects(self, env: EnvState, round_number: int) -> KnownEffects | None:
        """Return the known effects of the episode of an env on the screen; None if it was not read.

        A restore of the run replaces an episode by another one of the same round. The steps on the screen decide.
        """
        key = round_number, env.env
        episode = self._episodes.get(key)
        if episode is None or not _is_same_episode(episode, env):
            episode = self._read_episode(env, round_number)
            self._known.pop(key, None)
        if episode is None:
            return None
        if key not in self._known:
            results = reproduced_results(episode, self._by_episode.get(key, ()))
            effects = results.decision_effects() if results.get() else {}
            self._known[key] = KnownEffects(results, effects, [StepTrace.from_event(step) for step in episode.steps])
        return self._known[key]

    def _read_episode(self, env: EnvState, round_number: int) -> RecordedEpisode | None:
        """Read the episodes of a round from the recording, if it was read and the round has results or is long."""
        history = self._source.history
        is_long = bool(env.trace) and env.trace[0].step > 1
        is_wanted = is_long or any(number == round_number for number, _ in self._by_episode)
        if history is None or not history.is_fully_read or not is_wanted:
            return None
        if self._unreadable.get(round_number) == history.length:
            return None
        self._unreadable[round_number] = history.length
        with contextlib.suppress(ConfigError, ReadError):
            for number, episode in read_round(history, round_number).items():
                self._episodes[round_number, number] = episode
        episode = self._episodes.get((round_number, env.env))
        return episode if episode is not None and _is_same_episode(episode, env) else None

    def reference_of(self, env: int, round_number: int) -> HostReference | None:
        """Return the reference of the host of an env in a round; None if it is not known."""
        return next((host for host in self.references.get(round_number, ()) if env in host.envs), None)

    def last_reference(self, last_round: int) -> RoundReference | None:
        """Return the scores without growth of the last round that has any, up to a round; None without one."""
        rounds = [number for number in self.references if number <= last_round]
        return summarise_references(self.references[max(rounds)]) if rounds else None

    @property
    def reference_obstacle(self) -> str:
        """Why this dashboard computes no references, in a few words; empty if it does, or if some are known."""
        return "" if self.references else self._idle_work.obstacle

    def blueprint_effects(self, last_round: int) -> dict[str, BlueprintWorth]:
        """Return the known effects of the plantings of each blueprint, as far as they were read.

        Args:
            last_round: Round of the shown moment; plantings after it are left out.
        """
        self._update_plantings(last_round)
        return self._of_plantings[1]

    def paying_plantings(self, last_round: int) -> PayingPlantings | None:
        """Return how many plantings pay, as far as their effects were read; None if no episode is completely known.

        Args:
            last_round: Round of the shown moment; plantings after it are left out.
        """
        self._update_plantings(last_round)
        return self._of_plantings[2]

    def _update_plantings(self, last_round: int) -> None:
        key = self.version, last_round
        if self._of_plantings[0] != key:
            # In a live run, only the process may have read an episode.
            received = {
                place: reproduced_results(episode, self._by_episode[place])
                for place, episode in self._episodes.items()
                if place in self._by_episode
            }
            found = (self._results | received).items()
            shown = [known for (number, _), known in found if number <= last_round]
            self._of_plantings = key, planting_effects(shown), paying_plantings(shown)

    # Changes

    def poll(self) -> bool:
        """Handle the messages of the process, and read stored results again. Return True if a panel may show more."""
        before = self.version
        self._handle_messages()
        self._read_store()
        self._read_next_round()
        return self.version != before or self.is_running

    def start(self, round_number: int, env: int, steps: list[int] | None) -> str | None:
        """Start a process that computes the effects of some decisions, or of all decisions of an episode.

        Args:
            steps: Steps of the decisions, from 1; None for all.

        Returns:
            A message if that is impossible, else None.
        """
        directory = self._source.directory
        if self.is_running:
            return "Effects are being computed already."
        if directory is None:
            return "No recording yet."
        self.cancel()
        request = SimulationRequest(
            recording=str(directory),
            round=round_number,
            env=env,
            without=steps,
            task=self._source.task,
        )
        trace = self._source.state.envs[env].trace
        self._computed, self._wanted = 0, len(steps or [step for step in trace if step.op != WAIT])
        return self._start_process(request)

    def work_when_idle(self, troubled_envs: Iterable[int]) -> None:
        """Start the next request of `IdleWork` if cores are idle, and end one whose core the run needs.

        Args:
            troubled_envs: Envs with an active anomaly; the causes of their problems are tested.
        """
        if self._process is None and not self._reads_rounds:
            request = self._idle_work.next_request(troubled_envs)
            if request is not None and (problem := self._start_process(request)) is not None:
                self._idle_work.end(problem)
        elif self._idle_work.must_end:
            self.cancel()

    def _start_process(self, request: AnyRequest) -> str | None:
        """Start a process. Return a message if that is impossible, else None."""
        try:
            self._process = SimulationProcess(request)
        except OSError as error:
            return f"Effects cannot be computed: {error.strerror or error}"
        self._progress, self._simulating_since = (0, 0), None
        self.version += 1
        return None

    def cancel(self) -> None:
        """End the process. Its stored results stay."""
        if self._process is not None:
            self._process.close()
            self._process = None
            self._idle_work.cancel()
            self.version += 1

    def _handle_messages(self) -> None:
        while self._process is not None and not self._process.messages.empty():
            message = self._process.messages.get()
            if self.is_running or message is None or message.progress is None:
                self.version += 1
            if message is None:
                self._process = None
                self._idle_work.end()
                return
            if message.episode is not None:
                self._episodes[message.episode.round, message.episode.env] = message.episode
                self._known.clear()
            self._wanted = self._wanted if message.decisions is None else message.decisions
            if message.progress is not None:
                self._progress = message.progress
                self._simulating_since = self._simulating_since or time.monotonic()
            if message.simulation is not None:
                self._received.append(message.simulation)
                self._computed += message.simulation.change != UNCHANGED
                self._index()
            if message.references:
                self.references[message.references[0].round] = message.references
            if self._idle_work.is_running:
                self._idle_work.problem = message.error or message.warning or self._idle_work.problem
                self.failures += filter(None, [message.warning])
            else:
                self.failures += filter(None, (message.error, message.warning))

    def _read_store(self) -> None:
        """Read the stored results if their files have changed, also because of another process."""
        if self._store is None:
            if (directory := self._source.directory) is None:
                return
            self._store = EffectStore(directory)
        version = self._store.version
        if version == self._store_version:
            return
        self._store_version = version
        try:
            self._stored = self._store.read()
        except OSError as error:
            self.failures.append(f"stored effects cannot be read: {error.strerror or error}")
        self._index()
        self._unreadable.clear()
        self.version += 1
        counts = Counter(found.round for found in self._stored)
        self._rounds_to_read = {
            number: count for number, count in counts.items() if self._rounds_read.get(number) != count
        }

    def _index(self) -> None:
        self._by_episode = {}
        for found in (*self._stored, *self._received):
            self._by_episode.setdefault((found.round, found.env), []).append(found)
        self._known.clear()

    @property
    def _reads_rounds(self) -> bool:
        """True if rounds are to be read; of a live run, only after the user has opened its past."""
        history = self._source.history
        return bool(self._rounds_to_read) and history is not None and history.is_fully_read

    def _read_next_round(self) -> None:
        """Read the last round with new stored results, unless the process sends them."""
        history = self._source.history
        if not self._reads_rounds or self._process is not None or history is None:
            return
        number = max(self._rounds_to_read)
        self._rounds_read[number] = self._rounds_to_read.pop(number)
        try:
            found = read_round_results(history, number, self._stored)
        except ConfigError:  # the round is not in the recording
            return
        except ReadError as error:
            self.failures.append(str(error))
            return
        self._results |= {(number, known.episode.env): known for known in found.results if _has_effects_of_seeds(known)}
        if found.references:
            self.references[number] = found.references
        self._idle_work.skip(found)
        self.version += 1


def _has_effects_of_seeds(known: EpisodeResults) -> bool:
    """Return True if results say something about plantings."""
    return known.seed_effects() is not None or bool(planting_effects([known]))


def _is_same_episode(episode: RecordedEpisode, env: EnvState) -> bool:
    """Return True if the decisions of an env on the screen are those of a recorded episode, as far as it has them."""
    return all(
        (recorded.op, recorded.target, recorded.decision) == (step.op, step.target, step.decision)
        for step in env.trace
        if step.step <= len(episode.steps)
        for recorded in [episode.steps[step.step - 1]]
    )


_decoder = make_decoder(SimulationUpdate)
