"""The dashboard over a run that trains elsewhere: q leaves it, Q ends it, and nothing is shown done before it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from esper.attach.server import ControlServer
from esper.attach.session import AttachSession
from esper.config import resolve
from esper.control import Control, Kind
from esper.launch import EngineThread
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.quit_dialog import QuitDialog
from esper.sanctum.source import AttachSource
from esper.sanctum.theme import DEFAULT
from esper.sanctum.widgets.footer import Footer
from esper.telemetry import events as ev
from esper.telemetry.hub import Hub
from esper.telemetry.liveness import RunLock
from esper.telemetry.recorder import Recorder
from tests.attach.viewers import asked, well
from tests.factory import example_run
from tests.runs import recorded, tiny
from tests.sanctum.driving import has_left, header, live, notices, screen_text, shown, until

SIZE = (120, 40)
PATIENCE = 20.0


class StubRun:
    """Records what a test wants said; its inbox can be looked into, and is served when it is told to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.control = Control()
        self.lock = RunLock(directory)
        self.recorder = Recorder(directory)
        self.hub = Hub(self.recorder)
        self.say(*example_run()[:30])

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
    source = AttachSource(AttachSession(directory, read_only=read_only))
    return SanctumApp(source, theme=DEFAULT), source


async def test_asked_acknowledged_done(run: StubRun) -> None:
    """Each is shown when it is so, and not before."""
    app, source = attach(run.directory)
    answering = threading.Event()
    accept = run.control.ask

    def hesitate(kind: Kind, origin: str, path: str | None = None) -> None:
        assert answering.wait(PATIENCE)
        accept(kind, origin, path)

    with pytest.MonkeyPatch.context() as patch, closing(ControlServer(run.directory, run.control, well)):
        patch.setattr(run.control, "ask", hesitate)
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "RUNNING" in header(app))
            await until(pilot, lambda: source.session.control.origin is not None)
            await pilot.press("p")
            await until(pilot, lambda: "RUNNING asking to pause…" in header(app))
            answering.set()
            await until(pilot, lambda: "RUNNING pausing…" in header(app))
            (request,) = asked(run.control)
            assert (request.kind, request.origin) == (Kind.PAUSE, source.session.control.origin)
            run.say(ev.ControlRequested(kind="pause", origin=request.origin))
            run.say(ev.Paused(round=1, step=2, origin=request.origin))
            await until(pilot, lambda: "PAUSED round" in header(app))


async def test_what_others_do_is_seen_and_answers_only_what_it_answers(run: StubRun) -> None:
    app, source = attach(run.directory)
    with closing(ControlServer(run.directory, run.control, well)):
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


async def test_what_comes_to_nothing_is_crossed_off(run: StubRun) -> None:
    """Another viewer was faster."""
    app, source = attach(run.directory)
    with closing(ControlServer(run.directory, run.control, well)):
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: source.session.control.origin is not None)
            await pilot.press("p")
            await until(pilot, lambda: "pausing…" in header(app))
            origin = source.session.control.origin
            assert origin is not None
            ignored = "the run is paused already"
            run.say(ev.ControlRequested(kind="pause", origin=origin, ignored=ignored))
            await until(pilot, lambda: "pausing…" not in header(app))
            assert source.state.log[-1].text == f"pause requested ({origin}), in vain: {ignored}"


async def test_a_run_that_does_not_listen_is_shown_and_says_why_it_cannot_be_asked(run: StubRun) -> None:
    app, source = attach(run.directory)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "This run cannot be controlled: the run does not listen" in " ".join(notices(app)))
        assert "RUNNING" in header(app)
        await pilot.press("c")
        await until(pilot, lambda: "No checkpoint: the run does not listen" in " ".join(notices(app)))
        await until(pilot, lambda: "checkpoint" not in header(app))
        with closing(ControlServer(run.directory, run.control, well)):
            await pilot.press("c")
            await until(pilot, lambda: "checkpointing…" in header(app))
        assert [request.kind for request in asked(run.control)] == [Kind.CHECKPOINT]
        assert source.alive


