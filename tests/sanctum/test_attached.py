"""The dashboard attached to a run of another process: q detaches, Q stops the run, only confirmed state is shown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esper.common.configuration.files import resolve_config
from esper.common.control import RequestKind, RequestQueue
from esper.recordings import events as ev
from esper.recordings.attach.server import AttachServer
from esper.recordings.attach.session import AttachedRun
from esper.recordings.checkpoints.catalog import checkpoint_path
from esper.recordings.files.recorder import Recorder
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.health.detector import AnomalyDetector
from esper.recordings.history.history import open_history
from esper.recordings.state.hub import EventHub
from esper.recordings.state.state import Keyframe
from esper.sanctum import run_changes
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.dialogs import ChoiceDialog
from esper.sanctum.source import AttachSource
from esper.sanctum.theme import DEFAULT_THEME
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.problems import AnomalyStrip, PauseCausePanel
from esper.training.checkpoint.files import write_checkpoint
from esper.training.engine.ending import TRAINED
from esper.training.engine.start_point import StartPoint
from esper.training.engine.thread import EngineThread
from tests.factory import example_run
from tests.faults.programs import example_checkpoint
from tests.recordings.attach.viewers import drain_requests, no_recording_error
from tests.runs import recorded, tiny
from tests.sanctum.driving import (
    has_left,
    header,
    live,
    notices,
    opened,
    press,
    replay_of,
    screen_text,
    settle,
    shown,
    tick,
    until,
)

SIZE = (120, 40)
PATIENCE = 20.0
RUN_STARTED = next(event for event in example_run() if isinstance(event, ev.RunStarted))


class StubRun:
    """A run without an engine: it records the events that a test supplies; the test reads its requests."""

    def __init__(self, directory: Path, num_events: int = 30) -> None:
        self.directory = directory
        self.control = RequestQueue()
        directory.mkdir(parents=True, exist_ok=True)
        self.lock = RunLock(RunDirectory(directory))
        self.lock.mark_started()
        self.recorder = Recorder(RunDirectory.make(directory))
        self.hub = EventHub(self.recorder, AnomalyDetector())
        self.say(*example_run()[:num_events])

    def say(self, *events: ev.AnyEvent) -> None:
        for event in events:
            self.hub.emit(event)
        assert self.recorder.flush()

    def end(self) -> None:
        self.recorder.close()
        self.lock.release()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[StubRun]:
    stub = StubRun(tmp_path / "run")
    yield stub
    stub.end()


def attach(directory: Path, *, read_only: bool = False) -> tuple[SanctumApp, AttachSource]:
    source = AttachSource(AttachedRun(directory, read_only=read_only))
    return SanctumApp(source, theme=DEFAULT_THEME), source


async def test_request_progress_shows_sent_accepted_and_done(run: StubRun) -> None:
    """Each state is shown only once it is true."""
    app, source = attach(run.directory)
    answering = threading.Event()
    accept = run.control.put

    def hesitate(kind: RequestKind, origin: str, *rest: Any) -> None:
        assert answering.wait(PATIENCE)
        accept(kind, origin, *rest)

    with pytest.MonkeyPatch.context() as patch, closing(AttachServer(run.directory, run.control, no_recording_error)):
        patch.setattr(run.control, "put", hesitate)
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "RUNNING" in header(app))
            await until(pilot, lambda: source.session.control.origin is not None)
            await pilot.press("p")
            await until(pilot, lambda: "RUNNING sending pause…" in header(app))
            answering.set()
            await until(pilot, lambda: "RUNNING pausing…" in header(app))
            (request,) = drain_requests(run.control)
            assert (request.kind, request.origin) == (RequestKind.PAUSE, source.session.control.origin)
            run.say(ev.ControlRequested(kind="pause", origin=request.origin))
            run.say(ev.Paused(round=1, step=2, origin=request.origin))
            await until(pilot, lambda: "PAUSED round" in header(app))


async def test_checkpoint_of_others_does_not_answer_own_request(run: StubRun) -> None:
    app, source = attach(run.directory)
    with closing(AttachServer(run.directory, run.control, no_recording_error)):
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: source.session.control.origin is not None)
            await pilot.press("c")
            await until(pilot, lambda: "checkpointing…" in header(app))
            mine = source.session.control.origin
            assert mine is not None
            for origin in ("keyboard", "attach bob@box 7", mine):
                await until(pilot, lambda: "checkpointing…" in header(app))
                run.say(ev.CheckpointSaved(round=1, step=2, path=f"x-{origin}", bytes=1, origin=origin))
                await until(
                    pilot, lambda path=f"x-{origin}": path in [saved.path for saved in source.state.checkpoints]
                )
            await until(pilot, lambda: "checkpointing…" not in header(app))


async def test_ignored_request_is_removed(run: StubRun) -> None:
    """Another viewer has paused the run first."""
    app, source = attach(run.directory)
    with closing(AttachServer(run.directory, run.control, no_recording_error)):
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: source.session.control.origin is not None)
            await pilot.press("p")
            await until(pilot, lambda: "pausing…" in header(app))
            origin = source.session.control.origin
            assert origin is not None
            ignored = "the run is already paused"
            run.say(ev.ControlRequested(kind="pause", origin=origin, ignored=ignored))
            await until(pilot, lambda: "pausing…" not in header(app))
            assert source.state.log[-1].text == f"pause requested ({origin}), ignored: {ignored}"


async def test_run_without_socket_is_shown_but_not_controllable(run: StubRun) -> None:
    app, source = attach(run.directory)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "This run cannot be controlled: the run does not listen" in " ".join(notices(app)))
        assert "RUNNING" in header(app)
        await pilot.press("c")
        await until(pilot, lambda: "No checkpoint: the run does not listen" in " ".join(notices(app)))
        await until(pilot, lambda: "checkpoint" not in header(app))
        with closing(AttachServer(run.directory, run.control, no_recording_error)):
            await pilot.press("c")
            await until(pilot, lambda: "checkpointing…" in header(app))
        assert [request.kind for request in drain_requests(run.control)] == [RequestKind.CHECKPOINT]
        assert source.alive


async def test_read_only_viewer_refuses_control_keys(run: StubRun) -> None:
    app, source = attach(run.directory, read_only=True)
    with closing(AttachServer(run.directory, run.control, no_recording_error)):
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "RUNNING read-only" in header(app))
            footer = screen_text(app).splitlines()[-1]
            assert "↵ env" in footer
            assert not any(name in footer for name in ("pause", "checkpoint", "restore", "stop"))
            refusal = "This view is read-only: attach without --read-only to control the run."
            for key in "pcsrQ":
                app.clear_notifications()
                await pilot.press(key)
                assert notices(app) == [refusal], key
                assert not isinstance(app.screen, ChoiceDialog)
            await pilot.press("q")
            assert has_left(app)
        assert drain_requests(run.control) == []
        assert source.session.control.origin is None  # it has not connected


@pytest.mark.parametrize(("read_only", "advice"), [(False, "Q end the run"), (True, "no kernel")])
async def test_held_run_names_only_keys_that_work_here(read_only: bool, advice: str, run: StubRun) -> None:
    """In an attached dashboard, q only detaches; a read-only one sends no request."""
    run.say(ev.Paused(round=1, step=2, origin="engine", reason="no kernel", cause="fault"))
    app, _ = attach(run.directory, read_only=read_only)
    with closing(AttachServer(run.directory, run.control, no_recording_error)):
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "HELD" in header(app))
            await pilot.pause()
            assert shown(app, PauseCausePanel).endswith(advice)


@pytest.mark.parametrize("key", ["q", "d", "ctrl+c"])
async def test_detaching_sends_no_request(key: str, run: StubRun) -> None:
    app, _ = attach(run.directory)
    with closing(AttachServer(run.directory, run.control, no_recording_error)):
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "RUNNING" in header(app))
            assert "Q stop" in shown(app, Footer)
            assert shown(app, Footer).endswith("q detach")
            await pilot.press(key)
            assert has_left(app)
        assert drain_requests(run.control) == []


async def test_stop_asks_to_confirm_and_waits_for_the_end(run: StubRun) -> None:
    app, _ = attach(run.directory)
    with closing(AttachServer(run.directory, run.control, no_recording_error)):
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "RUNNING" in header(app))
            await pilot.press("Q")
            assert all(
                text in screen_text(app) for text in ("The run is live. End the run?", "Cancel and press q to detach.")
            )
            await pilot.press("escape")
            assert not has_left(app)
            await pilot.press("Q", "c")
            await until(pilot, lambda: "checkpointing, then q" in header(app))
            assert [request.kind for request in drain_requests(run.control)] == [RequestKind.STOP]
            run.say(ev.RunEnded(outcome="stopped"))
            await until(pilot, lambda: has_left(app))


class StubCommand:
    """Stub of the command that resumes a run in a background process."""

    def __init__(self) -> None:
        self.words: list[Sequence[str]] = []
        self.code: int | None = None

    def __call__(self, words: Sequence[str], output: Path) -> StubCommand:
        self.words.append(words)
        self.file, self.code = output.open("x"), None
        return self

    def poll(self) -> int | None:
        return self.code

    def end(self, code: int, text: str) -> None:
        with self.file:
            self.file.write(text)
        self.code = code


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> StubCommand:
    stub = StubCommand()
    monkeypatch.setattr(run_changes, "spawn_program", stub)
    return stub


def crash(run: StubRun) -> None:
    """End a run with a checkpoint as `kill -9` does: without an event."""
    write_checkpoint(checkpoint_path(run.directory, 1, 2), example_checkpoint(1))
    run.say(ev.CheckpointSaved(round=1, step=2, path="checkpoints/round-00001-step-0002", bytes=1, origin="schedule"))
    run.end()


async def test_killed_run_is_crashed_everywhere_and_one_key_resumes_it(tmp_path: Path, command: StubCommand) -> None:
    run = StubRun(tmp_path / "run", 8)
    app, source = attach(run.directory)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "RUNNING" in header(app))
        assert shown(app, AnomalyStrip).startswith("✓ no anomalies")
        crash(run)
        await until(pilot, lambda: "✖ CRASHED can be resumed" in header(app))
        assert not any(text in header(app) for text in ("left", "env-steps/s"))
        assert shown(app, AnomalyStrip).startswith("✖ 1 the run crashed and can be resumed: i")
        assert "p resume" in shown(app, Footer)
        await pilot.press("c")
        assert "Not available: the run has ended." in " ".join(notices(app))
        await pilot.press("F")
        await pilot.pause()
        assert "Run crashed, can be resumed." in screen_text(app)
        assert "p    resume: train on from the newest checkpoint" in screen_text(app)
        await pilot.press("escape", "p")
        await until(pilot, lambda: bool(command.words))
        assert command.words == [["--resume", str(run.directory), "--detach", "--no-tui"]]
        await pilot.press("p")
        await until(pilot, lambda: "run is being resumed; wait until it trains." in notices(app))
        lock = RunLock(RunDirectory(run.directory))
        await until(pilot, lambda: "○ STARTING" in header(app))
        assert shown(app, AnomalyStrip).startswith("✓ no anomalies")
        state = source.live_state
        recorder = Recorder(RunDirectory(run.directory))
        recorder.put(msgspec.structs.replace(Keyframe.from_state(state), restored=state.time + 60.0))
        recorder.put(msgspec.structs.replace(RUN_STARTED, seq=state.seq + 1, time=state.time + 60.0))
        assert recorder.flush()
        lock.mark_started()
        await until(pilot, lambda: "RUNNING" in header(app))
        assert "p pause" in shown(app, Footer)
        command.end(0, "run trains in process 7\n")
        await until(pilot, lambda: "run trains again, in a background process." in notices(app))
        recorder.close()
        lock.release()
    assert len(command.words) == 1


async def test_refused_resume_is_reported(tmp_path: Path, command: StubCommand) -> None:
    run = StubRun(tmp_path / "run", 8)
    run.end()
    app, _ = attach(run.directory)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "✖ CRASHED round" in header(app))  # it has no checkpoint
        assert "p resume" not in shown(app, Footer)
        await pilot.press("p")
        await until(pilot, lambda: bool(command.words))
        command.end(2, "starting a background process\nesper-sanctum: run has no checkpoint\n")
        await until(pilot, lambda: "run is not resumed: run has no checkpoint" in notices(app))


async def test_replay_of_a_crashed_run_names_the_crash_and_resumes_it(tmp_path: Path, command: StubCommand) -> None:
    run = StubRun(tmp_path / "run", 8)
    crash(run)
    app, playback = replay_of(open_history(run.directory))
    async with opened(app) as pilot:
        assert "crashed" not in header(app)
        await press(pilot, "F")  # also before the end
        assert "Run crashed, can be resumed." in " ".join(screen_text(app).split()) or notices(app)
        await press(pilot, "escape")
        playback.seek_end()
        await settle(pilot)
        assert "REPLAY paused, of a crashed run" in header(app)
        assert shown(app, AnomalyStrip).startswith("✖ 1 the run crashed and can be resumed: i")
        await press(pilot, "F", "p")
        await until(pilot, lambda: bool(command.words))
        lock = RunLock(RunDirectory(run.directory))
        lock.mark_started()
        command.end(0, "")
        await until(pilot, lambda: isinstance(app.source, AttachSource) and "● RUNNING" in screen_text(app))
        lock.release()


async def test_read_only_viewer_cannot_resume(tmp_path: Path, command: StubCommand) -> None:
    run = StubRun(tmp_path / "run", 8)
    crash(run)
    app, _ = attach(run.directory, read_only=True)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "✖ CRASHED" in header(app))
        assert "p resume" not in shown(app, Footer)
        await pilot.press("p")
        await pilot.pause()
        assert notices(app)[-1] == "This view is read-only: attach without --read-only to control the run."
        await pilot.press("F", "p")
        await pilot.pause()
    assert command.words == []


async def test_silent_run_is_named_with_its_duration(tmp_path: Path) -> None:
    """The list of anomalies counts on while it is open."""
    run = StubRun(tmp_path / "run", 8)
    app, _ = attach(run.directory)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "RUNNING" in header(app))
        app.view.frame_stats.age = 50.0
        tick(app)
        assert "RUNNING" in header(app)  # the first step may be slow
        run.say(ev.PhaseTimed(round=1, step=1, wall=0.1, phases={}))
        await until(pilot, lambda: app.view.frame_stats.age < 50.0)
        app.view.frame_stats.age = 60.0
        await until(pilot, lambda: "▲ SILENT for 1m" in header(app))
        assert not any(text in header(app) for text in ("left", "env-steps/s"))
        await until(pilot, lambda: shown(app, AnomalyStrip).startswith("▲ 1 no event from the engine for 6"))
        await pilot.press("a")
        await until(pilot, lambda: "no event from the engine for 6" in screen_text(app))
        app.view.frame_stats.age = 1000.0
        await until(pilot, lambda: "no event from the engine for 100" in screen_text(app))
        run.say(ev.Logged(severity="info", text="it is back"))
        await until(pilot, lambda: "● RUNNING" in header(app))
    run.end()


async def test_run_in_same_process_cannot_be_detached() -> None:
    app, session = live(example_run()[:30])
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("d")
        assert "Cannot detach: the run trains in this process" in " ".join(notices(app))
        assert "--detach" in " ".join(notices(app))
        assert not has_left(app)
        await pilot.press("Q", "c")
        assert [request.kind for request in session.asked()] == [RequestKind.STOP]


@pytest.mark.slow
async def test_attached_dashboard_controls_a_real_engine(tmp_path: Path) -> None:
    """The recording has the requests with their origins."""
    engine = EngineThread(StartPoint(resolve_config(None, tiny(tmp_path, envs=2, rounds=500, checkpoint_every=0))))
    engine.start()
    while engine.directory is None or not (engine.directory / "control.sock").exists():
        assert engine.ending is None
        await asyncio.sleep(0.02)
    first, source = attach(engine.directory)
    async with first.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: source.state.steps_done >= 1)
        await pilot.press("p")
        await until(pilot, lambda: source.state.status == "paused")
        held = source.state.steps_done
        await pilot.press("c")
        await until(pilot, lambda: len(source.state.checkpoints) == 1)
        await pilot.press("s")
        await until(pilot, lambda: source.state.steps_done == held + 1 and source.state.status == "paused")
        await pilot.press("r", "enter")
        await until(pilot, lambda: any(line.kind == "Resumed" for line in source.state.log))
        assert not source.requests.text
        await pilot.press("q")
    assert engine.is_engine_alive
    origin = source.session.control.origin
    second, watching = attach(engine.directory)
    async with second.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: watching.state.steps_done > held + 2)
        await pilot.press("Q", "w")
        await until(pilot, lambda: has_left(second))
    engine.join()
    assert engine.ending == TRAINED
    *_, requested, ended = recorded(engine.directory)
    assert isinstance(ended, ev.RunEnded)
    assert isinstance(requested, ev.ControlRequested)
    assert (requested.kind, requested.origin) == ("abandon", origin)
