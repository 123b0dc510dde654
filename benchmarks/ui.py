"""CPU time of a refresh of each screen when every row changes, and of a large chart: `python benchmarks/ui.py`.

The dashboard runs on a pseudo-terminal with its normal tick interval, and receives one step of every env before each
tick. The result is the CPU time of its process per refresh: folding, drawing, and encoding the frame for the terminal.
"""

from __future__ import annotations

import fcntl
import math
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from array import array
from itertools import product
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.factory import stamp
from tests.sanctum.population import population, step_events
from tests.sanctum.sessions import FakeSession

from esper.common.plots.chart import Chart, Curve, Quantity, XAxis
from esper.sanctum.app import TICK_INTERVAL_S, SanctumApp
from esper.sanctum.source import LiveSource
from esper.sanctum.theme import DEFAULT_THEME, load_themes
from esper.sanctum.widgets.chart_panel import paint

WARM_UP_TICKS, MEASURED_TICKS = 10, 40


class MeasuredSource(LiveSource):
    """Emits one step of every env before each tick, and measures the CPU time."""

    def __init__(self, envs: int) -> None:
        steps = WARM_UP_TICKS + MEASURED_TICKS + 2
        self._fake_session = FakeSession(population(envs, rounds=5, steps=steps, stop=1))
        super().__init__(self._fake_session)
        super().tick(0.0)
        self._remaining = [stamp(step_events(envs, 5, step), first=10**6 * step) for step in range(2, steps)]
        self._ticks = 0
        self._cpu_start = 0.0
        self.cpu_s_per_refresh: float | None = None
        """CPU seconds per refresh; None until all ticks have been measured."""

    def tick(self, seconds: float) -> bool:
        """Emit the next step before the tick of the base class."""
        self._ticks += 1
        if self._ticks == WARM_UP_TICKS:
            self._cpu_start = time.process_time()
        if self._ticks == WARM_UP_TICKS + MEASURED_TICKS:
            self.cpu_s_per_refresh = (time.process_time() - self._cpu_start) / MEASURED_TICKS
        if self._remaining:
            self._fake_session.say(*self._remaining.pop(0))
        return super().tick(seconds)


class MeasuredApp(SanctumApp):
    """Dashboard that exits when its source has finished measuring."""

    def refresh_view(self) -> None:
        """Exit after the refresh if the measurement is complete."""
        super().refresh_view()
        if isinstance(self.source, MeasuredSource) and self.source.cpu_s_per_refresh is not None:
            self.exit()


def measure(envs: int, width: int, height: int, screen: str) -> float:
    """Return the CPU seconds of one refresh of a screen, measured in a separate process."""
    with tempfile.NamedTemporaryFile("r") as result:
        child, terminal = pty.fork()
        if child == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            os.environ.update(TERM="xterm-256color", COLUMNS=str(width), LINES=str(height))
            source = MeasuredSource(envs)
            MeasuredApp(source, theme=DEFAULT_THEME, initial_view=screen).run()
            Path(result.name).write_text(str(source.cpu_s_per_refresh))
            os._exit(0)
        while True:
            try:
                if not os.read(terminal, 65536):
                    break
            except OSError:  # the child has exited
                break
        os.waitpid(child, 0)
        return float(result.read())


def measure_chart(curves: int, points: int, roles: int) -> float:
    """Return the CPU seconds in which a chart that fills a terminal of 200 x 60 is drawn anew.

    Args:
        curves: Number of curves.
        points: Number of points per curve.
        roles: Number of different colours.
    """
    random = Random(0)
    walks = [array("d", [math.sin(x / 900) + random.gauss(0, 0.1) for x in range(points)]) for _ in range(curves)]
    xs = array("d", range(points))
    chart = Chart(
        quantity=Quantity("loss"),
        x_axis=XAxis("step", 0, points - 1),
        curves=[Curve(f"env {index}", xs, walk, f"series{index % roles}") for index, walk in enumerate(walks)],
    )
    palette, seconds = load_themes()[DEFAULT_THEME], list[float]()
    for _ in range(MEASURED_TICKS):
        start = time.process_time()
        frame = chart.frame(198, 56)
        for line in chart.lines_in(frame) if frame is not None else []:
            paint(line, palette, 198)
        seconds.append(time.process_time() - start)
    return sorted(seconds)[len(seconds) // 2]


def main() -> None:
    """Print one line per screen, number of envs and terminal size."""
    for curves, roles in ((64, 1), (64, 8), (1, 1)):
        cpu_s = measure_chart(curves, 10_000, roles)
        print(f"chart of 200x60, {curves} curves of 10,000 points, {roles} colours: {cpu_s * 1000:.1f} CPU ms")
    fraction_heading = f"% of a core at {1 / TICK_INTERVAL_S:.0f} refreshes/s"
    print(f"{'screen':<9} {'envs':>5}  {'terminal':>8}  CPU ms/refresh  {fraction_heading}")
    sizes = ((200, 70), (120, 40), (80, 24))
    for screen, envs in product(("overview", "policy", "growth", "numerics", "devices", "env"), (64, 256)):
        for width, height in sizes:
            cpu_s = measure(envs, width, height, screen)
            print(
                f"{screen:<9} {envs:>5}  {width:>4}x{height:<3}  {cpu_s * 1000:>14.1f}  "
                f"{cpu_s / TICK_INTERVAL_S * 100:>6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
