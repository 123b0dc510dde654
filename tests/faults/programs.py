"""Runs the command line in processes of their own, with their peak memory, and builds small recordings to damage."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from esper.common.configuration.config import Config
from esper.recordings.checkpoints.catalog import checkpoint_path
from esper.recordings.files.recorder import Recorder, write_manifest
from esper.recordings.files.run_directory import RunDirectory
from esper.training.checkpoint.files import Checkpoint, write_checkpoint
from tests.factory import example_run

TIMEOUT_S = 120


class Ended(NamedTuple):
    """How a program ended."""

    code: int
    output: str
    """Standard output and standard error."""
    peak_mb: float
    """Peak memory in MB."""


_SERVER = """
import gc, json, os, pathlib, resource, signal, sys
from importlib import import_module
from esper.__main__ import run
for module in sys.argv[1:]:
    import_module(module)
gc.freeze()
for line in sys.stdin:
    directory, *arguments = json.loads(line)
    if process := os.fork():
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
        continue
    signal.alarm(TIMEOUT_S)
    output = os.open(f"{directory}/output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(source, stream)
    try:
        code = run(arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        pathlib.Path(f"{directory}/status").write_text(pathlib.Path("/proc/self/status").read_text())
    sys.stdout.flush()
    os._exit(code)
""".replace("TIMEOUT_S", str(TIMEOUT_S))
"""Runs the command line of every line of its input in a fork, which has imported the modules already.

A fork writes its status, which has its peak memory, to a file, and is killed if it hangs.
"""


class ProgramServer:
    """Runs `esper-sanctum` in processes of their own, one at a time, which do not repeat the imports.

    Args:
        modules: Modules that every process has imported.
    """

    def __init__(self, *modules: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, *modules], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._requests, self._replies = self._server.stdin, self._server.stdout

    def run(self, *arguments: str | Path) -> Ended:
        """Run the program with arguments, without a terminal, until it ends."""
        with tempfile.TemporaryDirectory() as directory:
            self.start(Path(directory), *arguments)
            return self.wait(Path(directory))

    def start(self, directory: Path, *arguments: str | Path) -> int:
        """Start the program with arguments, and return its process ID.

        Args:
            directory: Directory that receives its output.
        """
        self._requests.write(json.dumps([str(directory), *map(str, arguments)]).encode() + b"\n")
        return int(self._replies.readline())

    def has_ended(self, timeout: float) -> bool:
        """Wait for the end of the started program, for some seconds; return True if it has ended."""
        return bool(select.select([self._replies], [], [], timeout)[0])

    def wait(self, directory: Path) -> Ended:
        """Wait for the end of the started program, and return how it ended."""
        code = int(self._replies.readline())
        status, output = directory / "status", directory / "output"
        peak = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
        return Ended(code, output.read_text(errors="replace"), int(peak[1]) / 1000 if peak else math.inf)

    def close(self) -> None:
        """End the server and its program."""
        self._server.kill()
        self._server.wait()


class RankLauncher:
    """Runs `esper-sanctum` as two ranks under torchrun, like a `ProgramServer`."""

    def start(self, directory: Path, *arguments: str | Path) -> int:
        """Start torchrun with the arguments of the program, and return the process ID of torchrun."""
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "esper")
        with (directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *launcher, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        return self._process.pid

    def has_ended(self, timeout: float) -> bool:
        """Wait for the end of torchrun, for some seconds; return True if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return self._process.poll() is not None

    def wait(self, directory: Path) -> Ended:
        """Wait for the end of torchrun, and return how it ended."""
        return Ended(self._process.wait(), (directory / "output").read_text(errors="replace"), math.nan)


def example_checkpoint(number: int) -> Checkpoint:
    """Return a small checkpoint, which no run can resume from, with its number in a tensor."""
    state = {"agent": {}, "episodes": [], "scalers": {}}
    return Checkpoint(Config(), number, 0, state, {"weight": torch.full((8,), float(number))}, b"{}")


def write_run(directory: Path) -> Path:
    """Write a packed recording with a checkpoint, and return the directory of the run."""
    run = directory / "digits-20260101-000000"
    recorder = Recorder(RunDirectory.make(run))
    write_manifest(RunDirectory.make(run), {"run": run.name, "config": {}, "versions": {}})
    for event in example_run(2, 2, 12):
        recorder.put(event)
    recorder.close()
    write_checkpoint(checkpoint_path(run, 2, 1), example_checkpoint(2))
    return run
