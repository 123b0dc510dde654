"""The effects of decisions in the dashboard: known ones, and those that another process computes."""

from __future__ import annotations

import queue
from pathlib import Path

import msgspec
import pytest

from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.common.score_scale import ScoreScale
from esper.recordings import events as ev
from esper.recordings.effects.change import without_decision
from esper.recordings.effects.messages import SimulationRequest, SimulationUpdate
from esper.recordings.effects.store import RESULTS_FILE
from esper.recordings.history.history import open_history
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.screens.growth import BlueprintTable
from esper.sanctum.screens.moment_lists import RootCauseList
from esper.sanctum.what_if import SimulationProcess
from esper.sanctum.widgets.env_decision import EnvDecision
from esper.sanctum.widgets.env_story import EnvStory
from tests.factory import env_stepped, run_started, stamp
from tests.recordings.effects.growing import decided, growing_run
from tests.recordings.effects.stored import simulated, store_effects
from tests.recordings.files.recordings import recording, write_segment
from tests.recordings.health.episodes import GOOD, blended, choices, cull, removed
from tests.sanctum.driving import (
    ROOMY,
    SIZE,
    live,
    notices,
    opened,
    press,
    replay_of,
    resize,
    screen_text,
    settle,
    shown,
    until,
)


class FakeProcess:
    """A process whose messages the test sends."""

    last: FakeProcess

    def __init__(self, request: SimulationRequest) -> None:
        self.request = request
        self.messages: queue.SimpleQueue[SimulationUpdate | None] = queue.SimpleQueue()
        self.is_closed = False
        FakeProcess.last = self

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.sanctum.what_if.SimulationProcess", FakeProcess)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Recording of an env that plants two seeds."""
    write_segment(tmp_path, 1, recording(growing_run()))
    return tmp_path


def dashboard(run: Path) -> SanctumApp:
    """A replay at the end."""
    app, playback = replay_of(open_history(run))
    playback.seek_end()
    return app


def rows(app: SanctumApp) -> list[list[str]]:
    """Words of each row of the list of decisions."""
    lines = app.screen.query_one(EnvDecision).text.splitlines()
    heading = next((number for number, line in enumerate(lines) if line.startswith(" decisions")), len(lines))
    return [line.split() for line in lines[heading + 1 :] if line]


def curves(app: SanctumApp) -> list[str]:
    """Names of the curves of the story."""
    chart = app.screen.query_one(EnvStory).chart()
    return [] if chart is None else [curve.name for curve in chart.curves]


async def test_each_decision_is_a_row_with_its_known_effect(run: Path) -> None:
    store_effects(run, 1, 0, {2: 0.254, 4: 0.25, 5: -0.003})
    async with opened(app := dashboard(run), "enter") as pilot:
        wide = rows(app)
        assert wide == [
            ["2", "g", "depthwise", "in", "early", "+25.4", "+0.254"],
            ["4", "b", "advance", "in", "early", "+25.0", "+0.250"],
            ["5", "g", "norm", "in", "mid", "−0.3", "−0.003"],
            ["7", "x", "cull", "in", "mid", "–", "–"],
        ]
        assert "decisions by effect pp" in shown(app, EnvDecision)
        await resize(pilot, (80, 24))
        assert rows(app) == [row[:-1] for row in wide]


async def test_effect_that_lowers_an_error_is_listed_first(tmp_path: Path) -> None:
    started, *others = growing_run()
    assert isinstance(started, ev.RunStarted)
    started = msgspec.structs.replace(started, score_name="rmse", score_scale=ScoreScale(best="low", high=None))
    write_segment(tmp_path, 1, recording([started, *others]))
    store_effects(tmp_path, 1, 0, {2: 0.254, 4: 0.25, 5: -0.003})
    async with opened(app := dashboard(tmp_path), "enter"):
        assert [row[0] for row in rows(app)] == ["5", "4", "2", "7"]
        assert "decisions by effect score" in shown(app, EnvDecision)


async def test_selected_decision_is_compared_with_the_episode_without_it(run: Path) -> None:
    store_effects(run, 1, 0, {2: 0.254})
    async with opened(app := dashboard(run), "enter") as pilot:
        story = app.screen.query_one(EnvStory)
        await press(pilot, "left_square_bracket")  # the last decision
        assert rows(app)[-1][:3] == ["▸", "7", "x"]
        assert "press x for its effect, A for all effects" in shown(app, EnvDecision)
        assert curves(app) == ["accuracy"]
        await press(pilot, *["left_square_bracket"] * 5)  # the first
        for size in (SIZE, (80, 24)):
            await resize(pilot, size)
            assert rows(app)[0][:3] == ["▸", "2", "g"]
            text = "without it: 64.6 % instead of 90.0 %, return +0.196 instead of +0.450"
            assert text in shown(app, EnvDecision)
            assert curves(app) == ["accuracy", "without"]
            chart = story.chart()
            assert chart is not None
            assert list(chart.curves[1].xs) == list(chart.curves[0].xs)
            assert "without" in str(story.border_subtitle if size == SIZE else story.border_title)
        await press(pilot, "right_square_bracket")
        assert rows(app)[1][:2] == ["▸", "4"]
        await press(pilot, "escape")
        assert not isinstance(app.screen, EnvDetailScreen)


