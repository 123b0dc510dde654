"""The recorder loses no event while the disk is slow, full or gone, and its files are readable at any moment."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from esper.recordings import events as ev
from esper.recordings.files import recorder as module
from esper.recordings.files import segments
from esper.recordings.files.recorder import Recorder, RecordingError, open_run_directory, write_manifest
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.segments import SegmentWriter
from esper.recordings.history.history import open_history
from esper.recordings.state.state import Keyframe
from tests.factory import example_run, stamp
from tests.recordings.files.recordings import fold, recording, write_segment

RUN = example_run()
TIMEOUT_S = 60.0
"""Seconds after which `eventually` fails the test."""


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "RETRY_INTERVAL_S", 0.02)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(RunDirectory.make(tmp_path / "run"))
    yield recorder
    recorder.close()


def put_all(recorder: Recorder, events: list[ev.AnyEvent]) -> None:
    for event in events:
        recorder.put(event)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def read(directory: Path) -> list[ev.AnyEvent]:
    history = open_history(directory)
    assert history.notices == []
    events = list(history.events())
    assert repr(history.state_at(len(events))) == repr(fold(events))
    return events


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the condition did not become true")
        time.sleep(0.01)


def test_recorder_flush_writes_and_close_packs(recorder: Recorder) -> None:
    put_all(recorder, RUN[:50])
    assert recorder.flush()
    assert files(recorder.directory) == ["events-00001.jsonl"]
    assert repr(read(recorder.directory)) == repr(RUN[:50])

    put_all(recorder, RUN[50:])
    recorder.close()
    assert files(recorder.directory) == ["events-00001.jsonl.zst"]
    assert repr(read(recorder.directory)) == repr(RUN)
    assert recorder.failure is None


def test_recorder_writes_without_a_flush(recorder: Recorder) -> None:
    put_all(recorder, RUN)

    eventually(
        lambda: (recorder.directory / "events-00001.jsonl").exists() and len(read(recorder.directory)) == len(RUN)
    )


def test_recorder_snapshot_includes_the_last_event(recorder: Recorder) -> None:
    assert repr(recorder.snapshot().decode_state()) == repr(fold([]))
    for start, stop in ((0, 1), (1, 47)):
        put_all(recorder, RUN[start:stop])
        assert repr(recorder.snapshot().decode_state()) == repr(fold(RUN[:stop]))


def test_segments_are_packed_and_start_with_a_keyframe(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SEGMENT_BYTES", 4000)
    monkeypatch.setattr(module, "WRITE_BATCH_RECORDS", 5)
    put_all(recorder, RUN)
    recorder.flush()

    # Another thread packs them.
    eventually(lambda: sum(not name.endswith(".zst") for name in files(recorder.directory)) <= 1)
    names = files(recorder.directory)
    assert len(names) > 3
    assert [name.endswith(".zst") for name in names] == [True] * (len(names) - 1) + [False]
    assert repr(read(recorder.directory)) == repr(RUN)
    last = recorder.directory / names[-1]
    assert last.read_bytes().startswith(b'{"type":"Keyframe"')
    assert repr(read(recorder.directory)[-1]) == repr(RUN[-1])


def test_restore_starts_a_segment_and_undoes_later_events(recorder: Recorder) -> None:
    repeated = stamp(RUN[31:40], first=32, start=RUN[-1].time)
    put_all(recorder, RUN[:60])
    recorder.put(Keyframe.from_state(fold(RUN[:31])))
    put_all(recorder, repeated)

    assert repr(recorder.snapshot().decode_state()) == repr(fold(RUN[:31] + repeated))
    recorder.close()
    assert files(recorder.directory) == ["events-00001.jsonl.zst", "events-00002.jsonl.zst"]
    assert repr(read(recorder.directory)) == repr(RUN[:31] + repeated)


def test_resumed_recorder_continues_after_a_killed_one(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(RUN[:60]) + b'{"type":"EnvSt')
    recorder = Recorder(RunDirectory.make(tmp_path))
    recorder.put(Keyframe.from_state(fold(RUN[:31])))
    put_all(recorder, RUN[31:])
    recorder.close()

    history = open_history(tmp_path)
    assert files(tmp_path) == ["events-00001.jsonl.zst", "events-00002.jsonl.zst"]
    assert repr(list(history.events())) == repr(RUN)
    assert "ends in the middle of a line" in history.notices[0]


def test_slow_disk_loses_no_events(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING_RECORDS", 20)
    monkeypatch.setattr(module, "WRITE_BATCH_RECORDS", 10)
    append = SegmentWriter.append
    pending_counts = []

    def slowly(writer: SegmentWriter, lines: bytes) -> None:
        time.sleep(0.005)
        pending_counts.append(len(recorder._incoming))
        append(writer, lines)

    monkeypatch.setattr(SegmentWriter, "append", slowly)
    recorder._wake_threshold = 10
    put_all(recorder, RUN)
    recorder.flush()

    assert repr(read(recorder.directory)) == repr(RUN)
    assert max(pending_counts) <= 20


class FullDisk:
    """Replacement of os.write that accepts `free_bytes` bytes, then raises ENOSPC until they are increased."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self._write = os.write

    def __call__(self, file: int, data: memoryview) -> int:
        if self.free_bytes == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(file, data[: self.free_bytes])
        self.free_bytes -= written
        return written


