"""Worker process that trains the envs of a lane. Threads would contend for the GIL at every operator or launch.

The envs live in the main process. For each epoch it sends the complete state: stages and alphas of the slots, weights,
buffers, momenta and loss scale. The worker returns the results and the new tensors. It keeps only modules to load that
state into, so a worker that dies costs one step, and a new one replaces it.

All envs of a group travel in one message each way: between two epochs the code of the transfer has left the CPU caches,
and runs several times slower (`docs/log/2026-11.md`, "One message per lane and step").
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

import torch

from esper.common.configuration.config import Config
from esper.common.seeding import EpisodeKey
from esper.common.system.process import NamedThread, freeze_loaded_objects, is_stopped
from esper.networks.seeds.outputs import map_tensors
from esper.networks.tasks.loading import load_source
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.settings import override_settings
from esper.networks.tasks.splits import Splits, TaskData, map_data, move_data, read_data, with_readers, write_data
from esper.networks.tasks.task import Task, TaskSource
from esper.training.envs.cuda_graphs import CudaGraphs
from esper.training.envs.env import Env
from esper.training.envs.env_state import WorkerEnvState, export_states, load_lifecycle, load_tensor_states
from esper.training.envs.epoch_result import max_result_width
from esper.training.envs.hosts import HostFactory
from esper.training.envs.precision import make_scaler_factory, resolve_amp, set_float32_precision
from esper.training.lanes.call_watch import POLL_S, CallSupervisor, CallWatch, OverdueCall
from esper.training.lanes.channel import Channel
from esper.training.lanes.devices import torch_device
from esper.training.lanes.errors import FaultError
from esper.training.lanes.printed_lines import Printed, PrintedLines, print_for_worker
from esper.training.lanes.readers import Readers
from esper.training.lanes.runner import DeviceResults, EnvRunner
from esper.training.lanes.spawn import WorkerSpawner

SILENCE_S = 5.0
"""Seconds without a reply after which a worker is checked, again and again, for being stopped."""


class WorkerInit(NamedTuple):
    """First message to a worker."""

    task: Task | TaskSource
    """The task, or where the worker imports it from if it is the user's own code."""
    profile: TaskProfile
    config: Config
    data_fd: int
    """File descriptor of the data; see `write_worker_data`."""
    recorded: frozenset[int]
    """Structures that are trained by CUDA graphs on a GPU."""
    readers: int
    """Number of readers of the worker; 0 if all data are in memory."""


class EpochRequest(NamedTuple):
    """Request to train envs for an epoch and validate them."""

    envs: list[int]
    """Env indices."""
    keys: list[EpisodeKey]
    before: list[WorkerEnvState]
    step: int
    last: bool


class EpochReply(NamedTuple):
    """States and results of the envs after the epoch, in the order of the request."""

    after: list[WorkerEnvState]
    results: list[list[list[float]]]
    """Results of `Env.run_epoch` for each env."""
    seconds: list[float]
    """Duration of the epoch of each env."""
    phases: dict[str, float]
    """Seconds by phase."""
    memory: int
    """Bytes of live tensors of the worker on its GPU; 0 on a CPU."""
    graphs: int
    """Number of CUDA graphs that the worker has recorded so far; 0 on a CPU."""
    notices: list[str]
    """Sentences about them for the log."""


class WorkerMessage(NamedTuple):
    """Message of a worker to the main process."""

    reply: EpochReply | FaultError
    printed: Printed
    """Lines that the user's code printed since the last message."""


def write_worker_data(data: TaskData, file: IO[bytes], *, is_family: bool) -> None:
    """Write the data that workers and readers need to a file that all of them map.

    Args:
        is_family: Keep the test split. No worker tests a network, but the settings of a family may draw random numbers
            for it, and must draw the same ones in every process.
    """

    def without_test(splits: Splits) -> Splits:
        return replace(splits, test=map_tensors(lambda tensor: tensor[:0].clone(), splits.test))

    write_data(data if is_family else map_data(without_test, data), file)


