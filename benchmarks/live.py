"""Start-up, and cost and latency of the dashboard: `python -m benchmarks.live [NAME ...]`.

    start       seconds from the start of the process to the first trained step, by phase, on one and on two lanes (≤ 4)
    first       seconds to the first frame of a replay of the demo, minus those of a minimal Textual app (≤ +0.3)
    throughput  env-steps per second with the dashboard, as a percentage of those without it (≥ 97 %)
    effects     the same while another process computes effects of decisions of the demo (≥ 97 %)
    references  the same while it computes references of the demo (≥ 97 %)
    keys        milliseconds from a key to the screen that it opens, while training saturates every core (p95 ≤ 100)

Targets are in parentheses. Programs that are compared run in turns. All programs run in separate processes; those with
a dashboard, on pseudo-terminals of 200x60.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import random
import select
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from esper.recordings import events as ev
from esper.recordings.effects.messages import RoundsRequest, SimulationRequest
from esper.recordings.effects.store import RESULTS_FILE
from esper.recordings.history.history import History, open_history
from esper.sanctum.what_if import SimulationProcess

ESPER = [sys.executable, "-m", "esper"]
DEMO = Path(__file__).resolve().parents[1] / "telemetry" / "demo"
"""Run of the demo."""
MINIMAL_APP = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("REPLAY")
Bare().run()
"""
SCREENS = ((b"2", b"mean return"), (b"1", b"by env"))
"""Keys, each with a text that only the screen that it opens contains."""
START_LANES = (["cpu:0"], ["cpu:0", "cpu:1"])
"""Lanes of the runs whose start is measured."""
START_MODULES = {
    "esper.cli.console": "command line",
    "torch": "torch imported",
    "esper.training.engine.setup": "engine imported",
}
"""Modules whose import ends a phase of the start, in order, each with the phase."""
TIMEOUT_S = 120.0
"""Maximum time to wait for a text on the screen."""


class Terminal:
    """Command on a pseudo-terminal, as a context manager that kills the command at its end.

    Args:
        command: Program and arguments.

    Attributes:
        start: Start time, from `time.perf_counter`.
        pid: Process id.
    """

    def __init__(self, command: list[str]) -> None:
        self.start = time.perf_counter()
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", COLUMNS="200", LINES="60")
            os.execv(command[0], command)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        subprocess.run(["kill", "-KILL", str(self.pid)], check=False)
        os.waitpid(self.pid, 0)
        os.close(self._file)

    def press(self, key: bytes) -> None:
        """Type a key."""
        os.write(self._file, key)

    def _read(self) -> bytes:
        """Read the output, and answer a query of the terminal's attributes, as every terminal does."""
        output = os.read(self._file, 1 << 16)
        if b"\x1b[c" in output:
            os.write(self._file, b"\x1b[?62;4c")
        return output

    def drain(self, seconds: float) -> None:
        """Read and discard the output for a time, or until the command ends."""
        deadline = time.perf_counter() + seconds
        while (remaining := deadline - time.perf_counter()) > 0:
            if select.select([self._file], [], [], remaining)[0]:
                try:
                    self._read()
                except OSError:  # the terminal is closed
                    return

    def wait_for(self, text: bytes) -> float:
        """Wait until a text is drawn, and return the time of `time.perf_counter`.

        Raises:
            TimeoutError: The text was not drawn within `TIMEOUT_S`.
        """
        output, deadline = b"", time.perf_counter() + TIMEOUT_S
        while select.select([self._file], [], [], max(deadline - time.perf_counter(), 0.0))[0]:
            output += self._read()
            if text in output:
                return time.perf_counter()
            output = output[-len(text) :]
        raise TimeoutError(f"{text.decode()!r} was not drawn within {TIMEOUT_S:.0f} s")