async def test_approximate_effects_carry_a_mark_and_the_reason(run: Path) -> None:
    store_effects(run, 1, 0, {2: 0.254}, differs_from=3)
    async with opened(app := dashboard(run), "enter", *["left_square_bracket"] * 4):
        assert rows(app)[0][-2:] == ["≈+25.4", "≈+0.254"]
        assert "≈ approximate" in str(app.screen.query_one(EnvDecision).border_subtitle)
        assert "≈ approximate: score differs from step 3 on (no cause was found" in shown(app, EnvDecision)


async def test_key_computes_the_selected_decision_in_a_process(run: Path) -> None:
    async with opened(app := dashboard(run), "enter", size=(80, 24)) as pilot:
        await press(pilot, "left_square_bracket", "left_square_bracket", "o")
        assert not app.screen.query_one(EnvDecision).region
        await press(pilot, "x")
        assert app.screen.query_one(EnvDecision).region
        process = FakeProcess.last
        expected = SimulationRequest(recording=str(run), round=1, env=0, without=[5])
        assert process.request == expected
        assert "Effects in env 00, round 1: 0 of 1, starting… Esc cancel" in shown(app, EnvDecision)
        await press(pilot, "A")
        assert "Effects are being computed already." in notices(app)

        process.messages.put(SimulationUpdate(decisions=1))
        await settle(pilot)
        for size in ((60, 15), (80, 24)):
            await resize(pilot, size)
            assert "round 1: 0 of 1, starting…" in shown(app, EnvDecision)
        process.messages.put(SimulationUpdate(progress=(0, 40)))
        process.messages.put(SimulationUpdate(progress=(20, 40)))
        await settle(pilot)
        assert "0 of 1, 50 %, 0s left" in shown(app, EnvDecision)
        episode = store_effects(run, 1, 0, {})
        process.messages.put(SimulationUpdate(episode=episode))
        process.messages.put(SimulationUpdate(simulation=simulated(episode)))
        process.messages.put(SimulationUpdate(simulation=simulated(episode, without_decision(episode, 5), -0.02)))
        process.messages.put(None)
        await settle(pilot)
        assert rows(app)[0] == ["▸", "5", "g", "norm", "in", "mid", "−2.0"]  # the only known effect
        assert "without it: 92.0 % instead of 90.0 %" in shown(app, EnvDecision)
        await press(pilot, "x")  # it is known
        assert FakeProcess.last is process


async def test_escape_cancels_the_computation_and_leaving_ends_it(run: Path) -> None:
    app = dashboard(run)
    async with opened(app, "enter", "A") as pilot:
        first = FakeProcess.last
        assert first.request.without is None
        assert not first.is_closed
        await press(pilot, "escape")
        assert first.is_closed
        assert isinstance(app.screen, EnvDetailScreen)
        assert "Effects in env" not in shown(app, EnvDecision)
        await press(pilot, "x")
        assert FakeProcess.last is not first
    assert FakeProcess.last.is_closed


async def test_failure_of_the_process_is_reported(run: Path) -> None:
    app = dashboard(run)
    async with opened(app, "enter", "x") as pilot:
        FakeProcess.last.messages.put(SimulationUpdate(error="the task t is not built in; name it with --task FILE.py"))
        FakeProcess.last.messages.put(None)
        await settle(pilot)
        assert "Effects: the task t is not built in; name it with --task FILE.py" in notices(app)
        assert not app.view.what_if.is_running


async def test_page_of_a_browser_shows_effects_but_computes_none(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SanctumApp, "is_web", True)
    store_effects(run, 1, 0, {2: 0.254})
    app = dashboard(run)
    async with opened(app, "enter", "x"):
        assert any("Effects cannot be computed from the browser" in notice for notice in notices(app))
        assert not app.view.what_if.is_running
        assert rows(app)[0][-1] == "+0.254"


