"""A process that trains the envs of a CPU lane.

The envs live in the run's own process. For an epoch, what it depends on is sent over: stages and alphas of the slots,
weights, buffers and momenta, loss scale; what comes back are its numbers and the tensors after it. The worker keeps
nothing that counts but modules to put them in: one that has died costs a step, and another takes its place.

All that it is to train in a step goes in one message, and comes back in one: between two epochs none of this code is in
the caches, and it takes several times as long (`docs/experiments.md`, "one message a step").
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import IO, NamedTuple

import torch

from esper.config import Config
from esper.envs.env import Env
from esper.envs.env_state import WorkerEnvState
from esper.envs.precision import make_scaler_factory
from esper.envs.stopwatch import PhaseTimer
from esper.lanes.errors import FaultError
from esper.process import freeze_loaded_objects, python_command
from esper.tasks.task import Splits, Task

CPU = torch.device("cpu")
_PROGRAM = "from esper.lanes.worker import main; main()"  # as a main module, its classes would have other names there


class WorkerInit(NamedTuple):
    """What a worker is told once."""

    task: Task
    slots: Sequence[str]
    config: Config
    splits_fd: int
    """Descriptor of the file of splits."""


class EpochRequest(NamedTuple):
    """Envs to be trained for an epoch and validated."""

    envs: list[int]
    before: list[WorkerEnvState]
    round: int
    step: int
    last: bool


class EpochReply(NamedTuple):
    """The same envs after it."""

    after: list[WorkerEnvState]
    results: list[list[list[float]]]
    """What `Env.epoch` left of each."""
    seconds: list[float]
    """That each took."""
    phases: dict[str, float]
    """Seconds by phase."""


class WorkerError(NamedTuple):
    """Of one of them: the arguments of a FaultError."""

    text: str
    traceback_text: str | None


def write_shared_splits(splits: Splits) -> IO[bytes]:
    """A file that workers map: one copy of the data for all of them, without the test split."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (its owner closes it)
    torch.save({name: part for name, part in vars(splits).items() if not name.startswith("test")}, file)
    file.flush()
    return file


def _map_splits(descriptor: int) -> Splits:
    parts = torch.load(f"/dev/fd/{descriptor}", mmap=True)
    return Splits(**parts, test_x=parts["train_x"][:0], test_y=parts["train_y"][:0])


class WorkerProcess:
    """The run's end of the line to such a process.

    Args:
        lane: that it works for.
        contract: what it needs to know.
    """

    def __init__(self, lane: str, contract: WorkerInit) -> None:
        self._lane = lane
        self._contract = contract
        self._start()

    def _start(self) -> None:
        """Raises OSError; then what there was before, closed, is still there."""
        with contextlib.ExitStack() as opened:
            line, theirs = Pipe()
            opened.enter_context(line)
            said = opened.enter_context(tempfile.TemporaryFile())
            with theirs:
                command, environment = python_command(_PROGRAM, str(theirs.fileno()), self._lane)
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    pass_fds=(theirs.fileno(), self._contract.splits_fd),
                    env=environment,
                    start_new_session=True,  # what a terminal tells its processes is for the run to hear
                )
            opened.pop_all()
        self._pipe, self._output = line, said
        _send(self._pipe, self._contract)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, envs: Sequence[Env], round_index: int, step: int, *, last: bool) -> None:
        """Have envs trained and validated.

        Raises:
            FaultError: the process has ended, or no other can be started.
        """
        if self._pipe.closed:
            try:
                self._start()
            except OSError as error:
                said = error.strerror
                raise FaultError(f"the process of lane {self._lane} cannot be started anew: {said}", None) from None
        order = EpochRequest(
            [env.index for env in envs], [WorkerEnvState.of(env) for env in envs], round_index, step, last
        )
        try:
            _send(self._pipe, order)
        except OSError:
            raise self._worker_died() from None

    def receive(self, envs: Sequence[Env]) -> EpochReply:
        """Put the envs that were sent where that has left them.

        Raises:
            FaultError: one of them failed there, or the process has ended.
        """
        try:
            answer: EpochReply | WorkerError = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._worker_died() from None
        if isinstance(answer, WorkerError):
            raise FaultError(*answer)
        for env, after, seconds in zip(envs, answer.after, answer.seconds, strict=True):
            after.load_tensors_into(env)
            env.epoch_seconds = seconds
        return answer

    def _worker_died(self) -> FaultError:
        """Why there is no answer. A process that closed its line is about to end; `send` starts another."""
        code = self._process.wait()
        self._output.seek(0)
        said = self._output.read().decode(errors="replace")
        self.close()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return FaultError(f"the process of lane {self._lane} {how}", said or None)

    def close(self) -> None:
        """End the process, which has nothing to lose."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._output.close()


def _send(line: Connection, message: object) -> None:
    line.send_bytes(pickle.dumps(message, protocol=5))


def main() -> None:
    """The process, until the run is gone. Its arguments are the line's descriptor, and the name of the lane."""
    with Connection(int(sys.argv[1])) as line, contextlib.suppress(ConnectionError):
        _serve(line, sys.argv[2])


def _serve(line: Connection, lane: str) -> None:
    task, slots, config, data = pickle.loads(line.recv_bytes())
    torch.set_num_threads(1)
    splits = _map_splits(data)
    scaler = make_scaler_factory(config.amp, config.scaler, CPU)
    envs: dict[int, Env] = {}
    freeze_loaded_objects()
    with contextlib.suppress(EOFError):
        while True:
            content = line.recv_bytes()
            stopwatch = PhaseTimer()
            with stopwatch("transfer"):
                order: EpochRequest = pickle.loads(content)
                for index in order.envs:
                    if index not in envs:
                        envs[index] = Env(index, task, splits, slots, config, scaler())
            answer = _run_epochs([envs[index] for index in order.envs], order, stopwatch, line, lane)
            if answer is None:
                return
            _send(line, answer)


def _run_epochs(
    envs: Sequence[Env], order: EpochRequest, stopwatch: PhaseTimer, line: Connection, lane: str
) -> EpochReply | WorkerError | None:
    """None where the run is gone: it has nothing to say before it is answered, so what is there is the line's end."""
    numbers: list[list[list[float]]] = []
    env = envs[0]
    try:
        with stopwatch("transfer"):
            for env, before in zip(envs, order.before, strict=True):
                before.load_into(env)
        for env in envs:
            if line.poll():
                return None
            left = env.run_epoch(order.round, order.step, stopwatch, last=order.last)
            numbers.append([vector.tolist() for vector in left])
        with stopwatch("transfer"):
            after = [WorkerEnvState.of(env) for env in envs]
    except Exception as error:  # noqa: BLE001 (the run raises it)
        fault = FaultError.from_exception(error, f"env {env.index:02d} on {lane}")
        return WorkerError(str(fault), fault.traceback_text)
    phases = stopwatch.pop_seconds()
    toll = phases["transfer"] / len(envs)
    return EpochReply(after, numbers, [env.epoch_seconds + toll for env in envs], phases)
