"""The score has the name that the task gives it, on the screens, in the console and in summaries."""

from __future__ import annotations

from pathlib import Path

import msgspec

from esper.cli.console import format_summary
from esper.recordings import events as ev
from esper.recordings.state.state import RunState
from esper.sanctum.screens.checkpoint_picker import CheckpointPicker
from tests.factory import example_run
from tests.sanctum.driving import live, opened, press, screen_text


def renamed(score: str = "recall") -> list[ev.AnyEvent]:
    """The example run, of a task whose score has this name and that has a further metric."""
    events: list[ev.AnyEvent] = []
    for event in example_run():
        if isinstance(event, ev.RunStarted):
            event = msgspec.structs.replace(event, score_name=score)
        elif isinstance(event, ev.EnvStepped):
            event = msgspec.structs.replace(event, metrics={"margin": 0.25})
        events.append(event)
    return events


async def test_every_screen_uses_the_name_of_the_score() -> None:
    app, _ = live(renamed())
    async with opened(app, size=(160, 48)) as pilot:
        overview = screen_text(app)
        assert "validation recall %" in overview
        assert "accuracy" not in overview
        await press(pilot, "enter")
        detail = screen_text(app)
        assert "─ recall %" in detail
        assert "train reca" in detail
        assert "margin" in detail
        assert "recall lost without it, pp" in detail
        assert "accuracy" not in detail


async def test_score_name_with_markup_opens_the_restore_dialog(tmp_path: Path) -> None:
    events = renamed("r@1[/]")
    running = events[:-1]
    app, session = live(running)
    session.keep(tmp_path, running)
    async with opened(app) as pilot:
        await pilot.press("r")
        assert isinstance(app.screen, CheckpointPicker)
        assert "r@1[/] %" in screen_text(app)


def test_console_and_summary_use_the_name_of_the_score() -> None:
    state = RunState()
    for event in renamed():
        state.apply(event)
    text = format_summary(state)
    assert "median recall" in text
    assert "best recall" in text
    assert "accuracy" not in text
