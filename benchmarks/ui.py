"""CPU time per refresh of a screen when every row changes: `python benchmarks/ui.py`.

The dashboard runs on a pseudo-terminal with its normal five refreshes per second, and receives one step of every env
before each. The result is the CPU time of the process per refresh: fold, drawing, and encoding for the terminal.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.factory import stamp
from tests.sanctum.population import population, step_events
from tests.sanctum.sessions import FakeSession

from esper.sanctum.app import TICK_INTERVAL_S, SanctumApp
from esper.sanctum.source import LiveSource
from esper.sanctum.theme import DEFAULT_THEME

WARM_UP, REFRESHES = 10, 40


class FedSource(LiveSource):
    """An app that receives one step of every env before each refresh, and records the CPU time."""

    def __init__(self, envs: int) -> None:
        steps = WARM_UP + REFRESHES + 2
        self._session_of_events = FakeSession(population(envs, rounds=5, steps=steps, stop=1))
        super().__init__(self._session_of_events)
        super().tick(0.0)
        self._to_come = [stamp(step_events(envs, 5, step), first=10**6 * step) for step in range(2, steps)]
        self._looks = 0
        self._began = 0.0
        self.per_refresh: float | None = None

    def tick(self, seconds: float) -> bool:
        self._looks += 1
        if self._looks == WARM_UP:
            self._began = time.process_time()
        if self._looks == WARM_UP + REFRESHES:
            self.per_refresh = (time.process_time() - self._began) / REFRESHES
        if self._to_come:
            self._session_of_events.say(*self._to_come.pop(0))
        return super().tick(seconds)


class MeasuredApp(SanctumApp):
    """An app that exits once the measurement is complete."""

    def refresh_view(self) -> None:
        super().refresh_view()
        if isinstance(self.source, FedSource) and self.source.per_refresh is not None:
            self.exit()


def measure(envs: int, width: int, height: int, place: str) -> float:
    """Return CPU seconds per refresh, measured in a separate process."""
    with tempfile.NamedTemporaryFile("r") as answer:
        child, terminal = pty.fork()
        if child == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            os.environ.update(TERM="xterm-256color", COLUMNS=str(width), LINES=str(height))
            source = FedSource(envs)
            MeasuredApp(source, theme=DEFAULT_THEME, initial_view=place).run()
            Path(answer.name).write_text(str(source.per_refresh))
            os._exit(0)
        while True:
            try:
                if not os.read(terminal, 65536):
                    break
            except OSError:  # the child has closed its side of the terminal
                break
        os.waitpid(child, 0)
        return float(answer.read())


def main() -> None:
    """Print a line for each screen, number of envs and terminal size."""
    print(
        f"{'screen':<9} {'envs':>5}  {'terminal':>8}  CPU ms a refresh  "
        f"% of a core at {1 / TICK_INTERVAL_S:.0f} a second"
    )
    sizes = ((200, 70), (120, 40), (80, 24))
    for place, envs in product(("overview", "policy", "numerics", "devices"), (64, 256)):
        for width, height in sizes:
            cost = measure(envs, width, height, place)
            print(
                f"{place:<9} {envs:>5}  {width:>4}x{height:<3}  {cost * 1000:>16.1f}  "
                f"{cost / TICK_INTERVAL_S * 100:>6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
