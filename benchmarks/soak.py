"""A long run under observation: `python -m benchmarks.soak --minutes 60`.

A run trains without a dashboard. One viewer stays attached to it; others attach, look at some screens and detach, one
after another. Memory, open files and threads of the run and of the viewer that stays are sampled. At the end a signal
stops the run. The slopes are least-squares lines over the samples after the first third of the time. Expected: no slope
of files and threads, memory that levels off, and sequence numbers without a gap.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
from benchmarks.live import ESPER, Terminal

from esper.recordings.history.history import open_history

VISIT_KEYS = (b"2", b"3", b"4", b"5", b"1", b"j", b"\r", b"\x1b")
"""Keys that a viewer presses before it detaches."""
VISIT_S = 20.0
"""Duration of a visit in seconds."""
SAMPLE_S = 5.0
"""Interval of the samples in seconds."""


class Sample(NamedTuple):
    """State of a process and its children at one moment."""

    minutes: float
    memory: float
    """Memory that no other process shares (USS), in MiB: it does not depend on what other programs map."""
    files: float
    threads: float


def sample(pid: int, minutes: float) -> Sample:
    """Sample a process and its children."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    memory = sum(member.memory_full_info().uss for member in family) / 2**20
    return Sample(
        minutes, memory, sum(member.num_fds() for member in family), sum(member.num_threads() for member in family)
    )


def print_slopes(name: str, samples: Sequence[Sample]) -> None:
    """Print the last value and the slope per hour of each quantity after the first third of the time."""
    late = [each for each in samples if each.minutes >= samples[-1].minutes / 3]
    hours = [each.minutes / 60 for each in late]
    for quantity, unit in (("memory", " MiB"), ("files", ""), ("threads", "")):
        values = [getattr(each, quantity) for each in late]
        slope = statistics.linear_regression(hours, values).slope
        print(f"{name}: {quantity} {values[0]:.0f} → {values[-1]:.0f}{unit}, {slope:+.1f}{unit} per hour", flush=True)


def soak(directory: Path, minutes: float, envs: int) -> None:
    """Run, observe, stop and check a run."""
    start = time.monotonic()
    command = [*ESPER, "--no-tui", "--envs", str(envs), "--rounds", "1000000", "--telemetry-dir", str(directory)]
    with ExitStack() as opened:
        run = opened.enter_context(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        )
        opened.callback(run.kill)
        while not (found := [path.parent for path in directory.glob("*/control.sock")]):
            time.sleep(0.5)
        attach = [*ESPER, "attach", str(found[0])]
        staying = opened.enter_context(Terminal(attach))
        of_run, of_viewer = list[Sample](), list[Sample]()
        visits = 0
        while (elapsed := time.monotonic() - start) < minutes * 60:
            with Terminal(attach) as visitor:
                visits += 1
                for number in range(int(VISIT_S / SAMPLE_S)):
                    for key in VISIT_KEYS[2 * number : 2 * number + 2]:
                        visitor.press(key)
                        visitor.drain(0.1)
                    visitor.drain(SAMPLE_S)
                    staying.drain(0.1)
                    of_run.append(sample(run.pid, elapsed / 60))
                    of_viewer.append(sample(staying.pid, elapsed / 60))
                visitor.press(b"q")
                visitor.drain(1.0)
        run.send_signal(signal.SIGTERM)
        errors = run.communicate(timeout=120)[1].decode()
    history = open_history(found[0])
    gaps = sum(event.seq != number for number, event in enumerate(history.events(), 1))
    state = history.state_at(history.length)
    print(f"{minutes:.0f} minutes, {visits} visits, {history.length:,} events, {len(history.rounds)} rounds")
    print(
        f"exit code {run.returncode}, status {state.status}, {gaps} gaps, notices {history.notices}, stderr {errors!r}"
    )
    print_slopes("run", of_run)
    print_slopes("viewer", of_viewer)


def main() -> None:
    """Run the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="duration (default: 60)")
    parser.add_argument("--envs", type=int, default=8, help="envs of the run (default: 8)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        soak(Path(name), options.minutes, options.envs)


if __name__ == "__main__":
    main()
