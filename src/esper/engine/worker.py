"""A process that trains the envs of a CPU lane: two threads of one interpreter wait for its lock at every operator.

The envs live in the run's own process. For an epoch, what it depends on is sent over: stages and alphas of the slots,
weights, buffers and momenta, loss scale; what comes back are its numbers and the tensors after it. The worker keeps
nothing that counts but modules to put them in: one that has died costs a step, and another takes its place.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

import numpy as np
import torch

from esper.config import Config
from esper.engine.env import Env
from esper.engine.env_tensors import copy_tensors, env_tensors
from esper.engine.faults import FaultError
from esper.engine.precision import loss_scaler
from esper.engine.stopwatch import Stopwatch
from esper.garbage import spare_what_is_loaded
from esper.processes import another_python
from esper.tasks.task import Splits, Task

CPU = torch.device("cpu")
_PROGRAM = "from esper.engine.worker import main; main()"  # as a main module, its classes would have other names there


class Contract(NamedTuple):
    """What a worker is told once."""

    task: Task
    slots: Sequence[str]
    config: Config
    data: int
    """Descriptor of the file of splits."""


class State(NamedTuple):
    """Of an env, all that its next epoch depends on, and all of it that an epoch changes."""

    slots: list[dict[str, Any]]
    arrays: dict[str, np.ndarray[Any, Any]]
    scaler: dict[str, Any] | None

    @classmethod
    def of(cls, env: Env) -> State:
        """With the live tensors: to be sent before the env goes on."""
        arrays = {name: value.numpy() for name, value in env_tensors(env).items()}
        scaler = env.scaler.snapshot() if env.scaler else None
        return cls([slot.snapshot() for slot in env.network.slots], arrays, scaler)

    def enter(self, env: Env) -> None:
        """Put an env of the same host into this state."""
        for slot, saved in zip(env.network.slots, self.slots, strict=True):
            slot.restore(saved)
        env.match_optimizers()
        self.enter_numbers(env)

    def enter_numbers(self, env: Env) -> None:
        """The same where the slots are as they were."""
        copy_tensors(env_tensors(env), {name: torch.from_numpy(array) for name, array in self.arrays.items()})
        if env.scaler and self.scaler:
            env.scaler.restore(self.scaler)


class Order(NamedTuple):
    """An epoch to be trained and validated."""

    env: int
    before: State
    round: int
    step: int
    last: bool


class Answer(NamedTuple):
    """One that was: the env after it, what `Env.epoch` left, and seconds by phase."""

    after: State
    numbers: list[list[float]]
    seconds: dict[str, float]


class Failure(NamedTuple):
    """One that was not: the arguments of a FaultError."""

    text: str
    trace: str | None


def share(splits: Splits) -> IO[bytes]:
    """A file that workers map: one copy of the data for all of them, without the test split."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (its owner closes it)
    torch.save({name: part for name, part in vars(splits).items() if not name.startswith("test")}, file)
    file.flush()
    return file


def _map(descriptor: int) -> Splits:
    parts = torch.load(f"/dev/fd/{descriptor}", mmap=True)
    return Splits(**parts, test_x=parts["train_x"][:0], test_y=parts["train_y"][:0])


class Worker:
    """The run's end of the line to such a process. What it is sent is answered in the same order.

    Args:
        lane: that it works for.
        contract: what it needs to know.
    """

    def __init__(self, lane: str, contract: Contract) -> None:
        self._lane = lane
        self._contract = contract
        self._start()

    def _start(self) -> None:
        self._line, theirs = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        command, environment = another_python(_PROGRAM, str(theirs.fileno()), self._lane)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            pass_fds=(theirs.fileno(), self._contract.data),
            env=environment,
            start_new_session=True,  # what a terminal tells its processes is for the run to hear
        )
        theirs.close()
        _send(self._line, self._contract)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, env: Env, round_index: int, step: int, *, last: bool) -> None:
        """Have an env trained and validated.

        Raises:
            FaultError: the process has ended.
        """
        if self._line.closed:
            self._start()
        try:
            _send(self._line, Order(env.index, State.of(env), round_index, step, last))
        except OSError:
            raise self._loss() from None

    def receive(self, env: Env) -> Answer:
        """Put the env that was sent longest ago where its epoch has left it.

        Raises:
            FaultError: it failed there, or the process has ended.
        """
        try:
            answer = pickle.loads(self._line.recv_bytes())
        except (EOFError, OSError):
            raise self._loss() from None
        if isinstance(answer, Failure):
            raise FaultError(*answer)
        answer.after.enter_numbers(env)
        return answer

    def _loss(self) -> FaultError:
        """Why there is no answer. A process that closed its line is about to end."""
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return FaultError(f"the process of lane {self._lane} {how}", said or None)

    def close(self) -> None:
        """End the process, which has nothing to lose; `send` starts another."""
        self._process.kill()
        self._process.wait()
        self._line.close()
        self._said.close()


def _send(line: Connection, message: object) -> None:
    line.send_bytes(pickle.dumps(message, protocol=5))


def main() -> None:
    """The process, until the run is gone. Its arguments are the line's descriptor, and the name of the lane."""
    with Connection(int(sys.argv[1])) as line, contextlib.suppress(ConnectionError):
        _work(line, sys.argv[2])


def _work(line: Connection, lane: str) -> None:
    task, slots, config, data = pickle.loads(line.recv_bytes())
    torch.set_num_threads(1)
    splits = _map(data)
    scaler = loss_scaler(config.amp, CPU)
    envs: dict[int, Env] = {}
    orders: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(line, orders), daemon=True).start()
    spare_what_is_loaded()
    while content := orders.get():
        order: Order = pickle.loads(content)
        if order.env not in envs:
            envs[order.env] = Env(order.env, task, splits, slots, config, scaler)
        _send(line, _do(envs[order.env], order, lane))


def _listen(line: Connection, orders: SimpleQueue[bytes | None]) -> None:
    """Take orders while others are at work, so that neither end waits for room to write; None when the run is gone."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            orders.put(line.recv_bytes())
    orders.put(None)


def _do(env: Env, order: Order, lane: str) -> Answer | Failure:
    stopwatch = Stopwatch()
    try:
        order.before.enter(env)
        left = env.epoch(order.round, order.step, stopwatch, last=order.last)
        return Answer(State.of(env), [vector.tolist() for vector in left], stopwatch.take())
    except Exception as error:  # noqa: BLE001 (the run raises it)
        fault = FaultError.of(error, f"env {order.env:02d} on {lane}")
        return Failure(str(fault), fault.trace)
