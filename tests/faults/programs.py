"""Runs the command line in a process of its own, with its peak memory, and builds small damaged recordings."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from esper.checkpoint.catalog import checkpoint_path
from esper.checkpoint.files import Checkpoint, write_checkpoint
from esper.config import Config
from esper.recording.recorder import Recorder, write_manifest
from tests.factory import example_run

TIMEOUT_S = 120


class Ended(NamedTuple):
    """How a program ended."""

    code: int
    output: str
    """Standard output and standard error."""
    peak_mb: float
    """Peak memory in MB."""


_PROGRAM = """
import pathlib, sys
from esper.cli.main import main
try:
    code = main(sys.argv[2:])
finally:
    pathlib.Path(sys.argv[1]).write_text(pathlib.Path("/proc/self/status").read_text())
sys.exit(code)
"""
"""Writes its status, which has the peak memory, to a file. The system also reports it to the parent process, but
includes the memory that the parent had at the fork."""


def run_program(*arguments: str | Path) -> Ended:
    """Run `esper-sanctum` with arguments, without a terminal. A program that hangs is killed."""
    with tempfile.TemporaryDirectory() as directory:
        status = Path(directory) / "status"
        process = subprocess.run(
            ["timeout", "-s", "KILL", str(TIMEOUT_S), sys.executable, "-c", _PROGRAM, status, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        peak = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    peak_mb = int(peak[1]) / 1000 if peak else math.inf
    return Ended(process.returncode, process.stdout.decode(errors="replace"), peak_mb)


def example_checkpoint(number: int) -> Checkpoint:
    """Return a small checkpoint, which no run can resume from, with its number in a tensor."""
    state = {"agent": {}, "episodes": [], "scalers": {}}
    return Checkpoint(Config(), number, 0, state, {"weight": torch.full((8,), float(number))}, b"{}")


def write_run(directory: Path) -> Path:
    """Write a packed recording with a checkpoint, and return the directory of the run."""
    run = directory / "digits-20260101-000000"
    recorder = Recorder(run)
    write_manifest(run, {"run": run.name, "config": {}, "versions": {}})
    for event in example_run(2, 2, 12):
        recorder.put(event)
    recorder.close()
    write_checkpoint(checkpoint_path(run, 2, 1), example_checkpoint(2))
    return run