async def test_live_run_shows_the_effects_up_to_its_present_step(tmp_path: Path) -> None:
    events = [event for event in growing_run(ends=False) if getattr(event, "step", 0) <= 6]
    app, session = live(events, recorded_in=tmp_path)
    async with opened(app, "enter", "x") as pilot:
        process = FakeProcess.last
        assert process.request.without == [5]
        episode = store_effects(tmp_path, 1, 0, {5: -0.02})
        process.messages.put(SimulationUpdate(episode=episode))
        process.messages.put(None)
        await settle(pilot)
        assert rows(app)[0][-2:] == ["−2.0", "−0.020"]
        assert "up to step 6" in str(app.screen.query_one(EnvDecision).border_subtitle)
        session.emit(*decided(1, 7))
        await settle(pilot)
        assert rows(app)[0][-2:] == ["−2.0", "−0.020"]
        assert rows(app)[-1][1:3] == ["x", "cull"]
        session.emit(ev.RoundStarted(round=2))
        await settle(pilot)
        assert "no step yet in this round" in shown(app, EnvDecision)


async def test_stored_effects_of_an_undone_episode_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "run").mkdir()
    write_segment(tmp_path / "other", 1, recording(growing_run(steps=8)))
    write_segment(tmp_path / "run", 1, recording(growing_run()))
    store_effects(tmp_path / "other", 1, 0, {2: 0.254})
    (tmp_path / "other" / RESULTS_FILE).rename(tmp_path / "run" / RESULTS_FILE)
    app = dashboard(tmp_path / "run")
    async with opened(app, "enter", size=(80, 24)):
        assert rows(app)[0] == ["2", "g", "depthwise", "in", "early"]


async def test_early_decisions_of_a_long_episode_come_from_the_recording(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(growing_run(steps=300)))
    app = dashboard(tmp_path)
    async with opened(app, "enter", size=(80, 24)):
        assert rows(app)[0] == ["2", "g", "depthwise", "in", "early"]


async def test_growth_screen_has_the_worth_of_each_blueprint(tmp_path: Path) -> None:
    """The best net effect comes first. Where the table is narrow, only that effect has its interval."""
    write_segment(tmp_path, 1, recording(growing_run(rounds=2)))
    store_effects(tmp_path, 1, 0, {2: -0.2, 5: 0.254})
    store_effects(tmp_path, 2, 0, {5: 0.254}, differs_from=3)
    app = dashboard(tmp_path)
    async with opened(app, "3", size=ROOMY) as pilot:
        table = app.screen.query_one(BlueprintTable)
        await until(pilot, lambda: "≈+0.254" in table.text)
        heading, *rows = (line.split() for line in table.text.splitlines() if line)
        assert heading[:6] == ["blueprint", "net", "return", "gain", "rent", "n"]
        assert "by net return ↓" in screen_text(app)
        assert rows[0][1:] == [
            "norm", "≈+0.254", "[+0.254,", "+0.254]", "≈+0.274", "[+0.274,", "+0.274]",
            "≈+0.020", "[+0.020,", "+0.020]", "2", "2", "0", "0", "–",
        ]  # fmt: skip
        assert rows[1][1:6] == ["depthwise", "−0.200", "−0.180", "+0.020", "1"]
        for size, cells in (((110, 40), ["[+0.254,", "+0.254]", "≈+0.274", "≈+0.020"]), ((80, 24), ["≈+0.274"])):
            await resize(pilot, size)
            row = next(line.split() for line in table.text.splitlines() if "norm" in line)
            assert row[1 : 3 + len(cells)] == ["norm", "≈+0.254", *cells]


@pytest.mark.slow
async def test_effect_of_a_real_run_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.sanctum.what_if.SimulationProcess", SimulationProcess)
    program = "from esper.studies.simulation import process; process.lower_priority = lambda: None; process.main()"
    monkeypatch.setattr("esper.sanctum.what_if._PROGRAM", program)  # tests run on busy machines
    options = ("--task", "digits", "--policy", "plan", "--plan", "1:norm@early", "--training.samples-per-epoch", "64")
    size = ("--envs", "1", "--steps", "3", "--rounds", "1", "--devices", "cpu:0")
    assert main(["--no-tui", *size, *options, "--telemetry-dir", str(tmp_path / "runs")]) == EXIT_OK
    (run,) = (tmp_path / "runs").iterdir()
    app = dashboard(run)
    async with opened(app, "enter", "x") as pilot:
        await until(pilot, lambda: not app.view.what_if.is_running)
        await settle(pilot)
        assert "without it" in shown(app, EnvDecision)
        assert notices(app) == []
    assert (run / RESULTS_FILE).exists()