class WorkerProcess:
    """Handle of a worker process in the main process.

    Args:
        lane: Name of the lane, for messages.
        supervisor: Supervisor of the calls of the user's code.
    """

    def __init__(self, lane: str, init: WorkerInit, spawner: WorkerSpawner, supervisor: CallSupervisor) -> None:
        self._lane = lane
        self._supervisor = supervisor
        self._init = init
        self._spawner = spawner
        self._start()

    def _start(self) -> None:
        """Start the process. On OSError, the closed handle of the previous process stays in place."""
        self._worker = self._spawner.spawn(self._lane)
        self._end: tuple[str, str | None] = ("has ended", None)
        with contextlib.suppress(ConnectionError):  # the process has ended: the next `send` or `receive` reports how
            self._worker.channel.send(self._init)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._worker.process.pid

    def send(self, envs: Sequence[Env], step: int, *, last: bool) -> None:
        """Send envs to be trained and validated. Start a new process if the last one has ended.

        Raises:
            FaultError: The process has ended, or a new one cannot be started.
        """
        if not self._worker.is_open:
            try:
                self._start()
            except OSError as error:
                raise FaultError(
                    f"the worker process of lane {self._lane} cannot be restarted: {error.strerror}"
                ) from None
        request = EpochRequest([env.index for env in envs], [env.key for env in envs], export_states(envs), step, last)
        try:
            self._worker.channel.send(request)
        except OSError as error:
            raise self._worker_died(error) from None

    def receive(self, envs: Sequence[Env]) -> EpochReply:
        """Wait for the reply to the first `send` without one, and load the new states into its envs.

        Raises:
            FaultError: An env failed, the process has ended, or a call of the user's code was abandoned.
        """
        try:
            message = self._await_message()
        except (EOFError, OSError) as error:
            raise self._worker_died(error) from None
        print_for_worker(message.printed)
        reply = message.reply
        if isinstance(reply, FaultError):
            if reply.is_device_lost:  # only that process cannot use it any more: the next `send` starts another one
                self.close()
            raise FaultError(str(reply), reply.traceback_text, env=reply.env)
        load_tensor_states(envs, reply.after)
        for env, seconds in zip(envs, reply.seconds, strict=True):
            env.epoch_seconds = seconds
        return reply

    def _await_message(self) -> WorkerMessage:
        """Wait as long as it takes: a stopped process, as by SIGSTOP, has lost nothing and may continue at any time.

        Raises:
            FaultError: A call of the user's code was abandoned.
            OSError: The process cannot be reached.
            EOFError: The process has ended.
        """
        channel, start, is_reported = self._worker.channel, time.monotonic(), False
        while True:
            message: WorkerMessage | None = channel.receive_within(POLL_S)
            silence = time.monotonic() - start
            if message is not None:
                self._supervisor.note(self, None)
                if is_reported:
                    self._supervisor.report(f"lane {self._lane} answers again, after {silence:.0f} s")
                return message
            self._supervisor.check(self, channel.note)
            if not is_reported and silence >= SILENCE_S and is_stopped(self.pid):
                is_reported = True
                self._supervisor.report(
                    f"lane {self._lane} does not answer: its worker process {self.pid} is stopped; the run waits "
                    f"until `kill -CONT {self.pid}`"
                )

    def _worker_died(self, error: Exception) -> FaultError:
        """Return how the process ended, or why it cannot be reached, and close it; `send` starts another one.

        Args:
            error: Error of the channel.
        """
        self._supervisor.note(self, None)
        if self._worker.is_open:
            self._end = self._worker.describe_end(error)
            self.close()
        how, output = self._end  # of the first request that failed, if several were in progress
        return FaultError(f"the worker process of lane {self._lane} {how}", output)

    def close(self) -> None:
        """Kill the process."""
        self._worker.close()


