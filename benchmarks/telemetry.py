"""Speed of telemetry: emit, fold, record, open, seek, search, list runs.

Run with `python -m benchmarks.telemetry [EVENTS]`.
`--read DIR` measures only opening, seeking and searching, in an existing recording. Targets are in parentheses.
"""

from __future__ import annotations

import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.factory import example_run
from tests.recordings.files.recordings import fold

from esper.common.system.process import freeze_loaded_objects
from esper.recordings import events as ev
from esper.recordings.events.codec import encode_json
from esper.recordings.files.recorder import Recorder
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.health.detector import AnomalyDetector
from esper.recordings.history.curve_store import CurveStore
from esper.recordings.history.history import History, open_history
from esper.recordings.history.playback import Playback
from esper.recordings.history.run_cache import RunCache
from esper.recordings.history.run_index import RunIndex
from esper.recordings.history.run_log import RunLog
from esper.recordings.state.hub import EventHub

ENVS = 16
SEEKS = 200
CACHED_EVENTS = 100_000
"""Number of events of `record_cached`; they fit into the CPU's caches."""
TURNS = 7
INDEXED_RUNS = 500
SEARCH_SLICE_S = 0.03
"""Seconds of one slice of a search, as on the log screen."""
CURVE_SLICE_S = 0.04
"""Seconds of one slice of reading curves, as in the dashboard."""
READ_BUDGET_S = 0.08
"""Seconds of one slice of reading, as in the dashboard."""
TICK_S = 0.1
"""Seconds from one slice of reading and searching to the next, as in the dashboard."""


class NullSink:
    """Sink that discards its records."""

    failure = None

    def __init__(self) -> None:
        self.notices: deque[str] = deque()

    def put(self, record: object) -> None: ...


def create_events(count: int) -> list[ev.AnyEvent]:
    """Return the events of a run of 16 envs, at least `count`."""
    per_round = len(example_run(ENVS, 2, 25)) - len(example_run(ENVS, 1, 25))
    return example_run(ENVS, math.ceil(count / per_round), 25)


def seconds(function: Callable[[], object]) -> float:
    """Call a function, and return its duration."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def emit(run: list[ev.AnyEvent]) -> None:
    """Emit all events at a hub with the anomaly rules and one subscriber."""
    hub = EventHub(NullSink(), AnomalyDetector())  # pyright: ignore[reportArgumentType]
    hub.subscribe()
    for event in run:
        hub.emit(event)


def record(run: Sequence[ev.AnyEvent], recorder: Recorder) -> None:
    """Record all events, and wait until they are on disk."""
    for event in run:
        recorder.put(event)
    recorder.flush()


def record_cached(run: Sequence[ev.AnyEvent]) -> float:
    """Return the recorded events per second. A run records its events while they are in the CPU's caches: use few."""
    with tempfile.TemporaryDirectory() as directory:
        recorder = Recorder(RunDirectory.make(Path(directory)))
        rate = len(run) / seconds(lambda: record(run, recorder))
        recorder.close()
    return rate


def measure_writing(count: int, directory: Path) -> Iterator[tuple[str, str]]:
    """Yield name and value of each measurement of emitting, folding and recording."""
    run = create_events(count)
    freeze_loaded_objects()  # also the events, because a run does not keep its events in memory
    n = len(run)
    steps = [event for event in run if isinstance(event, ev.EnvStepped)]
    size = statistics.fmean(len(encode_json(event)) for event in steps[:2000])
    yield "events", f"{n:,}, including {len(steps):,} EnvStepped of {size:.0f} bytes on average"

    yield "emit to a queue (≤ 5)", f"{seconds(lambda: emit(run)) / n * 1e6:.2f} µs/event"
    yield "fold (≥ 200,000)", f"{n / seconds(lambda: fold(run)):,.0f} events/s"

    rates = [record_cached(run[:CACHED_EVENTS]) for _ in range(TURNS)]
    rate = statistics.median(rates)
    yield "record to disk (≥ 200,000)", f"{rate:,.0f} events/s, median of {TURNS} times {CACHED_EVENTS:,} events"
    recorder = Recorder(RunDirectory.make(directory))
    yield "record all, uncached", f"{n / seconds(lambda: record(run, recorder)):,.0f} events/s"
    yield "compress the last segments", f"{seconds(recorder.close):.2f} s"
    num_bytes = sum(path.stat().st_size for path in directory.iterdir())
    yield "size on disk (≤ 80)", f"{num_bytes / n:.0f} bytes/event, {num_bytes / len(steps):.0f} bytes/EnvStepped"


