"""The store of results: kills, full disks, read-only runs, other versions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from esper.recordings.effects.store import RESULTS_FILE, EffectStore
from esper.recordings.files import result_file
from tests.recordings.effects.episodes import simulation

FIRST, SECOND = simulation(net_return=0.1), simulation(net_return=0.2)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty run directory, and a cache directory of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


def test_partial_line_after_a_kill_is_skipped_and_ended(run: Path) -> None:
    EffectStore(run).add(FIRST)
    EffectStore(run).add(SECOND)
    path = run / RESULTS_FILE
    content = path.read_bytes()
    for cut in (content.index(b"\n") + 20, len(content) - 1):
        path.write_bytes(content[:cut])
        assert EffectStore(run).read() == ([FIRST] if cut < len(content) - 1 else [FIRST, SECOND])
        EffectStore(run).add(SECOND)
        assert EffectStore(run).read()[-1] == SECOND
        assert EffectStore(run).read()[0] == FIRST


def test_lines_of_another_version_and_damaged_ones_are_skipped(run: Path) -> None:
    EffectStore(run).add(FIRST)
    path = run / RESULTS_FILE
    path.write_bytes(path.read_bytes().replace(b'"format":3', b'"format":2') + b'{"format":3}\n\xff\xfe\n[]\n')
    EffectStore(run).add(SECOND)
    assert EffectStore(run).read() == [SECOND]


def test_unwritable_run_keeps_its_results_in_the_cache(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_writes(monkeypatch, run)
    store = EffectStore(run)
    store.add(FIRST)
    assert not list(run.iterdir())
    assert EffectStore(run).read() == store.read() == [FIRST]
    other = run.parent / "other"
    other.mkdir()
    assert EffectStore(other).read() == []


@pytest.mark.parametrize("place", ["esper/demo-faults", "telemetry/demo"])  # installed; in a checkout
def test_effects_of_a_shipped_recording_are_kept_in_the_cache(
    run: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = run.parent / ("esper" if place.startswith("esper") else "src/esper") / "recordings" / "files" / "runs.py"
    monkeypatch.setattr("esper.recordings.files.runs.__file__", str(module))
    shipped = run.parent / place
    EffectStore(run).add(FIRST)
    shutil.copytree(run, shipped)
    for recording in (shipped, shipped / "events-00001.jsonl.zst"):
        content = (shipped / RESULTS_FILE).read_bytes()
        assert EffectStore(recording).read() == [FIRST]
        EffectStore(recording).add(SECOND)
        assert EffectStore(recording).read() == [FIRST, SECOND]
        assert (shipped / RESULTS_FILE).read_bytes() == content
    copied = run.parent / "copied"
    shutil.copytree(shipped, copied)
    EffectStore(copied).add(SECOND)  # this is how the effects that ship are recorded
    assert (copied / RESULTS_FILE).read_bytes() != content


def test_full_disk_raises_and_leaves_a_readable_store(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EffectStore(run)
    store.add(FIRST)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(result_file.os, "write", lambda descriptor, line: write(descriptor, line[: len(line) // 2]))
        with pytest.raises(OSError, match="No space left"):
            store.add(SECOND)
    assert store.read() == [FIRST]
    store.add(SECOND)
    assert EffectStore(run).read() == [FIRST, SECOND]


def test_results_added_by_another_process_are_read(run: Path) -> None:
    store = EffectStore(run)
    assert store.read() == []
    before = store.version
    EffectStore(run).add(FIRST)
    assert store.version != before
    assert store.read() == [FIRST]


def test_results_of_one_file_of_events_are_beside_it(run: Path) -> None:
    recording = run / "excerpt.jsonl.zst"
    recording.touch()
    EffectStore(recording).add(FIRST)
    assert (run / RESULTS_FILE).exists()


def refuse_writes(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Refuse to open files below a directory for writing, also for the superuser, who can write everywhere."""
    opened = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).resolve().is_relative_to(directory.resolve()) and flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(result_file.os, "open", refuse)
