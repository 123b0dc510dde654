"""A process of low priority that simulates episodes for the dashboard, which must not import torch.

It reads one `SimulationRequest` or `RoundsRequest` from standard input, and writes lines of `SimulationUpdate` to
standard output. It ends when its input is closed, because the dashboard is gone then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from esper.common.configuration.config import ConfigError, TaskError
from esper.common.system.process import NamedThread
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.effects.change import WITHOUT_GROWTH, Change, changes_of, without_decision, without_seed
from esper.recordings.effects.episode import RecordedEpisode, read_episode, read_round
from esper.recordings.effects.messages import AnyRequest, RoundsRequest, SimulationRequest, SimulationUpdate
from esper.recordings.effects.references import episodes_to_measure, known_references
from esper.recordings.effects.results import Simulation, reproduced_round
from esper.recordings.effects.store import EffectStore
from esper.recordings.events.codec import encode_json, make_decoder
from esper.recordings.files.segments import ReadError
from esper.recordings.history.history import History, open_history
from esper.training.lanes.device_names import is_cpu_lane

BUSY_RATIO = 1.5
"""Wall time of a step divided by its CPU time, above which other processes want the core."""
REST_FACTOR = 10.0
"""Length of a rest after such a step, as a multiple of its CPU time: idle priority alone evicts the caches of a run."""
PROGRESS_INTERVAL_S = 0.2
"""Minimum seconds between two messages about the progress."""
_LOWEST_PRIORITY = 19


def main() -> None:
    """Serve the request on standard input."""
    lower_priority()
    output = _take_output()

    def send(update: SimulationUpdate) -> None:
        with suppress(BrokenPipeError):  # the dashboard is gone, and with it the input
            output.write(encode_json(update) + b"\n")
            output.flush()

    decoder: msgspec.json.Decoder[AnyRequest] = make_decoder(AnyRequest)
    request = decoder.decode(sys.stdin.buffer.readline())
    NamedThread(target=_exit_at_end_of_input, name="hangup", daemon=True).start()
    try:
        simulate(request, send)
    except (CheckpointError, ConfigError, ReadError, TaskError) as error:
        send(SimulationUpdate(error=str(error)))
    except OSError as error:
        send(SimulationUpdate(error=f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error)))


def simulate(request: AnyRequest, send: Callable[[SimulationUpdate], None]) -> None:
    """Read episodes, simulate the requested changes of them, and send each result.

    Raises:
        ConfigError: The recording does not contain an episode completely, or the task must be named.
        CheckpointError: A file of the policy is damaged.
        ReadError: The recording cannot be read.
        TaskError: The task cannot be loaded, or is not that of the run.
        OSError: The stored results cannot be read.
    """
    history = open_history(Path(request.recording))
    stored = EffectStore(history.path).read()
    if isinstance(request, RoundsRequest) and request.aim == "references":
        references = _References(history, request.rounds, stored, send)
        _simulate(request, references.wanted, references.add, send)
        return
    if isinstance(request, SimulationRequest):
        wanted = [_wanted_of_episode(request, history)]
    else:
        wanted = [
            (episode, [without_seed(seed) for seed in episode.seeds])
            for episodes in _read_rounds(history, request.rounds).values()
            for episode in episodes_to_measure(reproduced_round(episodes, stored))
        ]
    for episode, _ in wanted:
        send(SimulationUpdate(episode=episode))
    if wanted:
        send(SimulationUpdate(decisions=sum(len(changes) for _, changes in wanted)))
    _simulate(request, wanted, lambda found: send(SimulationUpdate(simulation=found)), send)


def _simulate(
    request: AnyRequest,
    wanted: Sequence[tuple[RecordedEpisode, Sequence[Change]]],
    on_result: Callable[[Simulation], None],
    send: Callable[[SimulationUpdate], None],
) -> None:
    """Simulate episodes, each with its changes. Without any, torch is not imported. Raises as `simulate`."""
    if not wanted:
        return
    from esper.studies.simulation.recording import RecordingSimulator
    from esper.training.lanes.errors import FaultError  # imports torch, which takes seconds

    first, _ = wanted[0]
    simulator = RecordingSimulator(
        Path(request.recording),
        wanted,
        task_reference=request.task,
        devices=("cpu:0",) if is_cpu_lane(first.started.lanes[first.env]) else ("auto",),
        telemetry_dir=Path(request.recording).parent,
    )
    total, done, sent = simulator.num_env_steps, 0, 0.0
    wall, cpu = time.monotonic(), time.process_time()

    def count(num_episodes: int) -> None:
        nonlocal done, sent, wall, cpu
        done += num_episodes
        now, spent = time.monotonic(), time.process_time() - cpu
        if now - sent >= PROGRESS_INTERVAL_S:
            sent = now
            send(SimulationUpdate(progress=(done, total)))
        if now - wall > BUSY_RATIO * spent:
            time.sleep(REST_FACTOR * spent)
        wall, cpu = time.monotonic(), time.process_time()

    try:
        send(SimulationUpdate(decisions=simulator.num_changes))
        send(SimulationUpdate(progress=(0, total)))
        for found in simulator.simulate(count):
            on_result(found)
        if simulator.storage_problem is not None:
            send(SimulationUpdate(warning=simulator.storage_problem))
    except FaultError as error:
        send(SimulationUpdate(error=str(error)))
    finally:
        simulator.close()


def _wanted_of_episode(request: SimulationRequest, history: History) -> tuple[RecordedEpisode, list[Change]]:
    """Return the episode of a request, with the changes that it names. Raises ConfigError."""
    episode = read_episode(history, request.round, request.env)
    if request.without is None:
        return episode, list(changes_of(episode).values())
    return episode, [without_decision(episode, step) for step in request.without if step <= len(episode.steps)]


def _read_rounds(history: History, rounds: Iterable[int]) -> dict[int, dict[int, RecordedEpisode]]:
    """Return the episodes of rounds by env, keyed by round. Rounds that are not recorded are left out."""
    found: dict[int, dict[int, RecordedEpisode]] = {}
    for number in rounds:
        with suppress(ConfigError):
            found[number] = read_round(history, number)
    return found


class _References:
    """The references of some rounds. Those of a round are sent together, once all of them are known.

    Attributes:
        wanted: Episodes that are still to be simulated, each with the change that leaves out its growth.
    """

    def __init__(
        self,
        history: History,
        rounds: Iterable[int],
        stored: list[Simulation],
        send: Callable[[SimulationUpdate], None],
    ) -> None:
        self._send = send
        self._stored = stored
        self._episodes = _read_rounds(history, rounds)
        self.wanted = [(episode, [WITHOUT_GROWTH]) for number in self._episodes for episode in self._send_known(number)]

    def add(self, found: Simulation) -> None:
        """Add a result."""
        self._stored.append(found)
        if found.change == WITHOUT_GROWTH:
            self._send_known(found.round)

    def _send_known(self, number: int) -> list[RecordedEpisode]:
        """Send the references of a round if none is missing; return the episodes that need one."""
        known, missing = known_references(reproduced_round(self._episodes[number], self._stored))
        if not missing:
            self._send(SimulationUpdate(references=known))
        return missing


def lower_priority() -> None:
    """Run this process only while other processes leave a core idle, as far as the system allows it."""
    with suppress(OSError):
        if sys.platform == "linux":
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.nice(_LOWEST_PRIORITY)
    if os.getsid(0) == os.getpid():  # else it would apply to the processes that share the session
        with suppress(OSError):  # Linux first shares the cores out between sessions
            Path("/proc/self/autogroup").write_text(str(_LOWEST_PRIORITY))


def _take_output() -> BinaryIO:
    """Return standard output for messages, and let everything else print to standard error, code of the user too."""
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return messages


def _exit_at_end_of_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # not `sys.stdin`: Python could not lock it at its exit
        pass
    os._exit(0)
