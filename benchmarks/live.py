"""Overhead and latency of the dashboard: `python -m benchmarks.live [first] [throughput] [keys]`.

    first       seconds to the first frame of the demo replay minus those of a bare Textual app, in turns (≤ +0.3)
    throughput  env-steps per second with the dashboard, relative to headless, in turns (≥ 97 %)
    keys        milliseconds from a key press to the screen that it opens, under full CPU load (p95 ≤ 100)

Targets are in parentheses. Every measurement runs in separate processes on pseudo-terminals of 200x60.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from types import TracebackType

from esper.history.history import History, open_history
from esper.telemetry import events as ev

ESPER = [sys.executable, "-m", "esper"]
DEMO = Path(__file__).resolve().parents[1] / "telemetry" / "demo"
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("REPLAY")
Bare().run()
"""
SCREENS = ((b"2", b"learning"), (b"1", b"envs "))
"""Keys, each with a text that only its screen shows."""
PATIENCE = 120.0
"""Timeout in seconds."""


class Terminal:
    """A command on a pseudo-terminal. It is killed on leaving the context.

    Args:
        command: Program and arguments.
    """

    def __init__(self, command: list[str]) -> None:
        self.began = time.perf_counter()
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", COLUMNS="200", LINES="60")
            os.execv(command[0], command)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        subprocess.run(["kill", "-KILL", str(self._pid)], check=False)
        os.waitpid(self._pid, 0)
        os.close(self._file)

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._file, key)

    def drain(self, seconds: float) -> None:
        """Read the output of the command for some seconds."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            if select.select([self._file], [], [], left)[0]:
                os.read(self._file, 1 << 16)

    def wait_for(self, text: bytes) -> float:
        """Return the time at which a text is drawn.

        Raises:
            TimeoutError: The text is not drawn in time.
        """
        seen, until = b"", time.perf_counter() + PATIENCE
        while select.select([self._file], [], [], max(until - time.perf_counter(), 0.0))[0]:
            seen += os.read(self._file, 1 << 16)
            if text in seen:
                return time.perf_counter()
            seen = seen[-len(text) :]
        raise TimeoutError(f"{text.decode()!r} was not drawn within {PATIENCE:.0f} s")


def first_frames(turns: int) -> None:
    """Measure the time until the word REPLAY is drawn, in turns."""
    taken: dict[str, list[float]] = {"bare": [], "replay": []}
    commands = {"bare": [sys.executable, "-c", BARE], "replay": [*ESPER, "replay", str(DEMO)]}
    for _ in range(turns):
        for name, command in commands.items():
            with Terminal(command) as terminal:
                taken[name].append(terminal.wait_for(b"REPLAY") - terminal.began)
    bare, replay = (statistics.median(times) for times in taken.values())
    print(f"first frame: bare {bare:.2f} s, replay {replay:.2f} s, {replay - bare:+.2f} s (≤ +0.3)", flush=True)


def training(options: argparse.Namespace, directory: Path, rounds: int) -> list[str]:
    """Return the command of a run that saturates every core."""
    sizes = ["--envs", str(options.envs), "--steps", str(options.steps), "--rounds", str(rounds)]
    return [*ESPER, *sizes, "--telemetry-dir", str(directory)]


def recorded(directory: Path) -> History | None:
    """Return the history of the only run in a directory; None before its first event."""
    runs = [path.parent for path in directory.glob("*/run.json")]
    return open_history(runs[0]) if runs else None


def rate(history: History) -> float:
    """Return env-steps per second after the first round, which is a warm-up."""
    steps = [event for event in history.events(history.rounds[1]) if isinstance(event, ev.PhaseTimed)]
    started = history.state_at(history.length).started
    assert started is not None
    return len(steps) * len(started.lanes) / sum(step.wall for step in steps)


def one_rate(options: argparse.Namespace, *, dashboard: bool) -> float:
    """Return the env-steps per second of a run, with or without the dashboard."""
    with tempfile.TemporaryDirectory() as name:
        command = training(options, Path(name), options.rounds + 1)
        if not dashboard:
            subprocess.run([*command, "--no-tui"], check=True, capture_output=True)
        else:
            with Terminal(command) as terminal:
                while (found := recorded(Path(name))) is None or found.state_at(found.length).status != "done":
                    terminal.drain(1.0)
        history = recorded(Path(name))
        assert history is not None
        return rate(history)


def throughput(options: argparse.Namespace) -> None:
    """Measure in turns, so that other load on the machine affects both."""
    rates = [(one_rate(options, dashboard=False), one_rate(options, dashboard=True)) for _ in range(options.turns)]
    headless, watched = (statistics.median(column) for column in zip(*rates, strict=True))
    share = statistics.median(watched / headless for headless, watched in rates)
    print(f"throughput: headless {headless:.1f}, dashboard {watched:.1f} env-steps/s, {share:.1%} (≥ 97 %)", flush=True)


def keys(options: argparse.Namespace) -> None:
    """Measure the time from a key press to its screen, for the keys whose screens draw most."""
    draw, times = random.Random(0), list[float]()
    with tempfile.TemporaryDirectory() as name, Terminal(training(options, Path(name), 10_000)) as terminal:
        while (history := recorded(Path(name))) is None or not history.steps:
            terminal.drain(1.0)
        for number in range(options.presses):
            terminal.drain(draw.uniform(0.3, 0.6))
            key, text = SCREENS[number % len(SCREENS)]
            began = time.perf_counter()
            terminal.press(key)
            times.append((terminal.wait_for(text) - began) * 1e3)
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) * 95 // 100, len(ordered) - 1)]
    print(f"keys: {statistics.median(times):.0f} ms median, {p95:.0f} ms p95 (≤ 100) of {len(times)}", flush=True)


def main() -> None:
    """Run the requested measurements, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="first, throughput, keys (default: all)")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a run after a warm-up round")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--presses", type=int, default=60)
    options = parser.parse_args()
    wanted = options.what or ["first", "throughput", "keys"]
    if "first" in wanted:
        first_frames(options.turns)
    if "throughput" in wanted:
        throughput(options)
    if "keys" in wanted:
        keys(options)


if __name__ == "__main__":
    main()
