"""Speed of telemetry: emit, fold, record, load, seek. Run with `python -m benchmarks.telemetry [EVENTS]`.

`--read DIR` measures reading only, for an existing recording. Targets are in parentheses.
"""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.factory import example_run
from tests.recording.recordings import fold

from esper.health.detector import AnomalyDetector
from esper.history.history import open_history
from esper.history.playback import Playback
from esper.process import freeze_loaded_objects
from esper.recording.recorder import Recorder
from esper.telemetry import events as ev
from esper.telemetry.codec import encode_json
from esper.telemetry.hub import EventHub

ENVS = 16
SEEKS = 200
FEW, TURNS = 100_000, 7


class Nowhere:
    """A sink that discards all records."""

    failure = None

    def __init__(self) -> None:
        self.notices: deque[str] = deque()

    def put(self, record: object) -> None: ...


def events(count: int) -> list[ev.AnyEvent]:
    """Return the events of a run with 16 envs; at least `count` events."""
    per_round = len(example_run(ENVS, 2, 25)) - len(example_run(ENVS, 1, 25))
    return example_run(ENVS, math.ceil(count / per_round), 25)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def emit(run: list[ev.AnyEvent]) -> None:
    hub = EventHub(Nowhere(), AnomalyDetector())  # pyright: ignore[reportArgumentType]
    hub.subscribe()
    for event in run:
        hub.emit(event)


def record(run: Sequence[ev.AnyEvent], recorder: Recorder) -> None:
    for event in run:
        recorder.put(event)
    recorder.flush()


def record_few(run: Sequence[ev.AnyEvent]) -> float:
    """Measure events per second for few events: they fit in the CPU caches, like those of a run."""
    with tempfile.TemporaryDirectory() as directory:
        recorder = Recorder(Path(directory))
        rate = len(run) / seconds(lambda: record(run, recorder))
        recorder.close()
    return rate


def measure_writing(count: int, directory: Path) -> Iterator[tuple[str, str]]:
    run = events(count)
    freeze_loaded_objects()  # frees the events too, because a run does not keep them
    n = len(run)
    steps = [event for event in run if isinstance(event, ev.EnvStepped)]
    size = statistics.fmean(len(encode_json(event)) for event in steps[:2000])
    yield "events", f"{n:,}, including {len(steps):,} EnvStepped of {size:.0f} bytes"

    yield "emit, to a queue (≤ 5)", f"{seconds(lambda: emit(run)) / n * 1e6:.2f} µs an event"
    yield "fold (≥ 200,000)", f"{n / seconds(lambda: fold(run)):,.0f} events/s"

    rates = [record_few(run[:FEW]) for _ in range(TURNS)]
    yield "record, to disk (≥ 200,000)", f"{statistics.median(rates):,.0f} events/s, median of {TURNS} times {FEW:,}"
    recorder = Recorder(directory)
    yield "record all, out of memory", f"{n / seconds(lambda: record(run, recorder)):,.0f} events/s"
    yield "pack the last segment", f"{seconds(recorder.close):.2f} s"
    packed = sum(path.stat().st_size for path in directory.iterdir())
    yield "size on disk (≤ 80)", f"{packed / n:.0f} bytes an event, {packed / len(steps):.0f} an EnvStepped"


def measure_reading(directory: Path) -> Iterator[tuple[str, str]]:
    freeze_loaded_objects()  # like the dashboard
    start = time.perf_counter()
    history = open_history(directory)
    took = time.perf_counter() - start
    million = took / history.length * 1e6
    yield "load, to seek (≤ 4 a million)", f"{took:.2f} s for {history.length:,} events, {million:.2f} a million"
    playback = Playback(history)
    draw = random.Random(0)
    times = [seconds(lambda: playback.seek(draw.randrange(history.length))) * 1e3 for _ in range(SEEKS)]
    yield "seek (≤ 20, worst ≤ 60)", f"{statistics.median(times):.1f} ms median, {max(times):.1f} ms worst of {SEEKS}"
    yield "step back", f"{seconds(lambda: playback.step(-1)) * 1e3:.1f} ms"


def show(figures: Iterator[tuple[str, str]]) -> None:
    for name, figure in figures:
        print(f"{name:30} {figure}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--read"]:
        show(measure_reading(Path(sys.argv[2])))
        return
    with tempfile.TemporaryDirectory() as directory:
        show(measure_writing(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, Path(directory)))
        # In a separate process, because a replay does not have a million events in memory.
        subprocess.run([sys.executable, "-m", "benchmarks.telemetry", "--read", directory], check=True)


if __name__ == "__main__":
    main()
