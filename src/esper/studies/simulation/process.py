"""A process of low priority that simulates one episode for the dashboard, which must not import torch.

It reads one `SimulationRequest` from standard input, and writes lines of `SimulationUpdate` to standard output. It ends
when its input is closed, because the dashboard is gone then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from esper.common.configuration.config import ConfigError, TaskError
from esper.common.system.process import NamedThread
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.effects.change import changes_of, without_decision
from esper.recordings.effects.episode import read_episode
from esper.recordings.effects.messages import SimulationRequest, SimulationUpdate
from esper.recordings.events.codec import encode_json, make_decoder
from esper.recordings.files.segments import ReadError
from esper.recordings.history.history import open_history
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

    request = make_decoder(SimulationRequest).decode(sys.stdin.buffer.readline())
    NamedThread(target=_exit_at_end_of_input, name="hangup", daemon=True).start()
    try:
        simulate(request, send)
    except (CheckpointError, ConfigError, ReadError, TaskError) as error:
        send(SimulationUpdate(error=str(error)))
    except OSError as error:
        send(SimulationUpdate(error=f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error)))


def simulate(request: SimulationRequest, send: Callable[[SimulationUpdate], None]) -> None:
    """Read an episode, simulate it without the requested decisions, and send each result.

    Raises:
        ConfigError: The recording does not contain the episode completely, or the task must be named.
        CheckpointError: A file of the policy is damaged.
        ReadError: The recording cannot be read.
        TaskError: The task cannot be loaded, or is not that of the run.
        OSError: The stored results cannot be read.
    """
    recording = Path(request.recording)
    episode = read_episode(open_history(recording), request.round, request.env)
    send(SimulationUpdate(episode=episode))
    if request.without is None:
        changes = list(changes_of(episode).values())
    else:
        changes = [without_decision(episode, step) for step in request.without if step <= len(episode.steps)]
    send(SimulationUpdate(decisions=len(changes)))
    from esper.studies.simulation.recording import RecordingSimulator
    from esper.training.lanes.errors import FaultError  # imports torch, which takes seconds

    lane = episode.started.lanes[episode.env]
    simulator = RecordingSimulator(
        recording,
        [(episode, changes)],
        task_reference=request.task,
        devices=("cpu:0",) if is_cpu_lane(lane) else ("auto",),
        telemetry_dir=recording.parent,
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
            send(SimulationUpdate(simulation=found))
        if simulator.storage_problem is not None:
            send(SimulationUpdate(warning=simulator.storage_problem))
    except FaultError as error:
        send(SimulationUpdate(error=str(error)))
    finally:
        simulator.close()


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
