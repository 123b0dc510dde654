"""Scores without growth in the dashboard, and the simulations that it requests while cores are idle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from esper.recordings import events as ev
from esper.recordings.effects.change import WITHOUT_GROWTH
from esper.recordings.effects.messages import RoundsRequest, SimulationRequest, SimulationUpdate
from esper.recordings.effects.references import HostReference
from esper.recordings.effects.store import EffectStore
from esper.recordings.history.history import open_history
from esper.sanctum.app import SanctumApp
from esper.sanctum.idle_work import IdleWork
from esper.sanctum.widgets.env_story import EnvStory
from esper.sanctum.widgets.population_score import RoundScores, StepScores
from tests.factory import env_stepped, run_started, stamp
from tests.recordings.effects.growing import growing_run
from tests.recordings.effects.stored import simulated, store_effects
from tests.recordings.files.recordings import recording, write_segment
from tests.sanctum.driving import header, live, notices, opened, press, replay_of, resize, screen_text, settle, tick
from tests.sanctum.test_what_if import DROP, FakeProcess

NEXT_REQUEST = IdleWork.next_request


@pytest.fixture(autouse=True)
def _idle_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let idle work start fake processes, whatever other processes this machine runs."""
    monkeypatch.setattr("esper.sanctum.what_if.SimulationProcess", FakeProcess)
    monkeypatch.setattr("esper.sanctum.idle_work.IdleWork.next_request", NEXT_REQUEST)
    monkeypatch.setattr("esper.sanctum.idle_work.LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr("esper.sanctum.idle_work.os.getloadavg", lambda: (0.0, 0.0, 0.0))
    FakeProcess.last = FakeProcess(SimulationRequest(recording="", round=0, env=0))
    yield
    del FakeProcess.last


def own_task(events: list[ev.AnyEvent]) -> list[ev.AnyEvent]:
    """A run of a task that is the user's own code."""
    started, *others = events
    assert isinstance(started, ev.RunStarted)
    return [msgspec.structs.replace(started, task="own", task_code={"own.py": "0"}), *others]


def dashboard(folder: Path, events: list[ev.AnyEvent]) -> SanctumApp:
    """A replay of a run at its end."""
    write_segment(folder, 1, recording(stamp([*events, ev.RunEnded(outcome="done")])))
    app, playback = replay_of(open_history(folder))
    playback.seek_end()
    return app


def store_references(folder: Path, *rounds: int, differs_from: int | None = None) -> None:
    """Store references of 41.2 %."""
    for number in rounds:
        episode = store_effects(folder, number, 0, {}, differs_from)
        EffectStore(folder).add(simulated(episode, WITHOUT_GROWTH, 0.488))


def requested() -> SimulationRequest | RoundsRequest | None:
    """The request of the last process; None if none was started."""
    return FakeProcess.last.request if FakeProcess.last.request.recording else None


def finish(app: SanctumApp) -> None:
    """End the process, and look for work."""
    FakeProcess.last.messages.put(None)
    tick(app)


async def test_score_without_growth_is_in_header_charts_and_env_screen(tmp_path: Path) -> None:
    app = dashboard(tmp_path, growing_run(rounds=2))
    store_references(tmp_path, 1, 2)
    async with opened(app) as pilot:
        await settle(pilot)
        assert "median 90.0 %, 41.2 % without growth" in header(app)
        for panel in (RoundScores, StepScores):
            chart = app.screen.query_one(panel).chart()
            assert chart
            assert chart.curves[1].name == "○ without growth"
            assert list(chart.curves[1].values)[-1] == pytest.approx(0.412)
            assert "○" in app.screen.query_one(panel).text
            assert "○ without growth 41.2" in str(app.screen.query_one(panel).border_subtitle)
        await resize(pilot, (80, 24))
        assert "✓ no anomalies  90.0 %, 41.2 % without growth" in screen_text(app)
        await press(pilot, "enter")
        story = app.screen.query_one(EnvStory)
        assert "○ without growth 41.2" in str(story.border_subtitle) + str(story.border_title)


async def test_approximate_score_without_growth_carries_its_mark(tmp_path: Path) -> None:
    app = dashboard(tmp_path, growing_run(rounds=2))
    store_references(tmp_path, 1, differs_from=3)
    async with opened(app):
        assert "round 1: median 90.0 %, ≈41.2 % without growth" in header(app)  # the second is not known yet
        assert "without growth" not in str(app.screen.query_one(RoundScores).border_subtitle)


@pytest.mark.parametrize(("reason", "is_own"), [("needs --task FILE.py", True), ("needs torch", False)])
async def test_reason_for_no_reference_is_on_the_first_screens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, is_own: bool
) -> None:
    monkeypatch.setattr("esper.sanctum.idle_work.find_spec", lambda _: object() if is_own else None)
    app = dashboard(tmp_path, own_task(growing_run(rounds=2)) if is_own else growing_run(rounds=2))
    async with opened(app) as pilot:
        tick(app)
        assert requested() is None
        assert f"without growth: {reason}" in header(app)
        assert f"without growth: {reason}" in str(app.screen.query_one(RoundScores).border_subtitle)
        await resize(pilot, (80, 24))
        assert f"without growth: {reason}" in screen_text(app)
        await resize(pilot, (120, 40))
        await press(pilot, "enter")
        assert f"without growth: {reason}" in str(app.screen.query_one(EnvStory).border_subtitle)


