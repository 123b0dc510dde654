"""A run on a family of tasks, whose envs have different slots: every screen, and structures in the env table."""

from __future__ import annotations

from statistics import median

import pytest

from esper.recordings import events as ev
from esper.recordings.events.sentences import describe_context
from esper.sanctum.widgets.env_columns import choose_layout, sortable_columns
from esper.sanctum.widgets.env_map import EnvMap
from esper.sanctum.widgets.env_story import EnvStory
from esper.sanctum.widgets.env_summary import summary_labels
from tests.runs import LiveRun, recorded
from tests.sanctum.driving import ROOMY, SIZE, live, opened, press, resize, screen_text


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[ev.AnyEvent]:
    """A round of eight envs, without the end of the run."""
    options = {"task": "digits_family", "policy": "full", "envs": 8, "rounds": 1, "steps": 4}
    run = LiveRun(tmp_path_factory.mktemp("family"), **options).start()
    run.finish()
    return recorded(run.run.directory)[:-1]


async def test_every_screen_shows_envs_with_different_slots(events: list[ev.AnyEvent]) -> None:
    contexts = {event.env: event for event in events if isinstance(event, ev.EpisodeStarted)}
    assert len({event.structure for event in contexts.values()}) >= 3
    app, _ = live(events)
    async with opened(app) as pilot:
        for size in ((60, 15), SIZE):
            await resize(pilot, size)
            for key in "123456":
                await press(pilot, key)
                assert len(screen_text(app).strip()) > 200, (key, size)
        await press(pilot, "1", "enter")
        for number in range(8):
            assert contexts[number].structure in str(app.screen.query_one(EnvStory).border_title)
            await press(pilot, "down")


def started_of(events: list[ev.AnyEvent]) -> ev.RunStarted:
    started = events[0]
    assert isinstance(started, ev.RunStarted)
    return started


def test_medians_are_by_structure_if_they_fit(events: list[ev.AnyEvent]) -> None:
    started = started_of(events)
    names = [structure.name for structure in started.structures]
    assert summary_labels(started, 4) == names
    assert summary_labels(started, 3) == ["median", "min", "max"]
    assert "structure" in sortable_columns(started)


@pytest.mark.parametrize(("width", "shown"), [(60, False), (200, True)])
def test_column_of_structures_is_shown_where_it_fits(events: list[ev.AnyEvent], width: int, shown: bool) -> None:
    assert bool(choose_layout(width, started_of(events)).structure) is shown


async def test_each_row_has_its_structure_and_each_structure_its_median(events: list[ev.AnyEvent]) -> None:
    contexts = {event.env: event.structure for event in events if isinstance(event, ev.EpisodeStarted)}
    steps = {event.env: event for event in events if isinstance(event, ev.EnvStepped)}
    app, _ = live(events)
    async with opened(app, size=ROOMY):
        lines = screen_text(app).splitlines()
    rows = [line.split("││")[0] for line in lines]
    for env, structure in contexts.items():
        (row,) = [line for line in rows if line[2:4].isdigit() and int(line[2:4]) == env]
        assert structure in row.split()
    for structure in set(contexts.values()):
        middle = 100 * median(steps[env].score for env in contexts if contexts[env] == structure)
        (summary,) = [line for line in rows if line.startswith("│med") and structure in line]
        assert abs(float(summary.split()[1]) - middle) <= 0.051


async def test_env_map_groups_envs_of_a_family_by_structure_and_context(events: list[ev.AnyEvent]) -> None:
    contexts = {event.env: event for event in events if isinstance(event, ev.EpisodeStarted)}
    app, _ = live(events)
    async with opened(app, "w", "v", "v", "v") as pilot:
        panel = app.screen.query_one(EnvMap)
        assert "grouped by structure" in str(panel.border_title)
        for structure in {context.structure for context in contexts.values()}:
            assert f" {structure}: " in panel.text
        await pilot.press("v")
        assert "grouped by context" in str(panel.border_title)
        assert f" {describe_context(contexts[0])}: " in panel.text
        await pilot.press("v")
        assert "grouped" not in str(panel.border_title)
