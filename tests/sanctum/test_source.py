import subprocess
import sys
from pathlib import Path

import pytest

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.history.history import open_history
from esper.recordings.history.playback import Playback
from esper.sanctum.app import SanctumApp
from esper.sanctum.source import LiveSource, ReplaySource
from esper.sanctum.theme import DEFAULT_THEME
from tests.factory import example_run
from tests.recordings.files.recordings import recording
from tests.sanctum.driving import header, opened, press, replay, settle
from tests.sanctum.sessions import FakeSession


def test_app_import_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, esper.sanctum.app; print([m for m in ('torch', 'numpy', 'msgspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['msgspec']"


def test_live_source_applies_new_records() -> None:
    run = example_run()
    session = FakeSession(run[:10])
    source = LiveSource(session)
    assert source.tick(0.2)
    assert source.state.seq == 10
    assert not source.tick(0.2)
    session.say(*run[10:])
    assert source.tick(0.2)
    assert source.state.status == "done"


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        (RequestKind.PAUSE, ev.Paused(round=1, step=1, origin="keyboard")),
        (RequestKind.RESUME, ev.Resumed(round=1, step=1, origin="keyboard")),
        (RequestKind.STEP, ev.PhaseTimed(round=1, step=1, wall=0.1, phases={})),
        (
            RequestKind.CHECKPOINT,
            ev.CheckpointSaved(round=1, step=1, path="x", bytes=1, seconds=0.1, origin="keyboard"),
        ),
        (RequestKind.CHECKPOINT, ev.Logged(severity="error", text="the disk is full")),
        (RequestKind.RESTORE, ev.Resumed(round=1, step=1, origin="keyboard", checkpoint="x")),
    ],
)
def test_request_is_shown_until_answered(kind: RequestKind, answers: ev.AnyEvent) -> None:
    session = FakeSession(example_run()[:5])
    source = LiveSource(session)
    source.tick(0.0)
    source.requests.ask(kind, "x" if kind is RequestKind.RESTORE else None)
    assert source.requests.text.endswith("…")
    session.emit(ev.Logged(severity="info", text="unrelated"))
    source.tick(0.2)
    assert source.requests.text
    session.emit(answers)
    source.tick(0.2)
    assert not source.requests.text


def test_scheduled_checkpoint_does_not_answer_a_request() -> None:
    session = FakeSession()
    source = LiveSource(session)
    source.requests.ask(RequestKind.CHECKPOINT)
    session.say(ev.CheckpointSaved(round=1, step=1, path="x", bytes=1, seconds=0.1, origin="schedule"))
    source.tick(0.2)
    assert source.requests.text == "checkpointing…"


def test_repeated_request_is_sent_once() -> None:
    session = FakeSession()
    source = LiveSource(session)
    for _ in range(3):
        source.requests.ask(RequestKind.PAUSE)
    assert [request.kind for request in session.asked()] == [RequestKind.PAUSE]


def test_replay_plays_once_started(tmp_path: Path) -> None:
    _, playback = replay(example_run(), tmp_path)
    source = ReplaySource(playback)
    source.tick(0.2)
    assert not source.tick(5.0)
    source.start()
    assert source.tick(0.5)
    assert 0 < playback.position < playback.length
    assert source.state is playback.state
    source.tick(1e6)
    assert source.state.status == "done"
    assert not playback.playing


def recorded_part(folder: Path, count: int) -> ReplaySource:
    """Return a following source over the first events of a growing recording."""
    (folder / "events-00001.jsonl").write_bytes(recording(example_run()[:count]))
    source = ReplaySource(Playback(open_history(folder)), follow=True)
    source.start()
    return source


def test_replay_follows_a_growing_recording(tmp_path: Path) -> None:
    run = example_run()
    source = recorded_part(tmp_path, 20)
    assert source.tick(0.2)
    assert not source.tick(0.2)
    assert (source.state.seq, source.following) == (20, True)
    (tmp_path / "events-00001.jsonl").write_bytes(recording(run[:30]))
    assert source.tick(0.2)
    assert (source.state.seq, source.following) == (30, True)

    source.playback.seek(10)
    (tmp_path / "events-00001.jsonl").write_bytes(recording(run[:40]))
    assert source.tick(0.2)  # the length has changed
    assert (source.state.seq, source.playback.length, source.following) == (10, 40, False)
    source.playback.seek_end()
    (tmp_path / "events-00001.jsonl").write_bytes(recording(run))
    source.tick(0.2)
    assert (source.state.status, source.following) == ("done", True)


def test_deleted_recording_ends_replay_with_a_message(tmp_path: Path) -> None:
    source = recorded_part(tmp_path, 20)
    (tmp_path / "events-00001.jsonl").rename(tmp_path / "elsewhere")
    source.tick(0.2)
    assert source.failure is not None
    assert source.failure.startswith(f"{tmp_path} is not a run")


async def test_header_shows_whether_replay_follows_the_end(tmp_path: Path) -> None:
    source = recorded_part(tmp_path, 20)
    lock = RunLock(RunDirectory(tmp_path))
    app = SanctumApp(source, theme=DEFAULT_THEME)
    async with opened(app) as pilot:
        assert "REPLAY following" in header(app)
        await press(pilot, "left")
        assert "REPLAY paused round" in header(app)
        await press(pilot, "right_curly_bracket")
        assert "REPLAY following" in header(app)
        lock.release()
        await settle(pilot)
        assert "REPLAY paused, of a crashed run" in header(app)