def time_start(lanes: list[str], caches: Path) -> dict[str, float]:
    """Start a run, and return the seconds from the start of its process to the end of each phase.

    Python itself prints the end of each import (`-X importtime`), and the events of the run have times.

    Args:
        lanes: Lanes of the run.
        caches: Directory of the compiled modules. An installed program has them; a development environment need not.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(caches)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    sizes = ["--envs", "2", "--steps", "1", "--rounds", "1", "--policy", "static"]
    with tempfile.TemporaryDirectory() as directory:
        options = ["--no-tui", *sizes, "--devices", *lanes, "--telemetry-dir", directory]
        command = [sys.executable, "-X", "importtime", "-m", "esper", *options]
        start, ends = time.time(), dict[str, float]()
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if phase := START_MODULES.get(line.rpartition("|")[2].strip()):
                    ends[phase] = time.time() - start
        history = open_only_run(Path(directory))
        assert history is not None, "the run has failed"
        for event in history.events():
            if isinstance(event, ev.RunStarted):
                ends["run set up"] = event.time - start
            elif isinstance(event, ev.PhaseTimed):
                ends["first step"] = event.time - start
    return ends


def measure_start(turns: int) -> None:
    """Measure the start of runs in turns, and print the median end and duration of each phase."""
    times: dict[str, list[dict[str, float]]] = {" ".join(lanes): [] for lanes in START_LANES}
    with tempfile.TemporaryDirectory() as caches:
        time_start(START_LANES[-1], Path(caches))  # compiles the modules
        for _ in range(turns):
            for lanes in START_LANES:
                times[" ".join(lanes)].append(time_start(lanes, Path(caches)))
    print(f"start: median seconds of {turns} starts until the end of each phase, (of the phase)")
    print(" " * 16 + "".join(f"{lanes:>16}" for lanes in times))
    before = dict.fromkeys(times, 0.0)
    for phase in (*START_MODULES.values(), "run set up", "first step"):
        cells = ""
        for lanes, runs in times.items():
            end = statistics.median(run[phase] for run in runs)
            cells += f"{end:9.2f} ({end - before[lanes]:.2f})"
            before[lanes] = end
        print(f"{phase:16}{cells}{'  (≤ 4)' if phase == 'first step' else ''}", flush=True)


def measure_first_frame(turns: int) -> None:
    """Measure the time to the word REPLAY in turns, and print the medians."""
    times: dict[str, list[float]] = {"minimal": [], "replay": []}
    commands = {"minimal": [sys.executable, "-c", MINIMAL_APP], "replay": [*ESPER, "replay", str(DEMO)]}
    for _ in range(turns):
        for name, command in commands.items():
            with Terminal(command) as terminal:
                times[name].append(terminal.wait_for(b"REPLAY") - terminal.start)
    minimal, replay = (statistics.median(seconds) for seconds in times.values())
    difference = replay - minimal
    print(f"first frame: minimal app {minimal:.2f} s, replay {replay:.2f} s, {difference:+.2f} s (≤ +0.3)", flush=True)


def training_command(options: argparse.Namespace, directory: Path, rounds: int) -> list[str]:
    """Return the command of a run that saturates every core."""
    sizes = ["--envs", str(options.envs), "--steps", str(options.steps), "--rounds", str(rounds)]
    return [*ESPER, *sizes, "--telemetry-dir", str(directory)]


def open_only_run(directory: Path) -> History | None:
    """Open the recording of the only run in a directory; None if there is none yet."""
    runs = [path.parent for path in directory.glob("*/run.json")]
    return open_history(runs[0]) if runs else None


def env_steps_per_second(history: History) -> float:
    """Return the throughput over all rounds except the first, which is a warm-up."""
    steps = [event for event in history.events(history.rounds[1]) if isinstance(event, ev.PhaseTimed)]
    started = history.state_at(history.length).started
    assert started is not None
    return len(steps) * len(started.lanes) / sum(step.wall for step in steps)


def train_and_measure(options: argparse.Namespace, *, dashboard: bool) -> float:
    """Train a whole run with or without the dashboard, and return its env-steps per second."""
    with tempfile.TemporaryDirectory() as name:
        command = training_command(options, Path(name), options.rounds + 1)
        if not dashboard:
            subprocess.run([*command, "--no-tui"], check=True, capture_output=True)
        else:
            with Terminal(command) as terminal:
                while (run := open_only_run(Path(name))) is None or run.state_at(run.length).status != "done":
                    terminal.drain(1.0)
        history = open_only_run(Path(name))
        assert history is not None
        return env_steps_per_second(history)


def measure_throughput(options: argparse.Namespace) -> None:
    """Measure throughput without and with the dashboard in turns, so that other load affects both."""
    rates = [
        (train_and_measure(options, dashboard=False), train_and_measure(options, dashboard=True))
        for _ in range(options.turns)
    ]
    headless, watched = (statistics.median(column) for column in zip(*rates, strict=True))
    ratio = statistics.median(watched / headless for headless, watched in rates)
    print(f"throughput: headless {headless:.1f}, dashboard {watched:.1f} env-steps/s, {ratio:.1%} (≥ 97 %)", flush=True)


@contextmanager
def simulation(name: str) -> Iterator[None]:
    """Compute the effects of all decisions of an episode of the demo, or its references, as the dashboard does.

    The process stops at the end.

    Args:
        name: `effects` or `references`.
    """
    with tempfile.TemporaryDirectory() as directory:
        recording = Path(shutil.copytree(DEMO, directory, dirs_exist_ok=True))
        (recording / RESULTS_FILE).unlink()
        rounds = list(range(len(open_history(recording).rounds), 0, -1))
        process = SimulationProcess(
            SimulationRequest(recording=str(recording), round=1, env=0)
            if name == "effects"
            else RoundsRequest(recording=str(recording), rounds=rounds, aim="references")
        )
        try:
            yield
        finally:
            process.close()
            time.sleep(1.0)  # it may still write


def measure_simulation(name: str, options: argparse.Namespace) -> None:
    """Measure headless throughput without and with a process that computes effects or references, in turns."""
    rates: list[tuple[float, float]] = []
    for _ in range(options.turns):
        alone = train_and_measure(options, dashboard=False)
        with simulation(name):
            rates.append((alone, train_and_measure(options, dashboard=False)))
    ratio = statistics.median(beside / alone for alone, beside in rates)
    print(f"{name}: {ratio:.1%} of the throughput without them (≥ 97 %), {options.turns} turns", flush=True)


def measure_keys(options: argparse.Namespace) -> None:
    """Measure the time from a key to the screen that it opens; these keys cause the most drawing."""
    generator, times_ms = random.Random(0), list[float]()
    with tempfile.TemporaryDirectory() as name, Terminal(training_command(options, Path(name), 10_000)) as terminal:
        while (history := open_only_run(Path(name))) is None or not history.steps:
            terminal.drain(1.0)
        for index in range(options.presses):
            terminal.drain(generator.uniform(0.3, 0.6))
            key, text = SCREENS[index % len(SCREENS)]
            start = time.perf_counter()
            terminal.press(key)
            times_ms.append((terminal.wait_for(text) - start) * 1e3)
    ordered = sorted(times_ms)
    p95 = ordered[min(len(ordered) * 95 // 100, len(ordered) - 1)]
    print(f"keys: {statistics.median(times_ms):.0f} ms median, {p95:.0f} ms p95 (≤ 100) of {len(times_ms)}", flush=True)


def main() -> None:
    """Run the benchmarks that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "benchmarks", nargs="*", help="start, first, throughput, effects, references, keys (default: all)"
    )
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of a run, after one warm-up round")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--presses", type=int, default=60)
    options = parser.parse_args()
    simulations = ("effects", "references")
    selected = options.benchmarks or ["start", "first", "throughput", *simulations, "keys"]
    if "start" in selected:
        measure_start(options.turns)
    if "first" in selected:
        measure_first_frame(options.turns)
    if "throughput" in selected:
        measure_throughput(options)
    for name in simulations:
        if name in selected:
            measure_simulation(name, options)
    if "keys" in selected:
        measure_keys(options)


if __name__ == "__main__":
    main()
