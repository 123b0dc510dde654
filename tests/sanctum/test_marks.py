"""What the user decides about anomalies and marks: muted rules, seen anomalies, one kind of marks, and the scale."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from esper.recordings import events as ev
from esper.recordings.history.timeline import MarkKind
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.symbols import MARK_SYMBOLS
from esper.sanctum.widgets.problems import AnomalyStrip
from esper.sanctum.widgets.timeline import Timeline
from tests.factory import env_stepped, example_run, run_started, stamp
from tests.sanctum.driving import ROOMY, emit, live, notices, opened, press, replay, screen_text, settle, shown
from tests.sanctum.population import anomaly
from tests.sanctum.sessions import fall_silent


def found(env: int, rule: str) -> ev.AnomalyFound:
    return anomaly(env, f"env {env:02d} has {rule}", rule=rule, severity="warning")


RUN = stamp(
    [
        run_started(3),
        ev.RoundStarted(round=1),
        *[event for env in range(3) for event in (env_stepped(env), found(env, "noise" if env else "news"))],
        ev.PhaseTimed(round=1, step=1, wall=1.0, phases={}),
        env_stepped(1, step=2),
        found(1, "late"),
        ev.PhaseTimed(round=1, step=2, wall=1.0, phases={}),
    ]
)


async def test_muted_rule_is_not_counted_and_not_visited(tmp_path: Path) -> None:
    app, _ = replay(RUN, tmp_path, at_end=True)
    async with opened(app) as pilot:
        assert shown(app, AnomalyStrip).startswith("▲ 4")
        await press(pilot, "M")
        assert "Muted: late" in notices(app)[-1]
        assert shown(app, AnomalyStrip).startswith("▲ 3 1 rule muted")
        await press(pilot, "M")
        assert shown(app, AnomalyStrip) == "▲ 1 2 rules muted env 00 has news"
        await pilot.press("left_curly_bracket", "n")
        assert (app.view.selected_env, app.source.state.step) == (0, 1)
        await pilot.press("n")
        assert "No mark of the kind anomalies after this moment" in notices(app)[-1]
        await press(pilot, "M", "M")
        assert "There is no anomaly to mute. Press a to list" in notices(app)[-1]


async def test_anomaly_list_mutes_a_rule_and_marks_as_seen() -> None:
    app, _ = live(RUN)
    async with opened(app, "a", "down", "M") as pilot:
        assert "Anomalies: 4 active, 0 ended, 1 rule muted" in screen_text(app)
        assert screen_text(app).count(", muted") == 2
        await press(pilot, "M", "space")
        assert "Anomalies: 4 active (1 seen), 0 ended" in screen_text(app)
        await press(pilot, "escape")
        assert shown(app, AnomalyStrip).startswith("▲ 3 new, 1 seen")
        await press(pilot, "a", "space", "down", "down", "space", "down", "space", "escape")
        assert shown(app, AnomalyStrip) == "✓ no new anomalies, 4 seen"


async def test_breakdown_of_an_env_is_one_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    app, session = live(RUN[:4], bell=True)
    rung: list[int] = []
    monkeypatch.setattr(SanctumApp, "bell", lambda _: rung.append(1))
    async with opened(app, size=ROOMY) as pilot:
        await emit(pilot, session, found(2, "exploding gradient"))
        app.update_stats(0.0)
        rolled_back = anomaly(2, "env 02: rolled back: the loss is NaN", rule="governor rollback")
        await emit(pilot, session, rolled_back)
        app.update_stats(100.0)
        assert rung == [1]
        assert shown(app, AnomalyStrip).startswith("✖ 2 env 02: rolled back: the loss is NaN · env 00 has news")
        await press(pilot, "a")
        text = screen_text(app)
        assert "Anomalies: 2 active, 0 ended" in text
        assert text.index("▲ env 02 has exploding gradient") < text.index("└ ✖ env 02: rolled back: the loss is NaN")
        await press(pilot, "space", "escape")
        assert shown(app, AnomalyStrip).startswith("▲ 1 new, 1 seen")
        await press(pilot, "a", "M", "escape")
        assert app.view.muted_rules == {"exploding gradient"}
        assert shown(app, AnomalyStrip).startswith("▲ 1 new, 1 seen")


async def test_rule_of_a_silent_engine_can_be_muted_and_unmuted() -> None:
    app, _ = live(RUN)
    async with opened(app) as pilot:
        fall_silent(app)
        assert app.view.status.anomaly is not None
        await pilot.press("a")
        await pilot.pause()
        assert "Anomalies: 5 active, 0 ended" in screen_text(app)
        assert "no event from the engine for 1000 s" in screen_text(app)
        await pilot.press("space", "M", "escape")
        assert app.view.muted_rules == {"stale telemetry"}
        assert app.view.seen_anomalies == set()  # no event has reported it
        await pilot.press("a", "M")
        assert app.view.muted_rules == set()


async def test_muted_rule_without_an_anomaly_can_be_unmuted(tmp_path: Path) -> None:
    app, _ = replay(RUN, tmp_path, at_end=True)
    async with opened(app) as pilot:
        await pilot.press("M", "left_curly_bracket", "a")
        await pilot.pause()
        assert app.view.muted_rules == {"late"}
        assert "no anomaly of this rule" in screen_text(app)
        await pilot.press("end", "M", "enter")
        assert app.view.muted_rules == set()
        assert app.source.state.seq <= 1  # there is no moment to go to


async def test_enter_skips_a_silent_engine_and_shows_the_first_anomaly() -> None:
    app, _ = live(RUN)
    async with opened(app) as pilot:
        fall_silent(app)
        await settle(pilot)
        app.screen.query_one(AnomalyStrip).focus()
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, EnvDetailScreen)
        assert app.view.selected_env == 1


async def test_muted_rule_does_not_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    app, session = live(RUN, bell=True)
    rung: list[int] = []
    monkeypatch.setattr(SanctumApp, "bell", lambda _: rung.append(1))
    async with opened(app) as pilot:
        await pilot.press("M")
        app.update_stats(0.0)
        rung.clear()
        again = [ev.AnomalyEnded(rule="late", where="env 1", env=1), found(1, "late")]
        session.say(*stamp(again, first=len(RUN) + 1, start=RUN[-1].time + 1000))
        await settle(pilot)
        app.update_stats(100.0)
        assert rung == []


async def test_marks_can_be_limited_to_a_kind(tmp_path: Path) -> None:
    run = example_run(rounds=3)
    app, playback = replay(run, tmp_path)
    async with opened(app, size=(120, 52)) as pilot:
        assert "marks: anomalies" in shown(app, Timeline)
        app.screen.query_one(Timeline).focus()
        await press(pilot, "f", "f")
        text = shown(app, Timeline)
        assert "marks: checkpoints" in text
        assert MARK_SYMBOLS[MarkKind.CHECKPOINT][0].glyph in text
        assert MARK_SYMBOLS[MarkKind.NOT_FINITE][0].glyph not in text
        checkpoints = [event.round for event in run if isinstance(event, ev.CheckpointSaved)]
        visited: list[int] = []
        while not any("No mark of the kind checkpoints" in notice for notice in notices(app)):
            await pilot.press("n")
            visited.append(app.source.state.round)
        assert list(dict.fromkeys(visited)) == checkpoints
        assert playback.position < playback.length


async def test_timeline_has_anomalies_and_ticks_of_rounds_first(tmp_path: Path) -> None:
    app, _ = replay(example_run(rounds=3), tmp_path)
    async with opened(app, size=(120, 30)):
        track = shown(app, Timeline)
        assert track.count("┼") == 2  # the playhead covers the first
        assert "✖" in track
        assert not {"C", "F", "g", "x"} & set(track)
    many = [event for round_ in range(1, 401) for event in (ev.RoundStarted(round=round_), env_stepped(0, round_))]
    app, _ = replay(stamp([run_started(1, 400), *many]), tmp_path)
    async with opened(app, size=(120, 30)):
        assert 5 < shown(app, Timeline).count("┼") <= 20


async def test_legend_replaces_the_anomaly_row_of_the_focused_timeline(tmp_path: Path) -> None:
    app, _ = replay(example_run(), tmp_path)
    async with opened(app) as pilot:
        assert "marks: anomalies" not in shown(app, Timeline)
        app.screen.query_one(Timeline).focus()
        await pilot.pause()
        await settle(pilot)
        assert "marks: anomalies f next kind" in shown(app, Timeline)
        assert "not finite" in shown(app, Timeline)


async def test_timeline_of_a_live_run_keeps_its_scale(tmp_path: Path) -> None:
    run = [msgspec.structs.replace(event, time=1e9 + event.seq) for event in example_run(rounds=6)]
    half = len(run) // 2
    app, session = live(run[:half], recorded_in=tmp_path)
    async with opened(app, "left", "left", size=(120, 30)) as pilot:
        before = app.screen.query_one(Timeline).text

        async def grow(events: int) -> str:
            session.record(tmp_path, run[: half + events])
            session.say(*run[half : half + events])
            await settle(pilot)
            return app.screen.query_one(Timeline).text

        after = await grow(half // 5)
        assert "live +" in after
        assert after.split(" of ")[0] == before.split(" of ")[0]
        later = await grow(half // 2)
        assert later.split(" of ")[0] != before.split(" of ")[0]


async def test_why_explains_only_this_episode(tmp_path: Path) -> None:
    run = stamp(
        [
            run_started(2),
            ev.RoundStarted(round=1),
            env_stepped(0),
            found(0, "exploding gradient"),
            ev.RoundStarted(round=2),
            env_stepped(0, 2),
            env_stepped(1, 2),
            found(1, "stalled env"),
            ev.AnomalyEnded(rule="stalled env", where="env 1", env=1),
        ]
    )
    app, _ = replay(run, tmp_path, at_end=True)
    async with opened(app, "W") as pilot:
        assert "Env 00 is healthy: nothing wrong in this episode" in screen_text(app)
        assert "an earlier episode: round 1, exploding gradient; that network is gone" in screen_text(app)
        await press(pilot, "escape", "down", "W")
        assert "Env 01: no cause found of the anomalies of this episode" in screen_text(app)
        assert "this episode: round 2, stalled env, ended" in screen_text(app)
