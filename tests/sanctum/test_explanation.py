"""The explanation of the last decision in the env detail: requested while it is shown, and read from recordings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.widgets.env_explanation import EnvExplanation
from tests.factory import stamp
from tests.sanctum.driving import emit, live, next_requests, opened, press, replay, screen_text, settle, shown
from tests.sanctum.population import population, step_events

EXPLAINED = ev.DecisionExplained(
    round=2,
    step=4,
    env=0,
    choices={
        "op": ev.HeadChoice(choice="germinate", probability=0.62),
        "slot": ev.HeadChoice(choice="mid", probability=0.5),
    },
    without={"progress": {"op": 0.6, "slot": 0.5}, "memory": {"op": 0.11, "slot": 0.44}},
)


async def test_explanation_is_requested_for_each_step_while_it_is_shown() -> None:
    app, session = live(population(envs=2, rounds=2, stop=4))
    async with opened(app, size=(80, 24)) as pilot:
        await pilot.press("enter")
        assert isinstance(app.screen, EnvDetailScreen)
        await settle(pilot)
        assert session.asked() == []
        await pilot.press("o")
        (request,) = await next_requests(pilot, session)
        assert (request.kind, request.env) == (RequestKind.EXPLAIN, 0)
        assert "the engine explains the decision after this step" in shown(app, EnvExplanation)
        await settle(pilot)
        assert session.asked() == []  # one request is pending

        await emit(pilot, session, EXPLAINED)
        lines = app.screen.query_one(EnvExplanation).text.splitlines()
        assert [line.split() for line in lines[:4]] == [
            ["probability", "in", "%", "op", "slot"],
            ["with", "all", "inputs", "62", "50"],
            ["without", "memory", "11", "44"],
            ["without", "progress", "60", "50"],
        ]
        assert "explanation of step 4 ─ germ" in screen_text(app)
        # The run continues: the decision of the step in progress is requested before that step ends.
        assert [request.kind for request in session.asked()] == [RequestKind.EXPLAIN]
        await emit(pilot, session, *step_events(2, 2, 5))
        assert session.asked() == []

        fifth = msgspec.structs.replace(EXPLAINED, step=5)
        await emit(pilot, session, ev.Paused(round=2, step=5, origin="keyboard"), fifth)
        assert "explanation of step 5" in screen_text(app)
        assert session.asked() == []  # the decision of the last step of a paused run is explained
        await pilot.press("o")
        assert not app.screen.query_one(EnvExplanation).display
        await emit(pilot, session, ev.Resumed(round=2, step=5, origin="keyboard"), *step_events(2, 2, 6))
        assert session.asked() == []


async def test_reason_of_a_refusal_is_shown_and_nothing_more_is_requested() -> None:
    app, session = live(population(envs=2, rounds=2, stop=4))
    async with opened(app) as pilot:
        await pilot.press("enter", "o")
        await next_requests(pilot, session)
        refused = ev.ControlRequested(kind="explain", origin="keyboard", env=0, ignored="it has no network")
        await emit(pilot, session, refused)
        assert shown(app, EnvExplanation) == "it has no network"
        await emit(pilot, session, *step_events(2, 2, 5))
        assert session.asked() == []
        await pilot.press("o", "o")  # ask again
        assert [request.kind for request in await next_requests(pilot, session)] == [RequestKind.EXPLAIN]


async def test_recording_shows_the_explanations_that_it_contains(tmp_path: Path) -> None:
    events = population(envs=2, rounds=2, stop=4)
    last = events[-1].seq
    app, playback = replay([*events, *stamp([EXPLAINED, *step_events(2, 2, 5)], first=last + 1)], tmp_path)
    async with opened(app) as pilot:
        playback.seek(last)
        await settle(pilot)
        await press(pilot, "enter", "o")
        assert "this step was not explained" in shown(app, EnvExplanation)
        playback.seek(last + 1)
        await settle(pilot)
        assert "without memory 11 44" in shown(app, EnvExplanation)
        playback.seek(0)
        await settle(pilot)  # there is no env before the run has started
