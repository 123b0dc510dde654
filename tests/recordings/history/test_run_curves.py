"""Curves of many runs: read in slices, cached once they have ended."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.recordings.events import AnyEvent
from esper.recordings.files import segments
from esper.recordings.history import curve_cache, run_curves
from esper.recordings.history.curve_cache import event_files, load_curves
from esper.recordings.history.curve_store import AXES, CurveStore
from esper.recordings.history.history import History, open_history
from esper.recordings.history.run_cache import RunCache
from esper.recordings.history.run_curves import RunCurveLibrary
from tests.factory import START, example_run, stamp
from tests.recordings.files.recordings import fold, lines, recording, write_segment

RUN = example_run(envs=2, rounds=3, steps=3)
MEDIAN = "loss/median"


@pytest.fixture(autouse=True)
def checked_in_every_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_curves, "CHECK_S", 0.0)


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every curve must come from the cache."""

    def fail(path: Path) -> History:
        raise AssertionError(f"{path} is read")

    monkeypatch.setattr(run_curves, "History", fail)


def write_run(path: Path, events: Sequence[AnyEvent] = RUN, *, ended: bool = True) -> Path:
    """Write a run; one that has not ended was written to a moment ago, which counts as live."""
    segment = write_segment(path, 1, recording(events))
    if ended:
        os.utime(segment, (START, START))
    return path


def append(run: Path, events: Sequence[AnyEvent]) -> None:
    with (run / "events-00001.jsonl").open("ab") as file:
        file.write(lines(events))


def curves(library: RunCurveLibrary, run: Path) -> dict[str, Any]:
    """All curves of a run, with the values of its x axes."""
    found = {name: library.curve(run, name) for name in library.names(run)}
    xs = {axis: library.x_values(run, found["step time/total"].steps, axis).tolist() for axis in AXES if found}
    return xs | {name: (points.steps.tolist(), points.values.tolist()) for name, points in found.items()}


def expected(run: Path) -> dict[str, Any]:
    store = CurveStore()
    store.update(open_history(run), None, math.inf)
    steps = store.curve("step time/total").steps
    found = {name: store.curve(name) for name in store.names}
    return {axis: store.x_values(steps, axis).tolist() for axis in AXES} | {
        name: (points.steps.tolist(), points.values.tolist()) for name, points in found.items()
    }


def read(library: RunCurveLibrary, run: Path) -> dict[str, Any]:
    library.names(run)
    library.poll(math.inf)
    assert library.fraction_read == 1
    return curves(library, run)


def test_curves_are_those_of_the_recording_the_second_time_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run")
    library = RunCurveLibrary(RunCache(tmp_path / "cache"))
    assert (library.names(run), library.fraction_read, len(library.curve(run, MEDIAN).steps)) == ([], 0.0, 0)
    assert read(library, run) == expected(run)
    assert not library.poll(math.inf)  # nothing has changed

    monkeypatch.setattr(run_curves, "History", None)
    again = RunCurveLibrary(RunCache(tmp_path / "cache"))
    assert read(again, run) == expected(run)
    assert len(again.curve(run, "loss/env 00").steps) == len(again.curve(run, "other/median").steps) == 0
    assert again.notices == []


def test_polls_without_time_read_everything_in_the_end_small_runs_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "READ_CHUNK_BYTES", 2000)
    sizes = {"large": len(RUN), "small": 20, "middle": 40}
    runs = {name: write_run(tmp_path / name, RUN[:size]) for name, size in sizes.items()}
    library = RunCurveLibrary(RunCache(None))
    finished: list[str] = []
    seen, fractions = [library.version], [0.0]
    for run in runs.values():
        library.names(run)
    while library.fraction_read < 1:
        changed = library.poll(0.0)
        assert changed == (library.version > seen[-1])
        seen.append(library.version)
        fractions.append(library.fraction_read)
        finished += [
            name for name, run in runs.items() if name not in finished and len(library.curve(run, MEDIAN).steps) > 3
        ]
    assert fractions == sorted(fractions)
    library.poll(math.inf)
    assert {name: curves(library, run) for name, run in runs.items()} == {
        name: expected(run) for name, run in runs.items()
    }
    assert finished[-1] == "large"


