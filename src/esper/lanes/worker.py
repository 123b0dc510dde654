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
from esper.envs.env_state import State
from esper.envs.precision import loss_scalers
from esper.envs.stopwatch import Stopwatch
from esper.lanes.errors import FaultError
from esper.process import another_python, spare_what_is_loaded
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


class Order(NamedTuple):
    """Envs to be trained for an epoch and validated."""

    envs: list[int]
    before: list[State]
    round: int
    step: int
    last: bool


class Answer(NamedTuple):
    """The same envs after it."""

    after: list[State]
    numbers: list[list[list[float]]]
    """What `Env.epoch` left of each."""
    seconds: list[float]
    """That each took."""
    phases: dict[str, float]
    """Seconds by phase."""


class Failure(NamedTuple):
    """Of one of them: the arguments of a FaultError."""

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
    """The run's end of the line to such a process.

    Args:
        lane: that it works for.
        contract: what it needs to know.
    """

    def __init__(self, lane: str, contract: Contract) -> None:
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
                command, environment = another_python(_PROGRAM, str(theirs.fileno()), self._lane)
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    pass_fds=(theirs.fileno(), self._contract.data),
                    env=environment,
                    start_new_session=True,  # what a terminal tells its processes is for the run to hear
                )
            opened.pop_all()
        self._line, self._said = line, said
        _send(self._line, self._contract)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, envs: Sequence[Env], round_index: int, step: int, *, last: bool) -> None:
        """Have envs trained and validated.

        Raises:
            FaultError: the process has ended, or no other can be started.
        """
        if self._line.closed:
            try:
                self._start()
            except OSError as error:
                said = error.strerror
                raise FaultError(f"the process of lane {self._lane} cannot be started anew: {said}", None) from None
        order = Order([env.index for env in envs], [State.of(env) for env in envs], round_index, step, last)
        try:
            _send(self._line, order)
        except OSError:
            raise self._loss() from None

    def receive(self, envs: Sequence[Env]) -> Answer:
        """Put the envs that were sent where that has left them.

        Raises:
            FaultError: one of them failed there, or the process has ended.
        """
        try:
            answer: Answer | Failure = pickle.loads(self._line.recv_bytes())
        except (EOFError, OSError):
            raise self._loss() from None
        if isinstance(answer, Failure):
            raise FaultError(*answer)
        for env, after, seconds in zip(envs, answer.after, answer.seconds, strict=True):
            after.enter_numbers(env)
            env.seconds = seconds
        return answer

    def _loss(self) -> FaultError:
        """Why there is no answer. A process that closed its line is about to end; `send` starts another."""
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        self.close()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return FaultError(f"the process of lane {self._lane} {how}", said or None)

    def close(self) -> None:
        """End the process, which has nothing to lose."""
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
    scaler = loss_scalers(config.amp, config.scaler, CPU)
    envs: dict[int, Env] = {}
    spare_what_is_loaded()
    with contextlib.suppress(EOFError):
        while True:
            content = line.recv_bytes()
            stopwatch = Stopwatch()
            with stopwatch("transfer"):
                order: Order = pickle.loads(content)
                for index in order.envs:
                    if index not in envs:
                        envs[index] = Env(index, task, splits, slots, config, scaler())
            answer = _do([envs[index] for index in order.envs], order, stopwatch, line, lane)
            if answer is None:
                return
            _send(line, answer)


def _do(
    envs: Sequence[Env], order: Order, stopwatch: Stopwatch, line: Connection, lane: str
) -> Answer | Failure | None:
    """None where the run is gone: it has nothing to say before it is answered, so what is there is the line's end."""
    numbers: list[list[list[float]]] = []
    env = envs[0]
    try:
        with stopwatch("transfer"):
            for env, before in zip(envs, order.before, strict=True):
                before.enter(env)
        for env in envs:
            if line.poll():
                return None
            left = env.epoch(order.round, order.step, stopwatch, last=order.last)
            numbers.append([vector.tolist() for vector in left])
        with stopwatch("transfer"):
            after = [State.of(env) for env in envs]
    except Exception as error:  # noqa: BLE001 (the run raises it)
        fault = FaultError.of(error, f"env {env.index:02d} on {lane}")
        return Failure(str(fault), fault.trace)
    phases = stopwatch.take()
    toll = phases["transfer"] / len(envs)
    return Answer(after, numbers, [env.seconds + toll for env in envs], phases)