CULLED: dict[str, object] = {"score": 0.5, "train_score": 0.5}
DROP = [*GOOD, blended(0.5) | cull("5"), blended(0.3), blended(0.1), removed(**CULLED)]
"""Steps of an episode in which a slow cull lets the score fall in step 8."""


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        (-0.25, "confirmed: without it −5.0 pp instead of −30.0 pp"),
        (-0.1, "refuted: without it −20.0 pp instead of −30.0 pp"),
    ],
)
async def test_cause_is_tested_without_its_decision(tmp_path: Path, lost: float, verdict: str) -> None:
    steps: list[ev.AnyEvent] = [env_stepped(0, 1, step, **change) for step, change in enumerate(DROP, 1)]
    write_segment(tmp_path, 1, recording(stamp([run_started(1, 1, 8), ev.RoundStarted(round=1), *steps])))
    app = dashboard(tmp_path)
    async with opened(app, "W", size=(80, 24)) as pilot:
        assert isinstance(app.screen, RootCauseList)
        assert "Likely cause, env 00" in screen_text(app)
        assert "x test" in screen_text(app)
        await press(pilot, "x")
        process = FakeProcess.last
        assert process.request.without == [5]
        await until(pilot, lambda: "starting…" in screen_text(app))
        episode = store_effects(tmp_path, 1, 0, {5: lost}, differs_from=2)
        process.messages.put(SimulationUpdate(episode=episode))
        process.messages.put(None)
        await until(pilot, lambda: f"≈{verdict}" in screen_text(app))
        await press(pilot, "x")
        assert FakeProcess.last is process  # it is known
        await press(pilot, "escape", "enter")
        assert "decision ─ step 5" in str(app.screen.query_one(EnvDecision).border_title)
        assert shown(app, EnvDecision).startswith("x cull")


async def test_confirmed_cause_comes_first_and_no_symptom_is_older(tmp_path: Path) -> None:
    """A batch is skipped in step 6: a symptom of the cull in step 5, but not of the new alpha in step 7."""
    heads = choices(slot="mid", style="linear_add", alpha_target="0.7", alpha_speed="0", alpha_curve="linear")
    set_alpha: dict[str, object] = {"op": "set_alpha", "target": "mid", "decision": heads}
    course = [*GOOD, blended(0.3, score=0.79) | cull("5"), blended(0.2, score=0.79, skipped_batches=1)]
    course += [blended(0.7, score=0.79) | set_alpha, blended(0.7) | CULLED]
    steps: list[ev.AnyEvent] = [env_stepped(0, 1, step, **change) for step, change in enumerate(course, 1)]
    write_segment(tmp_path, 1, recording(stamp([run_started(1, 1, 8), ev.RoundStarted(round=1), *steps])))
    app = dashboard(tmp_path)
    async with opened(app, "W", "x") as pilot:
        await until(pilot, lambda: "1 set alpha of norm in mid: alpha 0.3 → 0.7 in step 7" in screen_text(app))
        assert "2 cull norm in mid: alpha 0.5 → 0.3 in step 5" in screen_text(app)
        assert "skipped" not in screen_text(app)
        assert FakeProcess.last.request.without == [7, 5]
        episode = store_effects(tmp_path, 1, 0, {7: 0.0, 5: -0.25})
        FakeProcess.last.messages.put(SimulationUpdate(episode=episode))
        FakeProcess.last.messages.put(None)
        await until(pilot, lambda: "1 cull norm in mid" in screen_text(app))
        text = screen_text(app)
        assert text.index("confirmed: without it") < text.index("2 set alpha") < text.index("refuted: without it")
        assert "1 batch skipped because of an overflow" in text


async def test_escape_cancels_the_test_of_a_cause(tmp_path: Path) -> None:
    steps: list[ev.AnyEvent] = [env_stepped(0, 1, step, **change) for step, change in enumerate(DROP, 1)]
    app, _ = live(stamp([run_started(1, 1, 8), ev.RoundStarted(round=1), *steps]), recorded_in=tmp_path)
    async with opened(app, "W", "x") as pilot:
        assert not FakeProcess.last.is_closed
        await press(pilot, "escape")
        assert FakeProcess.last.is_closed
        assert isinstance(app.screen, RootCauseList)
        await press(pilot, "escape")
        assert not isinstance(app.screen, RootCauseList)


async def test_growth_screen_shows_the_plantings_that_pay(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(growing_run(rounds=3)))
    async with opened(app := dashboard(tmp_path), "3", size=ROOMY) as pilot:
        await until(pilot, lambda: "plantings that pay –" in shown(app, BlueprintTable))
        assert "--rounds 1-3 --sample 32" in shown(app, BlueprintTable)
        await resize(pilot, (80, 24))
        assert "plantings that pay –" in shown(app, BlueprintTable)
        assert "--sample 32" not in shown(app, BlueprintTable)
        store_effects(tmp_path, 1, 0, {2: 0.3, 5: -0.1})
        store_effects(tmp_path, 2, 0, {2: 0.3})  # not complete
        store_effects(tmp_path, 3, 0, {2: 0.3, 5: 0.1}, differs_from=3)
        await until(pilot, lambda: "plantings that pay ≈3 of 4, ≈75% [" in shown(app, BlueprintTable))
        assert "(1 of 2 episodes exact)" in shown(app, BlueprintTable)
        await press(pilot, "left_curly_bracket")
        await until(pilot, lambda: "plantings that pay" not in shown(app, BlueprintTable))  # before the first planting
