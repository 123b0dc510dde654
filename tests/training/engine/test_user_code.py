"""Code of the user that exits, forks, or changes the process: a sentence, and no effect on other envs."""

from __future__ import annotations

import faulthandler
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest
import torch
from torch import nn

from esper.cli import run_display
from esper.cli.main import main
from esper.common.configuration.config import TaskError
from esper.common.configuration.files import resolve_config
from esper.common.control import RequestKind
from esper.common.user_code.isolation import isolated
from esper.networks.tasks.hosts import build_host
from esper.networks.tasks.splits import Splits
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import read_manifest
from esper.training.engine import thread
from esper.training.engine.ending import NOT_BEGUN
from esper.training.engine.start_point import RunOptions, StartPoint
from esper.training.engine.thread import EngineThread
from esper.training.envs.env import Env
from esper.training.lanes import call_watch, lane
from esper.training.lanes.call_watch import CallSupervisor, CallWatch, OverdueCall
from esper.training.lanes.errors import FaultError, RunFailedError
from tests.faults.programs import TIMEOUT_S
from tests.networks.tasks.models import features, mlp
from tests.networks.tasks.models import task as make_task
from tests.recordings.attach.viewers import wait_until
from tests.runs import LiveRun, computed, only_run, tiny

CARELESS = """
import os
import random
import sys
import torch
import esper
from torch import nn
from torch.nn.functional import cross_entropy

count = 0


def data(directory):
    x = torch.randn(64, 4)
    split = x, (x.sum(1) > 0).long()
    return esper.Splits(train=split, validation=split, test=split)


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


def loss(output, y):
    global count
    count += 1
    if count > 60:
        ACTION
    return cross_entropy(output, y)


task = esper.Task(
    name="careless",
    model=model,
    slots={"first": "0"},
    data=data,
    loss=loss,
    optimizer=esper.AdamW(1e-2),
    seed_optimizer=esper.AdamW(1e-2),
)
"""
"""Task whose loss quits after more calls than the checks before a run need."""