async def test_idle_work_computes_references_then_effects_of_seeds_once(tmp_path: Path) -> None:
    app = dashboard(tmp_path, own_task(growing_run(rounds=11)))
    app.source.task = "own.py"
    async with opened(app) as pilot:
        requests: list[object] = []
        for _ in range(3):
            tick(app)
            request = requested()
            assert isinstance(request, RoundsRequest)
            assert (request.recording, request.task) == (str(tmp_path), "own.py")
            requests.append((request.aim, request.rounds))
            finish(app)
        assert requests == [
            ("references", list(range(11, 3, -1))), ("seeds", [11]), ("references", [3, 2, 1])
        ]  # fmt: skip
        last = FakeProcess.last
        tick(app)
        assert FakeProcess.last is last
        assert "without growth" not in header(app)
        await settle(pilot)


async def test_known_results_are_not_requested(tmp_path: Path) -> None:
    app = dashboard(tmp_path, growing_run(rounds=2))
    store_references(tmp_path, 1, 2)
    store_effects(tmp_path, 2, 0, {2: 0.1, 5: 0.1})
    async with opened(app) as pilot:
        await settle(pilot)
        await settle(pilot)
        tick(app)
        assert requested() is None


async def test_references_of_the_process_are_shown_and_its_failure_is_the_reason(tmp_path: Path) -> None:
    app = dashboard(tmp_path, growing_run(rounds=2))
    async with opened(app) as pilot:
        tick(app)
        FakeProcess.last.messages.put(SimulationUpdate(error="the task has changed"))
        FakeProcess.last.messages.put(None)
        await settle(pilot)
        assert "without growth: the task has changed" in header(app)
        assert notices(app) == []
        host = HostReference(round=2, envs=[0], scores=[0.1, 0.2], final_score=0.2, is_exact=True)
        last = FakeProcess.last
        tick(app)
        assert FakeProcess.last is last
        app.view.what_if.references[2] = [host]
        app.refresh_view()
        await settle(pilot)
        assert "20.0 % without growth" in header(app)


async def test_key_of_the_user_ends_idle_work_which_continues_afterwards(tmp_path: Path) -> None:
    app = dashboard(tmp_path, growing_run(rounds=2))
    async with opened(app, "enter") as pilot:
        tick(app)
        idle = FakeProcess.last
        assert not app.view.what_if.is_running
        await press(pilot, "x")
        assert idle.is_closed
        assert requested() == SimulationRequest(recording=str(tmp_path), round=2, env=0, without=[7])
        assert app.view.what_if.is_running
        finish(app)
        assert requested() == idle.request
    assert FakeProcess.last.is_closed


async def test_causes_of_a_drop_are_tested_without_a_key(tmp_path: Path) -> None:
    steps: list[ev.AnyEvent] = [env_stepped(0, 1, step, **change) for step, change in enumerate(DROP, 1)]
    found = ev.AnomalyFound(rule="accuracy drop", severity="error", text="fell", where="env 00", env=0, value=0.5)
    events = stamp([run_started(1, 1, 8), ev.RoundStarted(round=1), *steps, found])
    app = dashboard(tmp_path, events)
    async with opened(app):
        tick(app)
        assert requested() == SimulationRequest(recording=str(tmp_path), round=1, env=0, without=[5])
        finish(app)
        assert not app.view.what_if.is_running


async def test_live_run_that_needs_all_cores_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = 9.0
    monkeypatch.setattr("esper.sanctum.idle_work.available_cores", lambda: 4)
    monkeypatch.setattr("esper.sanctum.idle_work.os.getloadavg", lambda: (load, load, load))
    app, session = live(growing_run(rounds=2), recorded_in=tmp_path)
    async with opened(app) as pilot:
        tick(app)
        assert requested() is None
        load = 3.0
        tick(app)
        process = FakeProcess.last
        assert requested() == RoundsRequest(recording=str(tmp_path), rounds=[2, 1], aim="references")
        host = HostReference(round=2, envs=[0], scores=[0.1, 0.2], final_score=0.2, is_exact=True)
        process.messages.put(SimulationUpdate(references=[host]))
        await settle(pilot)
        assert "median 90.0 %, 20.0 % without growth" in header(app)
        load = 4.5
        tick(app)
        assert process.is_closed
        session.emit(ev.RunEnded(outcome="done"))
        tick(app)
        assert requested() == process.request
        assert not FakeProcess.last.is_closed
