"""The index of runs: what it reads, when, and what its cache saves."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from esper.recordings import events as ev
from esper.recordings.files.notes import NOTES_FILE, RunNotes, write_notes
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.history import run_cache, run_index
from esper.recordings.history.run_cache import RunCache
from esper.recordings.history.run_index import RunIndex
from esper.recordings.history.run_info import RunEnd
from tests.factory import example_run, stamp
from tests.recordings.files.recordings import lines, recording, write_segment

RUN = example_run()


def make(folder: Path, name: str, events: list[ev.AnyEvent], age: float = 0.0) -> Path:
    directory = folder / name
    path = write_segment(directory, 1, recording(events))
    RunLock(RunDirectory(directory)).release()
    written = time.time() - age
    os.utime(path, (written, written))
    return directory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "telemetry"
    folder.mkdir()
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs whose recordings are read, in order."""
    names, original = list[str](), RunEnd.__init__

    def note(end: RunEnd, run: Path) -> None:
        names.append(run.name)
        original(end, run)

    monkeypatch.setattr(RunEnd, "__init__", note)
    return names


def states(index: RunIndex) -> dict[str, str]:
    return {info.run: info.state for info in index.runs}


def test_run_becomes_silent_in_the_index_without_new_events(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a run that is resumed is starting until it trains, although its recording says that it has stopped."""
    stopped = [*RUN[:60], *stamp([ev.RunEnded(outcome="stopped")], first=61, start=RUN[59].time)]
    make(folder, "resumed", stopped)
    training, resumed = (RunLock(RunDirectory(path)) for path in (make(folder, "a", RUN[:60]), folder / "resumed"))
    training.mark_started()
    index = RunIndex(folder, RunCache(None))
    index.poll()
    assert states(index) == {"resumed": "starting", "a": "running"}
    later = time.time() + 60.0
    monkeypatch.setattr(run_index.time, "time", lambda: later)
    assert index.poll()
    assert states(index) == {"resumed": "starting", "a": "silent"}
    assert [info.health for info in index.runs if info.run == "a"] == ["silent for 1m00s"]
    assert not index.poll()
    training.release()
    resumed.release()


def test_index_reads_live_runs_first_then_the_newest(folder: Path, read: list[str]) -> None:
    for age, name in enumerate("abc"):
        make(folder, name, RUN, age=100 * age)
    lock = RunLock(RunDirectory(make(folder, "live", RUN[:60], age=9000)))
    lock.mark_started()
    write_notes(folder / "b", RunNotes(name="named"))
    (folder / "no run").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    index = RunIndex(folder, RunCache(None))

    assert not index.is_complete
    assert index.poll(within=1.0 if os.environ.get("SLOW") else 0.5)
    while not index.is_complete:
        assert index.poll(within=0) or len(index.runs) < 4

    assert read == ["live", "a", "b", "c"]
    assert states(index) == {"live": "silent", "a": "done", "b": "done", "c": "done"}
    assert list(states(index)) == ["live", "a", "b", "c"]
    assert [info.title for info in index.runs] == ["live", "a", "named", "c"]
    lock.release()
    index.poll()
    assert list(states(index).items())[-1] == ("live", "crashed")


def test_unread_run_is_listed_with_its_notes(folder: Path) -> None:
    for name in "ab":
        write_notes(make(folder, name, RUN), RunNotes(name=f"run {name}", tags=("x",)))
    index = RunIndex(folder, RunCache(None))

    while len(index.runs) < 2:
        index.poll(within=0)

    unread = next(info for info in index.runs if info.state == "reading")
    assert (unread.tags, unread.task, unread.bytes) == (("x",), None, None)
    assert unread.title == f"run {unread.run}"


def test_cached_runs_are_not_read_again_until_their_files_change(tmp_path: Path, folder: Path, read: list[str]) -> None:
    cache = tmp_path / "cache" / "runs.sqlite"
    for name in ("changed", "noted", "same", "gone", "grown"):
        (make(folder, name, RUN, age=10) / "checkpoints").mkdir()
    lock = RunLock(RunDirectory(make(folder, "live", RUN[:60])))
    lock.mark_started()
    first = RunIndex(folder, RunCache(cache))
    first.poll()
    read.clear()
    write_segment(folder / "changed", 1, recording(RUN[:60]))
    write_notes(folder / "noted", RunNotes(tags=("x",)))
    (folder / "grown" / "checkpoints" / "tensors").write_bytes(bytes(10_000))
    shutil.rmtree(folder / "gone")

    second = RunIndex(folder, RunCache(cache))
    second.poll()

    assert sorted(read) == ["changed", "live"]
    before, after = ({info.run: info for info in index.runs} for index in (first, second))
    assert states(second)["changed"] == "crashed"
    assert after["same"] == before["same"]
    assert (after["noted"].tags, after["noted"].scores) == (("x",), before["noted"].scores)
    assert after["grown"].bytes == (before["grown"].bytes or 0) + 10_000
    assert "gone" not in after
    lock.release()
    assert b"gone" not in {row[0] for row in sqlite3.connect(cache).execute("SELECT run FROM entries")}
    second.poll()
    cache.unlink()
    second.poll()  # nothing has changed since
    assert not cache.exists()


def test_live_run_is_read_on_at_intervals(folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make(folder, "a", RUN[:30])
    segment = directory / "events-00001.jsonl"
    lock, index = RunLock(RunDirectory(directory)), RunIndex(folder, RunCache(None))
    index.poll()
    with segment.open("ab") as file:
        file.write(lines(RUN[30:]))
    write_notes(directory, RunNotes(tags=("x",)))

    assert index.poll()
    assert index.is_complete
    assert (index.runs[0].tags, index.runs[0].round) == (("x",), 1), "notes do not wait"
    assert not index.poll()
    monkeypatch.setattr(run_index, "LIVE_READ_INTERVAL_S", 0.0)
    assert index.poll()
    lock.release()
    index.poll()
    [info] = index.runs
    assert (info.state, info.round, info.tags) == ("done", 2, ("x",))
    assert read == ["a"], "the place in the recording is kept"
    assert not index.poll()


def test_notes_are_seen_at_once_and_deleted_runs_disappear(folder: Path) -> None:
    index = RunIndex(folder, RunCache(None))
    assert not index.poll()
    assert index.is_complete
    directory = make(folder, "a", RUN)
    index.poll()
    write_notes(directory, RunNotes(name="b"))
    index.refresh("a")
    assert index.poll(within=0.1)
    assert index.runs[0].title == "b"
    (directory / NOTES_FILE).write_text("{")
    index.poll()
    assert "notes.json is damaged" in (index.runs[0].problem or "")
    write_notes(directory, RunNotes(name="c"))
    index.poll()
    assert (index.runs[0].title, index.runs[0].problem) == ("c", None)
    shutil.rmtree(directory)
    index.refresh("a")
    assert index.poll(within=0.1)
    assert index.runs == []


@pytest.mark.parametrize("damage", ["no database", "damaged value", "other tables"])
def test_damaged_cache_is_made_again(damage: str, tmp_path: Path, folder: Path, read: list[str]) -> None:
    make(folder, "a", RUN)
    cache = tmp_path / "cache" / "runs.sqlite"
    RunIndex(folder, RunCache(cache)).poll()
    if damage == "no database":
        cache.write_bytes(b"diary" * 1000)
    else:
        with sqlite3.connect(cache) as connection:
            connection.execute(
                "UPDATE entries SET content = 7"
                if damage == "damaged value"
                else "ALTER TABLE entries RENAME content TO c"
            )

    for _ in range(3):
        index = RunIndex(folder, RunCache(cache))
        index.poll()
        index.poll()
        assert states(index) == {"a": "done"}
        assert index.notices == []

    assert read == ["a", "a"]


def test_flipped_byte_in_a_cached_value_is_detected(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "runs.sqlite"
    content = random.Random(0).randbytes(300)  # cannot be compressed: no byte of the frame is without effect
    assert RunCache(path).store("test", {folder: {"": content}})
    assert RunCache(path).load("test", folder) == content
    whole = path.read_bytes()
    start = whole.index(content[:100])
    for offset in range(start, start + 300, 30):
        damaged = bytearray(whole)
        damaged[offset] ^= 8
        path.write_bytes(damaged)
        assert RunCache(path).load("test", folder) is None


def test_cache_that_cannot_be_used_is_reported_once(tmp_path: Path, folder: Path) -> None:
    make(folder, "a", RUN)
    (tmp_path / "cache").write_text("")
    index = RunIndex(folder, RunCache(tmp_path / "cache" / "runs.sqlite"))
    for _ in range(3):
        index.poll()

    assert states(index) == {"a": "done"}
    [notice] = index.notices
    assert notice.startswith(f"cannot use {tmp_path / 'cache' / 'runs.sqlite'}, the cache of results of runs (")


def test_cache_belongs_to_the_directory_and_the_version(
    tmp_path: Path, folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = RunCache(tmp_path / "runs.sqlite")
    make(folder, "a", RUN)
    (tmp_path / "others").mkdir()
    make(tmp_path / "others", "a", RUN[:60], age=10)
    RunIndex(folder, cache).poll()
    relative = RunIndex(Path("telemetry"), cache)
    relative.poll()
    assert (relative.runs[0].path, read) == ("telemetry/a", ["a"])
    others = RunIndex(Path("others"), cache)
    others.poll()
    assert (states(others), read) == ({"a": "crashed"}, ["a", "a"])
    monkeypatch.setattr(run_cache, "FORMAT", "another")
    RunIndex(folder, cache).poll()
    assert read == ["a", "a", "a"]
