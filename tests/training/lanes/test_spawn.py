"""Tests of the start of workers: before torch is imported, and without any process left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.terminals import TIMEOUT_S, started, wait_until

TWO_LANES = ("--no-tui", "--devices", "cpu:0", "cpu:1", "--envs", "2", "--task", "digits")

PROGRAM = f"""
import subprocess, sys
from esper.cli.main import main

class Watched(subprocess.Popen):
    def __init__(self, command, *args, **options):
        if "esper.training.lanes.worker" in " ".join(command):  # torch starts programs too
            print("worker:", "torch" in sys.modules, file=sys.__stderr__)
        super().__init__(command, *args, **options)

subprocess.Popen = Watched
sys.exit(main({[*TWO_LANES, "--rounds", "1", "--steps", "1"]}))
"""


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def thread_names(pid: int) -> set[str]:
    return {task.read_text().strip() for task in Path(f"/proc/{pid}/task").glob("*/comm")}


@pytest.mark.slow
def test_worker_starts_before_torch_is_imported(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["worker: False"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_at_the_start_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    with started(*TWO_LANES, cwd=tmp_path) as run:
        process = psutil.Process(run.pid)
        wait_until(lambda: bool(process.children()))
        (worker,) = process.children()
        run.send_signal(number)
        code = run.wait(TIMEOUT_S)
    assert code == 0
    wait_until(lambda: gone(worker))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the names of threads")
def test_threads_of_run_and_worker_have_names(tmp_path: Path) -> None:
    with started(*TWO_LANES, cwd=tmp_path) as run:
        assert run.stdout is not None
        while " round 1/" not in run.stdout.readline():
            assert run.poll() is None
        (worker,) = psutil.Process(run.pid).children()
        assert {"engine", "recorder", "control", "lane cpu:0"} <= thread_names(run.pid)
        assert "lane cpu:1" in thread_names(worker.pid)