@pytest.mark.parametrize("free_bytes", [0, 10, 2500, 9001])
def test_full_disk_loses_no_events_and_recovers(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    disk = FullDisk(free_bytes)
    monkeypatch.setattr(segments.os, "write", disk)
    monkeypatch.setattr(module, "WRITE_BATCH_RECORDS", 10)
    put_all(recorder, RUN[:90])

    assert not recorder.flush()
    assert recorder.failure == f"cannot record to {recorder.directory}: No space left on device"
    assert repr(recorder.snapshot().decode_state()) == repr(fold(RUN[:90]))
    if files(recorder.directory):
        held = open_history(recorder.directory)  # the written part is valid
        assert repr(list(held.events())) == repr(RUN[: held.length])

    disk.free_bytes = 10**9
    eventually(lambda: recorder.failure is None)
    put_all(recorder, RUN[90:])
    assert recorder.flush()
    assert repr(read(recorder.directory)) == repr(RUN)


def test_close_on_full_disk_reports_the_number_lost(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    put_all(recorder, RUN[:90])
    recorder.flush()
    monkeypatch.setattr(segments.os, "write", FullDisk(0))
    put_all(recorder, RUN[90:])
    recorder.close()

    lost = len(RUN) - 90
    assert recorder.failure is not None
    assert recorder.failure.endswith(f"No space left on device; the last {lost} events are lost")
    assert repr(read(recorder.directory)) == repr(RUN[:90])


def test_close_tries_again_after_a_rejected_write(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(0)
    monkeypatch.setattr(segments.os, "write", disk)
    monkeypatch.setattr(module.time, "sleep", lambda _: setattr(disk, "free_bytes", 10**9))
    put_all(recorder, RUN)
    recorder.close()

    assert recorder.failure is None
    assert repr(read(recorder.directory)) == repr(RUN)


def test_close_waits_until_finished_segments_are_packed(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program may end after it: a segment that is being packed would be packed by nobody."""
    pack, closing = module.compress_segment, threading.Event()

    def pack_the_first_one_last(path: Path) -> None:
        if path.name == "events-00001.jsonl":
            closing.wait(TIMEOUT_S)
            time.sleep(0.3)
        pack(path)

    monkeypatch.setattr(module, "compress_segment", pack_the_first_one_last)
    put_all(recorder, RUN[:50])
    recorder.flush()
    recorder.put(Keyframe.from_state(fold(RUN[:50])))
    recorder.flush()
    closing.set()
    recorder.close()

    assert files(recorder.directory) == ["events-00001.jsonl.zst", "events-00002.jsonl.zst"]


def test_close_reports_losses_despite_a_second_error(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    put_all(recorder, RUN[:90])
    recorder.flush()
    monkeypatch.setattr(segments.os, "write", FullDisk(0))
    monkeypatch.setattr(segments.os, "fsync", refuse)
    put_all(recorder, RUN[90:])
    recorder.close()

    assert recorder.failure is not None
    assert recorder.failure.endswith(f"the last {len(RUN) - 90} events are lost")


@pytest.mark.parametrize("at_the_end", [False, True])
def test_unfinishable_segment_is_reported_and_replaced(
    at_the_end: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, closed = os.close, list[int]()

    def refuse(file: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(file).st_mode)
        close(file)
        if is_directory:
            return
        closed.append(file)
        raise OSError(errno.EIO, "Input/output error")

    put_all(recorder, RUN[:50])
    assert recorder.flush()
    text = f"{recorder.directory / 'events-00001.jsonl'} could not be closed and may lack events: Input/output error"
    monkeypatch.setattr(segments.os, "close", refuse)
    if at_the_end:
        recorder.close()
        assert recorder.failure == text
        return
    recorder.put(Keyframe.from_state(fold(RUN[:50])))
    assert recorder.flush()
    assert len(closed) == 1
    assert recorder.notices.pop() == text
    monkeypatch.setattr(segments.os, "close", close)
    put_all(recorder, RUN[50:])
    recorder.close()
    assert recorder.failure is None
    assert repr(read(recorder.directory)) == repr(RUN)


def test_recorder_writes_to_its_own_directory_only(recorder: Recorder) -> None:
    own, away = recorder.directory, recorder.directory.with_name("away")
    put_all(recorder, RUN[:50])
    assert recorder.flush()
    own.rename(away)
    put_all(recorder, RUN[50:60])
    assert not recorder.flush()
    assert recorder.failure == f"cannot record to {own}: the directory was moved or unmounted"

    own.mkdir()
    put_all(recorder, RUN[60:70])
    assert not recorder.flush()
    assert recorder.failure == f"cannot record to {own}: another directory is in its place"
    assert files(own) == []
    own.rmdir()
    own.symlink_to(away)  # the way to it does not matter
    put_all(recorder, RUN[70:])
    assert recorder.flush()
    assert (recorder.failure, list(recorder.notices)) == (None, [])
    assert repr(read(own)) == repr(RUN)

    shutil.rmtree(away)
    own.unlink()
    own.mkdir()
    assert not recorder.flush()
    recorder.close()
    assert recorder.failure == f"cannot record to {own}: the directory was deleted"
    assert files(own) == []


def test_file_that_is_deleted_alone_is_restored_or_reported(tmp_path: Path) -> None:
    directory = RunDirectory.make(tmp_path / "run")
    recorder = Recorder(directory)
    write_manifest(directory, {"seed": 1})
    manifest, segment = tmp_path / "run" / "run.json", tmp_path / "run" / "events-00001.jsonl"
    put_all(recorder, RUN[:50])
    assert recorder.flush()
    content = manifest.read_bytes()
    manifest.unlink()
    segment.unlink()
    put_all(recorder, RUN[50:])
    assert recorder.flush()
    assert list(recorder.notices) == [
        f"{segment} was deleted; its events are lost unless the file is restored",
        f"{manifest} was deleted; it is written again",
    ]
    assert manifest.read_bytes() == content
    recorder.notices.clear()
    manifest.unlink()
    recorder.close()
    assert (recorder.failure, manifest.read_bytes()) == (None, content)
    history = open_history(tmp_path / "run")
    assert repr(list(history.events())) == repr(RUN[50:])
    assert repr(history.state_at(history.length)) == repr(fold(RUN))


def test_replaced_file_is_detected_and_reopened(recorder: Recorder) -> None:
    put_all(recorder, RUN[:50])
    assert recorder.flush()
    file = recorder.directory / "events-00001.jsonl"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)
    put_all(recorder, RUN[50:])
    assert recorder.flush()

    assert repr(read(recorder.directory)) == repr(RUN)


def test_recorder_bug_is_raised_in_the_engine(recorder: Recorder) -> None:
    recorder.put(ev.Logged(severity="info", text=object()))  # pyright: ignore[reportArgumentType]

    with pytest.raises(RecordingError, match="is closed") as error:
        recorder.flush()
    assert isinstance(error.value.__cause__, TypeError)
    assert "failed with a bug" in str(recorder.failure)
    with pytest.raises(RecordingError):
        recorder.put(RUN[0])


def test_closed_recorder_accepts_no_events(recorder: Recorder) -> None:
    recorder.close()

    for use in (lambda: recorder.put(RUN[0]), recorder.flush, recorder.snapshot):
        with pytest.raises(RecordingError, match="is closed"):
            use()


def test_recorder_refuses_an_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match=r"cannot record to .*file/run: Not a directory"):
        open_run_directory(tmp_path / "file" / "run")
    directory = RunDirectory.make(tmp_path / "run")
    directory.path.rmdir()
    for refuse in (lambda: Recorder(directory), lambda: write_manifest(directory, {})):
        with pytest.raises(RecordingError, match=r"cannot record to .*run: the directory was deleted"):
            refuse()
    assert not directory.path.exists()


def test_another_directory_at_the_path_of_a_run_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory.make(tmp_path / "run")
    module.check_run_directory(directory)
    directory.path.rename(tmp_path / "away")
    directory.path.mkdir()
    with pytest.raises(RecordingError, match=r"cannot record to .*run: another directory is in its place"):
        module.check_run_directory(directory)


def test_manifest_is_replaced_atomically(tmp_path: Path) -> None:
    write_manifest(RunDirectory.make(tmp_path / "run"), {"seed": 1})
    write_manifest(RunDirectory.make(tmp_path / "run"), {"seed": 2, "clip": float("inf")})

    assert files(tmp_path / "run") == ["run.json"]
    manifest = msgspec.json.decode((tmp_path / "run" / "run.json").read_bytes())
    assert manifest == {"schema": ev.SCHEMA_VERSION, "seed": 2, "clip": "Infinity"}


def test_segment_whose_syncs_fail_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file left behind would make every later attempt fail, because a segment must not exist."""

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "events-00001.jsonl"
    monkeypatch.setattr(segments.os, "fsync", refuse)

    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            SegmentWriter(path, b"{}\n")

    assert not path.exists()
