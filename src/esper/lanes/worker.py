"""Worker process that trains the envs of a CPU lane. Threads would contend for the GIL at every operator.

The envs live in the main process. For each epoch it sends the complete state: stages and alphas of the slots, weights,
buffers, momenta and loss scale. The worker returns the results and the new tensors. It keeps only modules to load that
state into, so a worker that dies costs one step, and a new one replaces it.

All envs of a step travel in one message each way: between two epochs the code of the transfer has left the CPU caches,
and runs several times slower (`docs/experiments.md`, "one message a step").
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import torch

from esper.config import Config
from esper.envs.env import Env
from esper.envs.env_state import WorkerEnvState
from esper.envs.hosts import HostFactory
from esper.envs.precision import make_scaler_factory
from esper.envs.stopwatch import PhaseTimer
from esper.growth.outputs import map_tensors
from esper.lanes.errors import FaultError
from esper.lanes.spawn import WorkerSpawner
from esper.process import freeze_loaded_objects
from esper.tasks.loading import load_source
from esper.tasks.probe import TaskProfile
from esper.tasks.settings import override_settings
from esper.tasks.splits import Splits, map_splits, write_splits
from esper.tasks.task import Task, TaskSource

CPU = torch.device("cpu")
MAX_PRINTED_CHARACTERS = 10_000
"""Maximum length of the printed text of one step that a worker returns."""


class WorkerInit(NamedTuple):
    """First message to a worker."""

    task: Task | TaskSource
    """The task, or where the worker imports it from if it is the user's own code."""
    profile: TaskProfile
    config: Config
    splits_fd: int
    """File descriptor of the splits; see `write_worker_splits`."""


class EpochRequest(NamedTuple):
    """Request to train envs for an epoch and validate them."""

    envs: list[int]
    """Env indices."""
    before: list[WorkerEnvState]
    round: int
    step: int
    last: bool


class EpochReply(NamedTuple):
    """States and results of the envs after the epoch, in the request of the request."""

    after: list[WorkerEnvState]
    results: list[list[list[float]]]
    """Results of `Env.run_epoch` for each env."""
    seconds: list[float]
    """Duration of the epoch of each env."""
    phases: dict[str, float]
    """Seconds by phase."""
    printed: str = ""
    """Text that the user's code printed."""


class WorkerError(NamedTuple):
    """Failure of an env: the arguments of a FaultError."""

    text: str
    traceback_text: str | None


def write_worker_splits(splits: Splits, file: IO[bytes]) -> None:
    """Write the data that workers need, without the test split, to a file that all of them map."""
    write_splits(replace(splits, test=map_tensors(lambda tensor: tensor[:0].clone(), splits.test)), file)


