"""Every screen of a run on a family of tasks, whose envs have different slots."""

from __future__ import annotations

import pytest

from esper.recordings import events as ev
from esper.sanctum.widgets.env_story import EnvStory
from tests.runs import LiveRun, recorded
from tests.sanctum.driving import live, opened, press, screen_text


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[ev.AnyEvent]:
    """Two rounds of eight envs, without the end of the run."""
    options = {"task": "digits_family", "policy": "full", "envs": 8, "rounds": 2, "steps": 6}
    run = LiveRun(tmp_path_factory.mktemp("family"), **options).start()
    run.finish()
    return recorded(run.run.directory)[:-1]


@pytest.mark.parametrize("size", [(60, 15), (120, 40), (200, 60)])
async def test_every_screen_shows_envs_with_different_slots(events: list[ev.AnyEvent], size: tuple[int, int]) -> None:
    contexts = {event.env: event for event in events if isinstance(event, ev.EpisodeStarted)}
    assert len({event.structure for event in contexts.values()}) >= 3
    app, _ = live(events)
    async with opened(app, size=size) as pilot:
        for key in "123456":
            await press(pilot, key)
            assert len(screen_text(app).strip()) > 200
        await press(pilot, "1", "enter")
        for number in range(8):
            title = str(app.screen.query_one(EnvStory).border_title)
            assert size[0] < 100 or contexts[number].structure in title  # a small screen has no borders
            await press(pilot, "down")
