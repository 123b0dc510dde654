"""Kills of a whole run, at any moment: no process is left, nothing recorded is lost, and a resume computes the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from esper.cli.main import main
from esper.recordings import events as ev
from esper.recordings.candidates.candidates import COMPARED
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.files.runs import list_runs
from esper.recordings.history.history import open_history
from esper.studies.growth.growth import FRESH_HOSTS
from tests.runs import computed, only, recorded
from tests.terminals import wait_until

TIMEOUT_S = 120
LANES = ("--devices", "cpu:0", "cpu:1")
OPTIONS = (
    *(
        "--no-tui",
        "--training.samples-per-epoch",
        "64",
        "--envs",
        "2",
        "--steps",
        "6",
        "--rounds",
        "3",
        "--checkpoint-every",
        "1",
    ),
    *("--sync-seconds", "0"),
)
PROGRAM = """
import os, signal, sys
from itertools import count
from esper.cli.main import main

operations, last = count(), int(sys.argv[1])

def watch(function):
    def watched(*args, **options):
        if next(operations) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return watched

for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
    setattr(os, name, watch(getattr(os, name)))
sys.exit(main(sys.argv[2:]))
"""
"""Kills itself before a file operation, given by its number."""


def start(*arguments: str, cwd: Path, marker: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "ESPER_TEST_MARKER": marker},
    )


def marked(marker: str) -> list[psutil.Process]:
    """Return the processes that have inherited a marker."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ESPER_TEST_MARKER") == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


QUICK_MOMENT = 6


@pytest.mark.parametrize(
    "moment", [QUICK_MOMENT, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 2, 4, 8, 11, 15))]
)
def test_a_kill_during_the_start_leaves_no_process(tmp_path: Path, moment: int) -> None:
    marker = str(tmp_path)
    run = start("-m", "esper", *OPTIONS, *LANES, cwd=tmp_path, marker=marker)
    time.sleep(moment * 0.3)
    run.kill()
    run.wait(TIMEOUT_S)
    deadline = time.monotonic() + 5
    while marked(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked(marker) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was not killed."""
    directory = tmp_path_factory.mktemp("whole")
    assert main([*OPTIONS, "--telemetry-dir", str(directory), "--devices", "cpu:0"]) == 0
    return only(directory)


def assert_same_results(run: Path, whole: Path) -> None:
    history = open_history(run)
    assert history.notices == []
    assert [event.seq for event in history.events()] == list(range(1, history.length + 1))
    assert repr(computed(recorded(run))) == repr(computed(recorded(whole)))


def recover(directory: Path, whole: Path) -> None:
    """Check what a kill left, and that the same command computes the same in the end."""
    telemetry = directory / "telemetry"
    # A kill may come before a directory has any record: it is no run.
    before = {run: list_checkpoints(run) for run in list_runs(telemetry)}
    assert len(before) <= 1
    code = main([*OPTIONS, "--telemetry-dir", str(telemetry), "--resume", "auto", "--devices", "cpu:0"])
    assert code == 0
    (run, *others) = list_runs(telemetry)
    if not others:
        assert list_checkpoints(run)[-1:] >= before.get(run, [])[-1:]
    else:  # it was done when the kill came
        assert set(others) == set(before)
    assert_same_results(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4, 64, 12))
def test_a_kill_at_a_file_operation_loses_nothing(tmp_path: Path, whole: Path, number: int) -> None:
    run = start("-c", PROGRAM, str(number), *OPTIONS, "--devices", "cpu:0", cwd=tmp_path)
    code = run.wait(TIMEOUT_S)
    assert code in {-signal.SIGKILL, 0}
    recover(tmp_path, whole)


@pytest.mark.slow
def test_a_signal_with_its_default_action_loses_nothing(tmp_path: Path, whole: Path) -> None:
    """A signal that the run does not handle kills it, at a random moment."""
    run = start("-m", "esper", *OPTIONS, *LANES, cwd=tmp_path)
    wait_until(lambda: any(list_checkpoints(each) for each in (tmp_path / "telemetry").glob("*")))
    run.send_signal(signal.SIGQUIT)
    assert run.wait(TIMEOUT_S) in {-signal.SIGQUIT, 0}  # it may have ended before
    recover(tmp_path, whole)


@pytest.mark.slow
def test_a_growth_that_is_killed_in_its_comparisons_continues_in_them(tmp_path: Path) -> None:
    """The wide host of a task in a file trains on both lanes."""
    (tmp_path / "own.py").write_text(
        "from dataclasses import replace\n\nfrom esper.networks.tasks import load_task\n\n"
        'task = replace(load_task("digits_impaired"), name="own_digits", samples_per_epoch=256)\n'
    )
    command = (
        *("grow", "--no-tui", "--task", str(tmp_path / "own.py"), *LANES, "--envs", "4", "--trials", "6"),
        *("--steps", "8", "--seed", "5", "--objective", "score", "--compare", "--telemetry-dir"),
    )

    growth = start("-m", "esper", *command, "killed", cwd=tmp_path)
    wait_until(lambda: any(tmp_path.glob("killed/*/checkpoints/round-00011-*")))  # the first round of comparisons
    growth.kill()
    growth.wait(TIMEOUT_S)
    for directory in ("killed", "whole"):
        assert start("-m", "esper", *command, directory, cwd=tmp_path).wait(TIMEOUT_S) == 0
    killed, whole = (only(tmp_path / directory) for directory in ("killed", "whole"))
    assert_same_results(killed, whole)
    events = recorded(killed)
    begun = [i for i, event in enumerate(events) if isinstance(event, ev.TrialStarted) and event.candidate in COMPARED]
    assert len(begun) == len(COMPARED) * FRESH_HOSTS
    loads = [event for event in events[begun[0] :] if isinstance(event, ev.DeviceSampled)]
    assert {load.device for load in loads if load.busy} == {"cpu:0", "cpu:1"}