class WorkerProcess:
    """Handle of a worker process in the main process.

    Args:
        lane: Name of the lane, for messages.
        init: First message to the worker.
        spawner: Starts the process.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, lane: str, init: WorkerInit, spawner: WorkerSpawner) -> None:
        self._lane = lane
        self._init = init
        self._spawner = spawner
        self._start()

    def _start(self) -> None:
        """Start the process. On OSError, the closed pipe of the previous process stays in place."""
        self._worker = self._spawner.spawn(self._lane)
        with contextlib.suppress(ConnectionError):  # the process has ended: the next `send` or `receive` reports how
            _send(self._worker.pipe, self._init)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._worker.process.pid

    def send(self, envs: Sequence[Env], round_index: int, step: int, *, last: bool) -> None:
        """Send envs to be trained and validated. Start a new process if the last one has ended.

        Raises:
            FaultError: The process has ended, or a new one cannot be started.
        """
        if self._worker.pipe.closed:
            try:
                self._start()
            except OSError as error:
                raise FaultError(
                    f"the worker process of lane {self._lane} cannot be restarted: {error.strerror}", None
                ) from None
        request = EpochRequest(
            [env.index for env in envs], [WorkerEnvState.of(env) for env in envs], round_index, step, last
        )
        try:
            _send(self._worker.pipe, request)
        except OSError:
            raise self._worker_died() from None

    def receive(self, envs: Sequence[Env]) -> EpochReply:
        """Wait for the reply to `send`, and load the new states into the envs.

        Raises:
            FaultError: An env failed, or the process has ended.
        """
        try:
            reply: EpochReply | WorkerError = pickle.loads(self._worker.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._worker_died() from None
        if isinstance(reply, WorkerError):
            raise FaultError(*reply)
        for env, after, seconds in zip(envs, reply.after, reply.seconds, strict=True):
            after.load_tensors_into(env)
            env.epoch_seconds = seconds
        if reply.printed:
            sys.stdout.write(reply.printed)  # to the log of the run, as if the env had been trained in this process
        return reply

    def _worker_died(self) -> FaultError:
        """Return how the process ended. It has closed its pipe, so it ends soon if not yet; `send` starts another."""
        code = self._worker.process.wait()
        self._worker.output.seek(0)
        output = self._worker.output.read().decode(errors="replace")
        self.close()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return FaultError(f"the worker process of lane {self._lane} {how}", output or None)

    def close(self) -> None:
        """Kill the process."""
        self._worker.close()


def _send(pipe: Connection, message: object) -> None:
    pipe.send_bytes(pickle.dumps(message, protocol=5))


def serve(pipe: Connection, lane: str) -> None:
    """Train envs of a lane on request until the main process has closed the pipe."""
    with contextlib.suppress(EOFError, ConnectionError), contextlib.redirect_stdout(io.StringIO()) as printed:
        _serve(pipe, lane, printed)


def _serve(pipe: Connection, lane: str, printed: io.StringIO) -> None:
    init: WorkerInit = pickle.loads(pipe.recv_bytes())
    torch.set_num_threads(1)
    splits = map_splits(Path(f"/dev/fd/{init.splits_fd}"))
    scaler = make_scaler_factory(init.config.amp, init.config.scaler, CPU)
    task = init.task
    if isinstance(task, TaskSource):
        task = override_settings(load_source(task), init.config.training)
    hosts = HostFactory(task, init.profile, CPU, init.config.seed)
    envs: dict[int, Env] = {}
    freeze_loaded_objects()
    while True:
        content = pipe.recv_bytes()
        stopwatch = PhaseTimer()
        with stopwatch("transfer"):
            request: EpochRequest = pickle.loads(content)
            for index in request.envs:
                if index not in envs:
                    envs[index] = Env(index, hosts, splits, init.config, scaler())
        reply = _run_epochs([envs[index] for index in request.envs], request, stopwatch, pipe, lane)
        if reply is None:
            return
        if isinstance(reply, EpochReply):
            reply = reply._replace(printed=printed.getvalue()[:MAX_PRINTED_CHARACTERS])
            printed.seek(0)
            printed.truncate()
        _send(pipe, reply)


def _run_epochs(
    envs: Sequence[Env], request: EpochRequest, stopwatch: PhaseTimer, pipe: Connection, lane: str
) -> EpochReply | WorkerError | None:
    """Train and validate the envs of a request. Return None if the main process has closed the pipe.

    The main process sends nothing before it has received the result, so a readable pipe means EOF.
    """
    results: list[list[list[float]]] = []
    env = envs[0]
    try:
        with stopwatch("transfer"):
            for env, before in zip(envs, request.before, strict=True):
                before.load_into(env)
        for env in envs:
            if pipe.poll():
                return None
            vectors = env.run_epoch(request.round, request.step, stopwatch, last=request.last)
            results.append([cast("Any", vector).tolist() for vector in vectors])
        with stopwatch("transfer"):
            after = [WorkerEnvState.of(env) for env in envs]
    except Exception as error:  # noqa: BLE001 (the main process raises it)
        fault = FaultError.from_exception(error, f"env {env.index:02d} on {lane}")
        return WorkerError(str(fault), fault.traceback_text)
    phases = stopwatch.pop_seconds()
    transfer_seconds = phases["transfer"] / len(envs)
    return EpochReply(after, results, [env.epoch_seconds + transfer_seconds for env in envs], phases)
