"""Tests of workers: same results as a thread; a dead worker costs one step, not the run; no worker is left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from esper.common.configuration.config import ConfigError
from esper.common.domain import Op, Stage
from esper.recordings import events as ev
from esper.training.envs.env import Env
from esper.training.envs.env_state import env_state_tensors
from esper.training.envs.epoch_result import EpochResult
from esper.training.lanes import worker
from esper.training.lanes.errors import FaultError
from esper.training.lanes.lane import Lane
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action
from tests.runs import LiveRun
from tests.training.engine.populations import measurements, play, population

TWO_LANES = ("cpu:0", "cpu:1")
WAIT = Action(Op.WAIT)


def workers() -> list[psutil.Process]:
    while True:
        commands = {child: child.cmdline() for child in psutil.Process().children()}
        if all(commands.values()):  # in the instant of its start, a process has none yet
            return [child for child, command in commands.items() if "esper.training.lanes.worker" in " ".join(command)]


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvPool]:
    """Four envs on two lanes, whose only worker trains the envs 1 and 3. Every test resets the envs."""
    before = workers()
    with population(envs=4, lanes=TWO_LANES) as pool:
        pool.interchangeable_lanes = []  # otherwise, the envs of a lane depend on measured times
        yield pool
    assert set(workers()) <= set(before)


@pytest.fixture(scope="module")
def busy() -> Iterator[EnvPool]:
    """Five envs on a lane with two workers, as on a GPU that waits for launches."""
    with ExitStack() as opened:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EnvPool, "_required_workers", lambda pool: dict.fromkeys(pool.lanes, 2))
            pool = opened.enter_context(population(envs=5))
        yield pool


@pytest.fixture(scope="module")
def wanted() -> list[list[EpochResult]]:
    """Results of five envs without a worker."""
    with population(envs=5) as alone:
        return play(alone, 0, 3)


def test_worker_exists_for_each_cpu_lane_but_the_first(pool: EnvPool) -> None:
    pool.reset(0)
    measurements(pool, [WAIT] * 4, 0)
    (first,), (second,) = (lane.pids for lane in pool.lanes)
    assert first == os.getpid()
    assert second in {worker.pid for worker in workers()}


@pytest.mark.slow
def test_lane_with_two_workers_has_the_results_of_its_thread(
    busy: EnvPool, wanted: list[list[EpochResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each env stays with its worker, also in steps without some of the others."""
    sent: list[tuple[int, int]] = []
    send = worker.WorkerProcess.send

    def note_and_send(process: worker.WorkerProcess, envs: list[Env], *args: int, **last: bool) -> None:
        send(process, envs, *args, **last)
        sent.extend((env.index, process.pid) for env in envs)

    monkeypatch.setattr(worker.WorkerProcess, "send", note_and_send)
    assert play(busy, 0, 3) == wanted
    busy.step([None, WAIT, None, WAIT, WAIT], 3)
    assert len(busy.lanes[0].pids) == 2
    assert len(set(sent)) == 5
    assert {pid for _, pid in sent} == set(busy.lanes[0].pids)


@pytest.mark.slow
def test_dead_worker_leaves_no_pending_reply_of_another(busy: EnvPool, wanted: list[list[EpochResult]]) -> None:
    for index in range(2):
        play(busy, 0, 1)
        os.kill(busy.lanes[0].pids[index], signal.SIGKILL)
        with pytest.raises(FaultError, match=r"^the worker process of lane cpu:0 was killed by signal 9$"):
            busy.step([WAIT] * 5, 0)
        assert play(busy, 0, 3) == wanted


def test_run_tells_how_many_workers_a_lane_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lane, "pids", [11, 12])
    live = LiveRun(tmp_path, envs=3, steps=1, rounds=1, policy="static").start()
    assert live.finish().status == "done"
    told = [event.text for event in live.events if isinstance(event, ev.Logged)]
    assert told[0] == "2 worker processes train the envs of cpu:0"


@pytest.mark.slow
def test_fault_of_one_worker_leaves_no_pending_reply_of_the_other(
    busy: EnvPool, wanted: list[list[EpochResult]]
) -> None:
    busy.reset(0)
    busy.envs[0].network.slots[0].blueprint = "unheard of"
    with pytest.raises(FaultError, match=r"^env 00 on cpu:0 failed: ValueError: .*unheard of") as caught:
        busy.step([WAIT] * 5, 0)
    assert caught.value.env == 0
    assert play(busy, 0, 3) == wanted