@pytest.mark.parametrize(
    ("action", "lanes"),
    [
        ("sys.exit(3)", ("cpu:0",)),
        ("raise KeyboardInterrupt", ("cpu:0",)),
        pytest.param("sys.exit(3)", ("cpu:0", "cpu:1"), marks=pytest.mark.slow),
    ],
)
def test_exit_in_the_code_of_the_user_is_a_fault(action: str, lanes: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / f"{tmp_path.name}.py"  # each a module of its own
    path.write_text(CARELESS.replace("ACTION", action))
    live = LiveRun(tmp_path, task=f"{path}:task", policy="static", devices=lanes, rounds=2, steps=40)
    with pytest.raises(RunFailedError, match=r"continues at round 1, step \d+$"):
        live.run.train()
    live.wait_for(ev.RunEnded)
    assert live.state.reason is not None
    where = re.escape(f"({path}, line 27)")
    assert re.match(rf"env 0\d on cpu:\d failed: (SystemExit: 3|KeyboardInterrupt) {where} \(trace", live.state.reason)
    assert '.py", line 27, in loss' in (live.run.directory / "traceback.txt").read_text()
    assert list_checkpoints(live.run.directory)


@pytest.mark.parametrize("field", ["data", "model", "loss"])
def test_exit_in_a_check_of_the_task_is_refused_with_the_line(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{tmp_path.name}.py"
    quits = f"def {field}(*_):\n    sys.exit(3)\n\n\ndef unused("
    path.write_text(CARELESS.replace(f"def {field}(", quits).replace("ACTION", "pass"))
    assert main(["--no-tui", "--task", str(path), "--telemetry-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{field} of task careless" in said
    assert f"SystemExit: 3 ({path}, line " in said


# Forks


def exit_by_code() -> NoReturn:
    sys.exit(3)


def fail() -> NoReturn:
    raise ValueError


def fail_and_go_on() -> None:
    try:
        fail()
    except ValueError:
        return


@pytest.mark.parametrize(
    ("end", "code"),
    [(lambda: None, 0), (exit_by_code, 3), (fail, 1), (fail_and_go_on, 0)],
    ids=["return", "exit", "error", "caught"],
)
def test_forked_child_exits_where_the_call_of_the_user_ends(end: Callable[[], None], code: int) -> None:
    parent, children = os.getpid(), list[int]()

    def model() -> nn.Module:
        if child := os.fork():
            children.append(child)
        else:
            end()
        return mlp()

    try:
        build_host(make_task(model), 0, 0, 0)
    finally:
        if os.getpid() != parent:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == code


# Global state

MESS = (
    "os.chdir('/'); torch.backends.cudnn.benchmark = True; torch.manual_seed(1); "
    "random.seed(1); torch.set_float32_matmul_precision('medium'); "
    "sys.stdout = sys.stderr = open(os.devnull, 'w')"
)


@pytest.mark.parametrize("lanes", [("cpu:0",), pytest.param(("cpu:0", "cpu:1"), marks=pytest.mark.slow)])
def test_changed_process_is_reset_and_reported(lanes: tuple[str, ...], tmp_path: Path) -> None:
    def events(action: str) -> tuple[list[ev.AnyEvent], list[str]]:
        path = tmp_path / f"{tmp_path.name}_{len(action)}.py"
        code = CARELESS.replace("    return cross", "    value = cross").replace("ACTION", "pass")
        path.write_text(code.replace("\n\n\ntask =", f"\n    {action}\n    return value\n\n\ntask ="))
        options = {"policy": "static", "devices": lanes, "rounds": 1, "steps": 4, "telemetry_dir": tmp_path / path.stem}
        live = LiveRun(task=f"{path}:task", **options)
        live.run.train()
        live.wait_for(ev.RunEnded)
        return computed(live.events), [event.text for event in live.events if isinstance(event, ev.Logged)]

    before = os.getcwd(), sys.stdout, sys.stderr
    undisturbed, _ = events("pass")
    disturbed, _ = events(MESS)
    assert disturbed == undisturbed
    assert (os.getcwd(), sys.stdout, sys.stderr) == before
    assert not torch.backends.cudnn.benchmark
    assert torch.get_float32_matmul_precision() == "highest"


def test_changed_setting_is_reported_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    for _ in range(2):
        with isolated(f"model of {tmp_path}"):
            os.chdir("/")
            torch.set_grad_enabled(False)
            torch.set_num_threads(threads + 1)
            faulthandler.register(signal.SIGTERM, 2)
        assert not faulthandler.unregister(signal.SIGTERM)
        assert (torch.is_grad_enabled(), torch.get_num_threads()) == (True, threads)
    assert capsys.readouterr().err.splitlines() == [
        f"model of {tmp_path} changed the {name}; it was reset, because other envs share it"
        for name in ("gradient mode of torch", "number of threads of torch", "handler of SIGTERM", "current directory")
    ]


def test_overlapping_calls_of_two_lanes_restore_no_changed_setting() -> None:
    before = os.getcwd()
    changed, begun, reset = threading.Event(), threading.Event(), threading.Event()

    def change() -> None:
        with isolated("the first call"):
            os.chdir("/")
            torch.backends.cudnn.benchmark = True
            changed.set()
            begun.wait()
        reset.set()

    thread = threading.Thread(target=change)
    thread.start()
    changed.wait()
    with isolated("the second call"):
        begun.set()
        reset.wait()
    thread.join()
    assert (os.getcwd(), torch.backends.cudnn.benchmark) == (before, False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "default dtype torch.float64; pass dtype="),
        (lambda: torch.set_default_device("meta"), "default device meta; leave it out"),
    ],
)
def test_changed_defaults_of_torch_are_refused(change: Callable[[], None], sentence: str) -> None:
    def model() -> nn.Module:
        change()
        return mlp()

    with pytest.raises(TaskError, match=rf"^model of task \w+ must not change torch .* it sets the {sentence}"):
        build_host(make_task(model), 0, 0, 0)
    assert (torch.empty(0).dtype, torch.empty(0).device.type) == (torch.float32, "cpu")


# Calls that do not return


def test_call_that_does_not_return_is_reported_and_ends_with_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POLL_S", "OVERDUE_S", "LIMIT_S", "STOP_GRACE_S"):
        monkeypatch.setattr(call_watch, name, 0.02)
    monkeypatch.setattr(lane, "POLL_S", 0.02)
    path = tmp_path / f"{tmp_path.name}.py"
    wait = "import time, pathlib\n        while not pathlib.Path(__file__ + 'x').exists(): time.sleep(0.01)"
    path.write_text(CARELESS.replace("ACTION", wait))
    live = LiveRun(tmp_path, task=f"{path}:task", policy="static", rounds=2, steps=40, interactive=True).start()
    try:
        while (call := live.wait_for(ev.CallOverdue)).line != 28:
            live.wait_for(ev.CallEnded)
            assert not live.state.overdue
        assert live.state.overdue == {call.env: call}
        assert (call.lane, call.function, call.file) == ("cpu:0", "loss", str(path))
        live.control.put(RequestKind.STOP, "signal")
        live.finish()
    finally:
        (tmp_path / f"{path.name}x").touch()
    assert live.failure is not None
    assert "and did not return when the run was stopped; --resume" in live.failure
    assert [read_manifest(saved).step for saved in list_checkpoints(live.run.directory)] == [0]
    assert live.run.pool.supervisor.abandoned
    assert not any(isinstance(event, ev.Paused) for event in live.events)  # the dashboard of a stopped run closes
    assert not live.state.overdue


def test_call_that_goes_on_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_watch, "OVERDUE_S", 0.0)
    watch, env = CallWatch("cpu:0"), SimpleNamespace(index=3, network=SimpleNamespace(passes=0))
    assert watch.look() is None
    watch.begin(cast("Env", env))
    assert watch.look() is None
    assert watch.look() is None  # no code of the user is in the stack
    env.network.passes += 1
    assert watch.look() is None
    watch.end()
    assert watch.look() is None


def test_call_that_was_stopped_with_its_process_stays_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is reported when it ends, not when the process continues."""
    monkeypatch.setattr(call_watch, "OVERDUE_S", 0.0)
    monkeypatch.setattr(call_watch, "find_in_thread", lambda _: ("slow.py", 28, "loss"))
    watch = CallWatch("cpu:0")
    watch.begin(cast("Env", SimpleNamespace(index=3, network=SimpleNamespace(passes=0))))
    assert watch.look() is None
    found = watch.look()
    assert found is not None
    monkeypatch.setattr(call_watch, "PAUSE_S", -1.0)
    assert watch.look() is found
    watch.end()
    assert watch.look() is None


def overdue(seconds: float) -> OverdueCall:
    return OverdueCall(0, "cpu:0", "loss", "slow.py", 28, seconds)


def test_call_that_is_often_slow_is_not_abandoned_early() -> None:
    """Its time counts from its own begin, not from that of the first call."""
    supervisor, reported = CallSupervisor(), list[bool]()
    supervisor.report_call = lambda _, seconds: reported.append(seconds is None)
    supervisor.check("cpu:0", overdue(29.9))
    supervisor.check("cpu:0", None)
    time.sleep(0.15)
    supervisor.seconds_since_stop = lambda: 60.0
    supervisor.check("cpu:0", overdue(29.9))
    supervisor.check("cpu:1", None)
    place = r"env 00 on cpu:0 has been in loss for \d+ s \(slow\.py, line 28\)"
    end = "unless it returns, the run ends in 5 s with its last checkpoint"
    assert re.fullmatch(f"{place}; {end}", supervisor.stop_effect() or "")
    time.sleep(0.15)
    for waited_for in ("cpu:0", "cpu:1"):  # no other call is waited for any more
        with pytest.raises(FaultError, match=f"^{place}, and did not return"):
            supervisor.check(waited_for, overdue(29.9) if waited_for == "cpu:0" else None)
    assert reported == [True, False, True]


def test_stop_while_the_task_is_set_up_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def data(_: object) -> Splits:
        begun.set()
        go_on.wait()
        return features()

    monkeypatch.setattr(thread, "PREPARATION_GRACE_S", 0.05)
    engine = EngineThread(StartPoint(resolve_config(None, tiny(tmp_path))), RunOptions(task=make_task(data=data)))
    engine.start()
    begun.wait()
    assert engine.is_preparing
    place, printed = engine.start_stage, io.StringIO()
    assert re.fullmatch(r"in data \(test_user_code\.py, line \d+\)", place)
    monkeypatch.setattr(run_display, "SLOW_START_S", 0.01)
    report = threading.Thread(target=run_display.report_slow_start, args=(engine, printed))
    report.start()
    wait_until(lambda: bool(printed.getvalue()))
    engine.control.put(RequestKind.STOP, "signal")
    engine.join()
    report.join()
    assert printed.getvalue() == f"still starting: {place}\n"
    assert engine.must_exit
    go_on.set()
    while engine.must_exit:
        time.sleep(0.01)
    assert (engine.directory, engine.ending) == (None, NOT_BEGUN)
    assert not list(tmp_path.iterdir())


SLEEPER = """
import time

print("sleeping", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_signal_during_the_import_of_a_task_is_answered(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER.replace("print", "open('begun', 'w'); print"))
    command = [sys.executable, "-m", "esper", "--no-tui", "--task", "sleeper.py", "--devices", "cpu:0"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until((tmp_path / "begun").exists)
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=TIMEOUT_S)[0]
    assert time.monotonic() - start < 3
    assert (process.returncode, output.splitlines()) == (
        0,
        ["stopping: nothing is to be saved while the run is set up; a second signal ends it at once"],
    )


@pytest.mark.slow
def test_one_signal_ends_a_run_that_is_stuck_in_a_worker(tmp_path: Path) -> None:
    wait = "import time\n        while 'engine' not in str(threading.enumerate()): time.sleep(1)"
    limits = "from esper.training.lanes import call_watch\ncall_watch.OVERDUE_S, call_watch.LIMIT_S = 2.0, 8.0\n"
    (tmp_path / "endless.py").write_text(f"import threading\n{limits}{CARELESS.replace('ACTION', wait)}")
    options = ["--policy", "static", "--rounds", "1000", "--steps", "20", "--envs", "4", "--devices", "cpu:0", "cpu:1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "esper", "--no-tui", "--task", "endless.py", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    while "has been in loss for 2 s" not in (line := process.stdout.readline()):
        assert line
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=TIMEOUT_S)[0]
    assert time.monotonic() - start < 20
    assert process.returncode == 1
    assert " s with its last checkpoint; a second signal" in output
    assert re.search(r"in loss for \d+ s .*did not return when the run was stopped; --resume", output)
    assert list_checkpoints(only_run(tmp_path))