def test_live_run_grows_and_is_cached_when_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, cache = write_run(tmp_path / "run", RUN[:20], ended=False), tmp_path / "cache"
    library = RunCurveLibrary(RunCache(cache))
    assert read(library, run) == expected(run)
    append(run, RUN[20:30])
    assert library.poll(math.inf)
    before = curves(library, run)
    assert before == expected(run)

    monkeypatch.setattr(run_curves, "CHECK_S", 3600.0)
    library.poll(math.inf)
    append(run, RUN[30:])
    assert not library.poll(math.inf)  # too early
    assert curves(library, run) == before

    monkeypatch.setattr(run_curves, "CHECK_S", 0.0)
    library.forget(run)
    assert read(library, run) == expected(run) != before
    assert not cache.exists()
    monkeypatch.setattr(run_curves, "is_being_written", lambda *_: False)
    library.poll(math.inf)
    assert curves(library, run) == expected(run)
    assert load_curves(RunCache(cache), run, event_files(run)) is not None


def test_resumed_run_shows_its_old_curves_until_the_new_ones_are_read(tmp_path: Path) -> None:
    run, library = write_run(tmp_path / "run"), RunCurveLibrary(RunCache(tmp_path / "cache"))
    before = read(library, run)
    undone = 40
    after = stamp(RUN[undone : undone + 10], first=undone + 1, start=START + 1000)
    write_segment(run, 2, recording(after, fold(RUN[:undone])))
    while library.fraction_read < 1 or curves(library, run) == before:
        assert curves(library, run) == before
        library.poll(0.0)
    assert curves(library, run) == expected(run) != before


@settings(max_examples=settings().max_examples // 2)  # each takes long
@given(position=st.floats(0, 1, exclude_max=True), flip=st.integers(0, 255))
def test_damaged_cache_is_read_again_from_the_recording(
    tmp_path_factory: pytest.TempPathFactory, position: float, flip: int
) -> None:
    """`flip`: bits of the byte that are inverted; 0 cuts the file there."""
    folder = tmp_path_factory.mktemp("runs")
    run = write_run(folder / "run", RUN[:16])
    wanted = read(RunCurveLibrary(RunCache(folder / "cache")), run)
    file = folder / "cache"
    content = bytearray(file.read_bytes())
    index = int(position * len(content))
    if flip:
        content[index] ^= flip
    else:
        del content[index:]
    file.write_bytes(content)

    library = RunCurveLibrary(RunCache(folder / "cache"))
    read(library, run)  # the damage of an array shows when it is requested
    assert read(library, run) == wanted
    assert read(RunCurveLibrary(RunCache(folder / "cache")), run) == wanted


def test_cache_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    runs = [write_run(tmp_path / name) for name in "ab"]
    cache = RunCache(tmp_path / "cache")
    library = RunCurveLibrary(cache)
    assert [read(library, run) for run in runs] == [expected(run) for run in runs]
    assert library.notices == []
    assert cache.notice is not None
    assert "(unable to open database file)" in cache.notice


def test_runs_that_cannot_be_read_are_named_and_do_not_stop_the_others(tmp_path: Path) -> None:
    good, bad, gone = write_run(tmp_path / "good"), tmp_path / "bad", tmp_path / "gone"
    write_segment(bad, 1, b"no recording\n" * 10)
    library = RunCurveLibrary(RunCache(tmp_path / "cache"))
    for run in (bad, gone):
        library.names(run)
    assert read(library, good) == expected(good)
    assert curves(library, bad) == curves(library, gone) == {}
    assert [any(str(run) in text for text in library.notices) for run in (good, bad, gone)] == [False, True, True]
    write_run(gone)
    assert read(library, gone) == expected(gone)


def test_number_of_runs_and_of_cached_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_curves, "MAX_RUNS", 2)
    monkeypatch.setattr(curve_cache, "MAX_RUNS", 2)
    runs = [write_run(tmp_path / name, RUN[:20]) for name in "abc"]
    library = RunCurveLibrary(RunCache(tmp_path / "cache"))
    for run in runs[:2]:
        read(library, run)
    version = library.version
    assert len(library.curve(runs[0], MEDIAN).steps)  # requested later than the other one
    read(library, runs[2])
    assert library.version > version
    assert len(library.curve(runs[0], MEDIAN).steps)
    assert not library.names(runs[1])
    cached = [load_curves(RunCache(tmp_path / "cache"), run, event_files(run)) is not None for run in runs]
    assert cached == [False, True, True]
