"""Run directories get unique names, and are found by name, path or `last`."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from esper.recordings.files import runs
from esper.recordings.files.notes import NOTES_FILE, RunNotes, read_notes, update_notes, write_notes
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.files.runs import list_runs, make_run_directory, resolve_run
from esper.recordings.files.segments import ReadError, packed_path

NOW = datetime(2026, 11, 21, 1, 53, 0)


def make_run(directory: Path, name: str, written: float, file: str = "events-00001.jsonl") -> Path:
    run = directory / name
    run.mkdir()
    (run / file).write_text("")
    os.utime(run / file, (written, written))
    return run


def test_new_run_name_is_task_and_time_and_unique(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as started:
        names = started.map(lambda _: make_run_directory("digits_impaired", NOW, tmp_path / "new").name, range(4))
    first = "digits_impaired-20261121-015300"
    assert sorted(names) == [first, f"{first}-2", f"{first}-3", f"{first}-4"]
    assert make_run_directory("digits", NOW, tmp_path / "new").is_dir()


def test_unreadable_directory_hides_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable, unreadable = make_run(tmp_path, "a", 100), make_run(tmp_path, "b", 200)
    list_segments = runs.list_segments

    def deny(run: Path) -> list[Path]:
        if run == unreadable:
            raise PermissionError(13, "Permission denied", str(run))
        return list_segments(run)

    monkeypatch.setattr(runs, "list_segments", deny)
    assert list_runs(tmp_path) == [readable]


def test_run_is_found_while_its_segment_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "a", 100)
    plain, stat = run / "events-00001.jsonl", Path.stat

    def packed_after(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        if path == plain:
            plain.rename(packed_path(plain))
        return found

    monkeypatch.setattr(Path, "stat", packed_after)
    assert list_runs(tmp_path) == [run]


def test_last_run_is_the_one_written_to_last(tmp_path: Path) -> None:
    early = make_run(tmp_path, "z", 100)
    late = make_run(tmp_path, "a", 300, "events-00004.jsonl.zst")
    without_events = make_run(tmp_path, "m", 200, "run.json")
    (tmp_path / "no run").mkdir()

    assert list_runs(tmp_path) == [late, without_events, early]
    assert resolve_run("last", tmp_path) == late


def test_live_run_comes_before_runs_from_the_future(tmp_path: Path) -> None:
    """The clock was set back by two hours after the other run had ended."""
    now = time.time()
    ended, live = make_run(tmp_path, "ended", now + 7200), make_run(tmp_path, "live", now)
    lock = RunLock(RunDirectory(live))
    assert list_runs(tmp_path) == [live, ended]
    os.utime(ended / "events-00001.jsonl", (now, now + 1))  # clocks of file servers differ a little
    assert list_runs(tmp_path) == [ended, live]
    lock.release()


def test_recording_is_found_by_path_or_name(tmp_path: Path) -> None:
    run = make_run(tmp_path, "digits-20261121-015300", 100)

    assert resolve_run("digits-20261121-015300", tmp_path) == run
    assert resolve_run(str(run), tmp_path / "elsewhere") == run
    assert resolve_run(str(run / "events-00001.jsonl"), tmp_path) == run / "events-00001.jsonl"


def test_missing_run_is_refused_with_nearest_names(tmp_path: Path) -> None:
    make_run(tmp_path, "digits-20261121-015300", 100)
    make_run(tmp_path, "synthetic-1", 200)

    with pytest.raises(ReadError, match=r"'digits-20261121' is neither .*; did you mean digits-20261121-015300\?$"):
        resolve_run("digits-20261121", tmp_path)
    with pytest.raises(ReadError, match=r"; newest runs: synthetic-1, digits-20261121-015300$"):
        resolve_run("???", tmp_path)


def test_missing_run_without_any_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"cannot resolve `last`: .*nowhere does not exist; give another --telem"):
        resolve_run("last", tmp_path / "nowhere")
    with pytest.raises(ReadError, match="it contains no runs"):
        resolve_run("x", tmp_path)


def test_run_is_found_by_the_name_that_the_user_gave(tmp_path: Path) -> None:
    first, second, third = (make_run(tmp_path, name, 100) for name in ("a-1", "a-2", "a-3"))
    write_notes(first, RunNotes(name="low entropy"))
    write_notes(second, RunNotes(name="a-1"))
    (third / NOTES_FILE).write_text("{")

    assert resolve_run("low entropy", tmp_path) == first
    assert resolve_run("a-1", tmp_path) == first, "the name of the directory comes first"
    with pytest.raises(ReadError, match=r"did you mean 'low entropy'\?$"):
        resolve_run("low entropies", tmp_path)
    write_notes(second, RunNotes(name="low entropy"))
    with pytest.raises(ReadError, match=r"^2 runs in .* have the name 'low entropy'; give one of these: a-\d, a-\d$"):
        resolve_run("low entropy", tmp_path)


def test_notes_keep_what_is_not_given_and_refuse_what_cannot_be_read_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", 100)
    update_notes(RunDirectory(run), RunNotes())
    assert not (run / NOTES_FILE).exists()

    update_notes(RunDirectory(run), RunNotes(name="one \udcff", tags=("x",), study="s", trial=3))
    update_notes(RunDirectory(run), RunNotes(tags=("y", "z"), trial=0))
    assert read_notes(run) == RunNotes(name="one ?", tags=("y", "z"), study="s", trial=0)
    with pytest.raises(OSError, match="the limit is 65,536"):
        write_notes(run, RunNotes(note="x" * 70_000))
    (run / NOTES_FILE).write_text("{")
    with pytest.raises(ReadError, match=r"notes\.json is damaged \(.*\); delete it to use the run without its notes"):
        update_notes(RunDirectory(run), RunNotes(name="two"))