@pytest.mark.parametrize("key", ["p", "c", "s", "r", "Q"])
async def test_read_only_refuses_with_a_sentence(key: str, run: StubRun) -> None:
    app, source = attach(run.directory, read_only=True)
    with closing(ControlServer(run.directory, run.control, well)):
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "RUNNING read-only" in header(app))
            await pilot.press(key)
            assert "This view is read-only: attach without --read-only to control the run." in " ".join(notices(app))
            assert not isinstance(app.screen, QuitDialog)
            footer = screen_text(app).splitlines()[-1]
            assert "↵ env" in footer
            assert not any(name in footer for name in ("pause", "checkpoint", "restore", "stop"))
            await pilot.press("q")
            assert has_left(app)
        assert asked(run.control) == []
        assert source.session.control.origin is None  # it has not connected


@pytest.mark.parametrize("key", ["q", "d", "ctrl+c"])
async def test_leaving_leaves_the_run(key: str, run: StubRun) -> None:
    app, _ = attach(run.directory)
    with closing(ControlServer(run.directory, run.control, well)):
        async with app.run_test(size=SIZE) as pilot:
            await until(pilot, lambda: "RUNNING" in header(app))
            assert "Q stop" in shown(app, Footer)
            assert shown(app, Footer).endswith("q detach")
            await pilot.press(key)
            assert has_left(app)
        assert asked(run.control) == []


async def test_the_end_of_the_run_is_asked_for_and_waited_for(run: StubRun) -> None:
    app, _ = attach(run.directory)
    with closing(ControlServer(run.directory, run.control, well)):
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "RUNNING" in header(app))
            await pilot.press("Q")
            assert all(text in screen_text(app) for text in ("The run is live. End it?", "q only detaches."))
            await pilot.press("escape")
            assert not has_left(app)
            await pilot.press("Q", "c")
            await until(pilot, lambda: "checkpointing, then l" in header(app))
            assert [request.kind for request in asked(run.control)] == [Kind.STOP]
            run.say(ev.RunEnded(outcome="stopped"))
            await until(pilot, lambda: has_left(app))


async def test_a_run_whose_process_is_gone_is_said_to_have_failed(tmp_path: Path) -> None:
    run = StubRun(tmp_path / "run")
    app, source = attach(run.directory)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "RUNNING" in header(app))
        run.end()
        await until(pilot, lambda: "FAILED the engine ended without a word" in header(app))
        assert not source.alive
        await pilot.press("p")
        assert "The run has ended: there is nothing to control." in " ".join(notices(app))


async def test_a_run_of_this_process_cannot_be_detached_from() -> None:
    app, session = live(example_run()[:30])
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("d")
        assert "This run trains in this process and ends with it" in " ".join(notices(app))
        assert "--detach" in " ".join(notices(app))
        assert not has_left(app)
        await pilot.press("Q", "c")
        assert [request.kind for request in session.asked()] == [Kind.STOP]


@pytest.mark.slow
async def test_an_engine_is_controlled_and_left_and_ended(tmp_path: Path) -> None:
    """A real one; what was asked, and by whom, stands in its recording."""
    engine = EngineThread(resolve(None, tiny(tmp_path, envs=2, rounds=500, checkpoint_every=0)), None)
    engine.start()
    while engine.directory is None or not (engine.directory / "control.sock").exists():
        assert engine.failure is engine.crash is None
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
    assert engine.alive
    origin = source.session.control.origin
    second, watching = attach(engine.directory)
    async with second.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: watching.state.steps_done > held + 2)
        await pilot.press("Q", "w")
        await until(pilot, lambda: has_left(second))
    engine.join()
    assert engine.crash is None
    *_, requested, ended = recorded(engine.directory)
    assert isinstance(ended, ev.RunEnded)
    assert isinstance(requested, ev.ControlRequested)
    assert (requested.kind, requested.origin) == ("abandon", origin)
