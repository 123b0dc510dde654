"""How fast telemetry is: emit, fold, record, load, seek. Run with `python -m benchmarks.telemetry [EVENTS]`."""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.factory import example_run

from esper.telemetry import events as ev
from esper.telemetry.codec import encode
from esper.telemetry.hub import Hub
from esper.telemetry.playback import Playback
from esper.telemetry.reader import open_history
from esper.telemetry.recorder import Recorder
from esper.telemetry.state import RunState

ENVS = 16
SEEKS = 200


class Nowhere:
    """A sink that keeps nothing."""

    failure = None

    def put(self, record: object) -> None: ...


def events(count: int) -> list[ev.AnyEvent]:
    """A run of 16 envs with at least so many events."""
    per_round = len(example_run(ENVS, 2, 25)) - len(example_run(ENVS, 1, 25))
    return example_run(ENVS, math.ceil(count / per_round), 25)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(count: int, directory: Path) -> Iterator[tuple[str, str]]:
    run = events(count)
    n = len(run)
    steps = [event for event in run if isinstance(event, ev.EnvStepped)]
    size = statistics.fmean(len(encode(event)) for event in steps[:2000])
    yield "events", f"{n:,}, of which {len(steps):,} EnvStepped of {size:.0f} bytes"

    hub = Hub(Nowhere())  # pyright: ignore[reportArgumentType]
    hub.subscribe()
    yield "emit, to a queue", f"{seconds(lambda: [hub.emit(event) for event in run]) / n * 1e6:.2f} µs an event"

    state = RunState()
    yield "fold", f"{n / seconds(lambda: [state.apply(event) for event in run]):,.0f} events/s"

    recorder = Recorder(directory)

    def record() -> None:
        for event in run:
            recorder.put(event)
        recorder.flush()

    yield "record, to the last on disk", f"{n / seconds(record):,.0f} events/s"
    plain = sum(path.stat().st_size for path in directory.iterdir())
    yield "pack", f"{seconds(recorder.close):.2f} s"
    packed = sum(path.stat().st_size for path in directory.iterdir())
    yield "size", f"{plain / n:.0f} bytes an event plain, {packed / n:.0f} packed"

    start = time.perf_counter()
    history = open_history(directory)
    yield "load, seekable to the end", f"{time.perf_counter() - start:.2f} s for {history.length:,} events"
    playback = Playback(history)
    draw = random.Random(0)
    times = [seconds(lambda: playback.seek(draw.randrange(n))) * 1e3 for _ in range(SEEKS)]
    yield "seek", f"{statistics.median(times):.1f} ms median, {max(times):.1f} ms worst of {SEEKS}"
    yield "step back", f"{seconds(lambda: playback.step(-1)) * 1e3:.1f} ms"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as directory:
        for name, figure in measure(count, Path(directory)):
            print(f"{name:28} {figure}", flush=True)


if __name__ == "__main__":
    main()
