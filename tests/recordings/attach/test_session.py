"""`AttachedRun`: the state and the records of a run in another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.recordings.attach.session import AttachedRun
from esper.recordings.events.codec import encode_json
from esper.recordings.files.recorder import Recorder
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.state.state import Keyframe, Record
from tests.factory import example_run
from tests.recordings.attach.viewers import wait_until

RUN = example_run()


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[RunLock]:
    held = RunLock(RunDirectory(tmp_path))
    yield held
    held.release()


def received(session: AttachedRun) -> list[Record]:
    return [session.records.get_nowait() for _ in range(session.records.qsize())]


def test_session_sends_past_state_then_single_events(tmp_path: Path, lock: RunLock) -> None:
    recorder = Recorder(RunDirectory.make(tmp_path))
    for event in RUN[:40]:
        recorder.put(event)
    assert recorder.flush()
    session = AttachedRun(tmp_path, read_only=True)
    assert not session.is_engine_alive
    session.start()
    wait_until(lambda: session.records.qsize() == 1)
    (past,) = received(session)
    assert isinstance(past, Keyframe)
    assert past.decode_state().seq == 40
    for event in RUN[40:]:
        recorder.put(event)
    assert recorder.flush()
    wait_until(lambda: session.records.qsize() == len(RUN) - 40)
    assert encode_json(received(session)) == encode_json(RUN[40:])
    assert session.is_engine_alive
    recorder.close()


def test_session_receives_the_last_events(tmp_path: Path) -> None:
    """The last event is written between a poll of the recording and the end of the process."""
    lock = RunLock(RunDirectory(tmp_path))
    recorder = Recorder(RunDirectory.make(tmp_path))
    recorder.put(RUN[0])
    assert recorder.flush()
    session = AttachedRun(tmp_path, read_only=True)
    session.start()
    wait_until(lambda: session.records.qsize() == 1)
    recorder.put(RUN[1])
    recorder.close()
    lock.release()
    wait_until(lambda: not session.is_engine_alive)
    assert encode_json(received(session)[1:]) == encode_json(RUN[1:2])
    assert session.fatal_error is None


def test_session_follows_a_run_that_is_resumed_after_a_crash(tmp_path: Path) -> None:
    lock = RunLock(RunDirectory(tmp_path))
    recorder = Recorder(RunDirectory.make(tmp_path))
    for event in RUN[:40]:
        recorder.put(event)
    assert recorder.flush()
    session = AttachedRun(tmp_path, read_only=True)
    session.start()
    wait_until(lambda: session.records.qsize() == 1)
    before = received(session)[0]
    assert isinstance(before, Keyframe)
    recorder.close()
    lock.release()
    wait_until(lambda: not session.is_engine_alive)
    lock, recorder = RunLock(RunDirectory(tmp_path)), Recorder(RunDirectory(tmp_path))
    wait_until(lambda: session.is_engine_alive)
    recorder.put(before)
    for event in RUN[40:]:
        recorder.put(event)
    assert recorder.flush()
    wait_until(lambda: session.records.qsize() == len(RUN) - 40)
    assert encode_json(received(session)) == encode_json(RUN[40:])
    session.close()
    recorder.close()
    lock.release()


@pytest.mark.parametrize("is_replaced", [True, False])
def test_session_waits_for_a_lost_directory_while_the_run_is_live(is_replaced: bool, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    lock = RunLock(RunDirectory(directory))
    session = AttachedRun(directory, read_only=True)
    session.start()
    wait_until(lambda: session.run_directory is not None)
    other = RunDirectory.make(tmp_path / "other").path
    directory.rename(tmp_path / "elsewhere")
    if is_replaced:
        other.rename(directory)
    wait_until(lambda: bool(session.notices))
    assert session.notices == [f"{directory} was moved or replaced; the run waits until it is back"]
    assert session.is_engine_alive
    lock.release()
    wait_until(lambda: not session.is_engine_alive)
    what = "another directory is in its place" if is_replaced else "the directory was moved or unmounted"
    assert session.fatal_error == f"cannot read {directory}: {what}"