def test_stopped_worker_is_named_and_waited_for(
    pool: EnvPool, wanted: list[list[EpochResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    pid = pool.lanes[1].pids[0]

    def report_and_continue(text: str) -> None:
        reported.append(text)
        os.kill(pid, signal.SIGCONT)

    pool.supervisor.report = report_and_continue
    monkeypatch.setattr(worker, "SILENCE_S", 0.05)
    os.kill(pid, signal.SIGSTOP)
    assert play(pool, 0, 3) == wanted[:4]
    stopped = f"lane cpu:1 does not answer: its worker process {pid} is stopped; the run waits until `kill -CONT {pid}`"
    assert reported[0] == stopped
    assert reported[1].startswith("lane cpu:1 answers again, after ")


def test_worker_error_is_reported_and_next_step_is_unaffected(pool: EnvPool, wanted: list[list[EpochResult]]) -> None:
    pool.reset(0)
    before = {name: value.clone() for name, value in env_state_tensors(pool.envs[1]).items()}
    slot = pool.envs[1].network.slots[0]
    slot.blueprint = "unheard of"
    with pytest.raises(FaultError, match=r"^env 01 on cpu:1 failed: ValueError: .*unheard of") as caught:
        pool.step([WAIT] * 4, 0)
    assert caught.value.env == 1
    assert "in load_lifecycle\n" in (caught.value.traceback_text or "")
    after = env_state_tensors(pool.envs[1])
    assert all(value.equal(after[name]) for name, value in before.items())
    assert play(pool, 0, 3) == wanted[:4]


def test_step_aborted_before_sending_leaves_no_pending_reply(pool: EnvPool, wanted: list[list[EpochResult]]) -> None:
    pool.reset(0)
    with pytest.raises(FaultError, match=r"^env 03 on cpu:1 failed: IllegalTransitionError") as caught:
        pool.step([WAIT, WAIT, WAIT, Action(Op.ADVANCE)], 0)
    assert caught.value.env == 3
    assert play(pool, 0, 3) == wanted[:4]


@pytest.mark.slow
def test_worker_that_lost_its_gpu_is_replaced(pool: EnvPool, wanted: list[list[EpochResult]]) -> None:
    play(pool, 0, 1)
    (first,) = pool.lanes[1].pids
    pool.envs[1].network.slots[0].blueprint = "CUDA error: injected"  # an unknown blueprint, named in the error
    with pytest.raises(FaultError, match=r"^env 01 on cpu:1 failed: .*CUDA error: injected") as caught:
        pool.step([WAIT] * 4, 0)
    assert not caught.value.is_device_lost  # this process can use its devices
    assert caught.value.env is None  # the fault says nothing about the env
    assert not psutil.pid_exists(first)
    assert play(pool, 0, 3) == wanted[:4]
    assert pool.lanes[1].pids != [first]


def test_dead_worker_is_reported_by_both_groups_and_until_it_is_replaced(
    pool: EnvPool, wanted: list[list[EpochResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    play(pool, 0, 1)
    first, second = (dict.fromkeys(pool.envs[group], WAIT) for group in (slice(2), slice(2, 4)))
    process = psutil.Process(pool.lanes[1].pids[0])
    process.suspend()  # it must not answer before it is killed
    results = pool.start_step(first, 1)
    process.kill()
    while not gone(process):
        time.sleep(0.01)
    others = pool.start_step(second, 1)
    for wait in (results, others):
        with pytest.raises(FaultError, match=r"^the worker process of lane cpu:1 was killed by signal 9$"):
            wait()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        for _ in range(2):
            with pytest.raises(
                FaultError, match="the worker process of lane cpu:1 cannot be restarted: Cannot allocate memory"
            ):
                pool.step([WAIT] * 4, 0)
    assert play(pool, 0, 3) == wanted[:4]


def test_worker_replaces_a_seed_of_the_same_blueprint(pool: EnvPool) -> None:
    plant = Action(Op.GERMINATE, slot=0, blueprint=4)
    with population(envs=4) as alone:
        found = []
        for each in (alone, pool):
            each.reset(0)
            slot = each.envs[1].network.slots[0]
            for step in range(4):
                measurements(each, [WAIT, plant if step == 0 else WAIT, WAIT, WAIT], step)
                for env in each.envs:
                    env.tick()
            assert slot.stage is Stage.TRAINING
            slot.reset()
            found.append(
                [measurements(each, [WAIT, plant if step == 4 else WAIT, WAIT, WAIT], step) for step in (4, 5)]
            )
        assert found[0] == found[1]


def test_worker_without_memory_is_refused_before_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    sentence = (
        "the worker processes of cpu:1 cannot be started: No space left on device; --devices cpu:0 needs no worker"
    )
    before = workers()
    with pytest.raises(ConfigError, match=f"^{sentence}$"), population(envs=2, lanes=TWO_LANES):
        pass
    assert workers() == before


PROGRAM = """
from tests.training.engine.populations import population
with population(envs=2, lanes=("cpu:0", "cpu:1")) as pool:
    print(pool.lanes[1].pids[0], flush=True)
    input()
"""


@pytest.mark.slow
def test_worker_ends_when_the_run_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        worker = psutil.Process(int(run.stdout.readline()))
        assert not gone(worker)
        run.kill()
    deadline = time.monotonic() + 60
    while not gone(worker):
        assert time.monotonic() < deadline
        time.sleep(0.05)