def serve(channel: Channel, lane: str) -> None:
    """Train envs of a lane on request until the main process has closed the channel."""
    with contextlib.suppress(EOFError, ConnectionError), PrintedLines(of_main_thread=True) as printed:
        _serve(channel, lane, printed)


def _serve(channel: Channel, lane: str, printed: PrintedLines) -> None:
    init: WorkerInit = channel.receive()
    config, device = init.config, torch_device(lane)
    torch.set_num_threads(1)
    set_float32_precision(config.amp)
    task = init.task
    if isinstance(task, TaskSource):
        task = override_settings(load_source(task), config.training)
    dtype = resolve_amp(config.amp, device, float32_defaults=task.float32_defaults)
    # On a CPU, the data already have this dtype and layout, and stay in the memory that all processes map.
    mapped = read_data(Path(f"/dev/fd/{init.data_fd}"))
    if init.readers:
        source = init.task if isinstance(init.task, TaskSource) else None
        mapped = with_readers(mapped, Readers(source, init.data_fd, init.readers))
    data = move_data(mapped, device, dtype, channels_last=init.profile.channels_last)
    scaler = make_scaler_factory(config.amp, config.scaler, device)
    hosts = HostFactory(task, init.profile, device, config.seed)
    if hosts.cuda_graphs:
        hosts.cuda_graphs.structures |= init.recorded
    width = max_result_width(len(init.profile.sites), len(task.metrics))
    runner = EnvRunner(lane, device, config.envs, width, single_stream=config.shares_loss_scale)
    runner.enter_thread()
    NamedThread(target=_report_overdue_calls, args=(channel, runner.watch), name="watch", daemon=True).start()
    envs: dict[int, Env] = {}
    freeze_loaded_objects()
    while True:
        channel.wait()
        start = time.perf_counter()
        request: EpochRequest = channel.receive()
        for index in request.envs:
            if index not in envs:
                envs[index] = Env(index, hosts, data, config, scaler())
        reply = _run_epochs([envs[index] for index in request.envs], request, runner, hosts.cuda_graphs, start)
        channel.send(WorkerMessage(reply, printed.take()))


def _report_overdue_calls(channel: Channel, watch: CallWatch) -> None:
    """Send a note when a call of the user's code is overdue, and None when it has returned."""
    sent: OverdueCall | None = None
    with contextlib.suppress(OSError):  # the main process has ended
        while True:
            time.sleep(POLL_S)
            if (found := watch.look()) != sent:
                channel.send_note(found)
                sent = found


def _run_epochs(
    envs: Sequence[Env], request: EpochRequest, runner: EnvRunner, graphs: CudaGraphs | None, start: float
) -> EpochReply | FaultError:
    """Train and validate the envs of a request, which arrived at `start`."""

    def enter(env: Env, key: EpisodeKey, before: WorkerEnvState) -> None:
        env.enter(key)
        load_lifecycle(env, before)

    def train_and_validate(env: Env) -> DeviceResults:
        return env.run_epoch(request.step, runner.stopwatch, last=request.last)

    try:
        for env, key, before in zip(envs, request.keys, request.before, strict=True):
            runner.run_for_env(env, enter, env, key, before)
        load_tensor_states(envs, request.before)
        transfer_seconds = time.perf_counter() - start
        for env in envs:  # they train one after another, in this order
            env.expect_reads(request.step)
        results = runner.run(envs, train_and_validate)
        start = time.perf_counter()
        after = export_states(envs)
        transfer_seconds += time.perf_counter() - start
    except FaultError as fault:
        return fault.with_traceback(None)
    runner.stopwatch.add("transfer", transfer_seconds)
    return EpochReply(
        after=after,
        results=[results[env.index] for env in envs],
        seconds=[env.epoch_seconds + transfer_seconds / len(envs) for env in envs],
        phases=runner.stopwatch.pop_seconds(),
        memory=torch.cuda.memory_allocated(runner.device) if runner.device.type == "cuda" else 0,
        graphs=graphs.recordings if graphs else 0,
        notices=graphs.take_notices() if graphs else [],
    )
