"""The score has the name that the task gives it, on the screens, in the console and in summaries."""

from __future__ import annotations

import msgspec

from esper.cli.console import format_summary
from esper.telemetry import events as ev
from esper.telemetry.state import RunState
from tests.factory import example_run
from tests.sanctum.driving import live, screen_text, settle


def renamed() -> list[ev.AnyEvent]:
    """The example run, of a task whose score is the recall and that has a further metric."""
    events: list[ev.AnyEvent] = []
    for event in example_run():
        if isinstance(event, ev.RunStarted):
            event = msgspec.structs.replace(event, score="recall")
        elif isinstance(event, ev.EnvStepped):
            event = msgspec.structs.replace(event, metrics={"margin": 0.25})
        events.append(event)
    return events


async def test_every_screen_uses_the_name_of_the_score() -> None:
    app, _ = live(renamed())
    async with app.run_test(size=(160, 48)) as pilot:
        await settle(pilot)
        overview = screen_text(app)
        assert "validation recall %" in overview
        assert "accuracy" not in overview
        await pilot.press("enter")
        await settle(pilot)
        detail = screen_text(app)
        assert "─ recall %" in detail
        assert "train reca" in detail
        assert "margin" in detail
        assert "recall lost without it, points" in detail
        assert "accuracy" not in detail


def test_console_and_summary_use_the_name_of_the_score() -> None:
    state = RunState()
    for event in renamed():
        state.apply(event)
    text = format_summary(state)
    assert "median recall" in text
    assert "best recall" in text
    assert "accuracy" not in text