def measure_reading(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield name and value of each measurement of opening a recording and seeking in it."""
    freeze_loaded_objects()  # as the dashboard does
    start = time.perf_counter()
    history = open_history(directory)
    duration = time.perf_counter() - start
    per_million = duration / history.length * 1e6
    yield "open (≤ 4 per million)", f"{duration:.2f} s for {history.length:,} events, {per_million:.2f} s per million"
    playback = Playback(history)
    generator = random.Random(0)
    times = [seconds(lambda: playback.seek(generator.randrange(history.length))) * 1e3 for _ in range(SEEKS)]
    yield "seek (≤ 20, maximum ≤ 60)", f"{statistics.median(times):.1f} ms median, {max(times):.1f} ms max, n = {SEEKS}"
    yield "step back", f"{seconds(lambda: playback.step(-1)) * 1e3:.1f} ms"
    yield from measure_curves(history)
    yield from measure_log(history)


def measure_curves(history: History) -> Iterator[tuple[str, str]]:
    """Yield name and value of each measurement of reading all curves of a history that was read before."""
    store, slices = CurveStore(), list[float]()
    while store.fraction_read < 1 or not store.names:
        slices.append(seconds(lambda: store.update(history, None, CURVE_SLICE_S)))
    per_million = sum(slices) / history.length * 1e6
    yield "curves (≤ 4 per million)", f"{sum(slices):.2f} s, {per_million:.2f} s per million, {len(store.names)} curves"
    yield "slice of curves (≤ 60)", f"{statistics.median(slices) * 1e3:.0f} ms median, {max(slices) * 1e3:.0f} ms max"
    store.curve("loss/env 00")
    yield "curves of one env", f"{seconds(lambda: store.update(history, None, math.inf)):.2f} s"


def measure_log(history: History) -> Iterator[tuple[str, str]]:
    """Yield name and value of each measurement of the log: searches from the newest line backwards."""
    log = RunLog()
    log.update(history, (), math.inf)
    oldest = log.row(0).text
    for name, conditions in (
        ("every line", {}),
        ("text of the oldest line", {"text": oldest}),
        ("env 0", {"env": 0}),
        ("warnings", {"min_severity": "warning"}),
    ):
        log = RunLog()
        log.set_filter(**conditions)
        start, first = time.perf_counter(), math.nan
        while log.is_waiting:
            log.update(history, (), SEARCH_SLICE_S)
            if len(log) and math.isnan(first):
                first = time.perf_counter() - start
        total = time.perf_counter() - start
        times = f"first hits {first * 1e3:.0f} ms, all {total * 1e3:.0f} ms"
        yield f"search {name} (first ≤ 1,000)", f"{times}, {log.num_lines:,} lines"


def measure_index(run: Path, directory: Path) -> Iterator[tuple[str, str]]:
    """Yield name and value of each measurement of the index of runs, with copies of a recording."""
    first = directory / "telemetry"
    for number in range(INDEXED_RUNS):
        shutil.copytree(run, first / f"run-{number:03}")
    cache = directory / "index.sqlite"
    duration = seconds(RunIndex(first, RunCache(cache)).poll)
    yield f"read {INDEXED_RUNS} runs", f"{duration:.2f} s, {duration / INDEXED_RUNS * 1e3:.0f} ms per run"
    index = RunIndex(first, RunCache(cache))
    yield f"list {INDEXED_RUNS} cached runs (≤ 150)", f"{seconds(index.poll) * 1e3:.0f} ms"
    yield "scan them again", f"{seconds(index.poll) * 1e3:.0f} ms"


def print_measurements(measurements: Iterator[tuple[str, str]]) -> None:
    """Print each measurement as soon as it is available."""
    for name, value in measurements:
        print(f"{name:30} {value}", flush=True)


def main() -> None:
    """Measure writing in this process, and reading in another one."""
    if sys.argv[1:2] == ["--read"]:
        print_measurements(measure_reading(Path(sys.argv[2])))
        return
    with tempfile.TemporaryDirectory() as directory:
        print_measurements(measure_writing(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, Path(directory)))
        # A replay starts as a new process, without a million events in its memory.
        subprocess.run([sys.executable, "-m", "benchmarks.telemetry", "--read", directory], check=True)
    with tempfile.TemporaryDirectory() as directory:
        print_measurements(measure_index(Path(__file__).parents[1] / "telemetry" / "demo-faults", Path(directory)))


if __name__ == "__main__":
    main()
