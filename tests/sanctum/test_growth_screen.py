"""The growth screen: step and transition events to growth chart and blueprint table."""

import pytest

from esper.domain import StageName
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.screens.growth import BlueprintTable, GrowthChart
from esper.telemetry import events as ev
from tests.factory import env_stepped, run_started, stamp
from tests.sanctum.driving import ROOMY, emit, live, opened, press
from tests.sanctum.population import episode_ended, moved, population

LIFE = ("dormant", "germinated", "training", "blending", "probationary", "fossilized", "culled", "embargoed")


def grown(env: int, step: int, early: StageName, late: StageName) -> ev.EnvStepped:
    slots = [
        ev.SlotReading(stage=early, blueprint="norm"),
        ev.SlotReading(stage="dormant"),
        ev.SlotReading(stage=late),
    ]
    return env_stepped(env, step=step, slots=slots)


async def test_growth_chart_has_one_cell_per_step_and_slot() -> None:
    run = [run_started(2, 3, 10), ev.RoundStarted(round=1)]
    run += [grown(1, step, stage, "dormant") for step, stage in enumerate(LIFE, 1)]
    app, session = live(stamp(run))
    async with opened(app, "3", size=ROOMY) as pilot:
        panel = app.screen.query_one(GrowthChart)
        first, second = panel.text.splitlines()[1:3]
        assert first.split() == ["▸00", "–"]
        assert second.split() == ["01", "·gtbpFxz", "norm", "········", "········", "35.0"]
        await emit(pilot, session, ev.RoundStarted(round=2))
        assert panel.text.splitlines()[2].split() == ["01", "–"]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_growth_chart_scrolls_to_every_env(size: tuple[int, int]) -> None:
    app, _ = live(population(envs=64, rounds=2, stop=25))
    async with opened(app, "3", size=size) as pilot:
        panel = app.screen.query_one(GrowthChart)
        seen: set[str] = set()
        for _ in range(64):
            rows = panel.text.splitlines()[1 : panel.size.height]
            selected = [row for row in rows if row.startswith("▸")]
            assert len(selected) == 1
            seen.add(selected[0].split()[0].strip("▸✖▲"))
            assert len(selected[0].split()[1]) >= 21  # at least 21 of 25 steps fit 80 columns
            await pilot.press("j")
        assert seen == {f"{env:02d}" for env in range(64)}
        await press(pilot, "home", "pagedown", "enter")
        assert isinstance(app.screen, EnvDetailScreen)
        assert app.view.selected_env > 5


async def test_blueprint_table_lists_results_by_blueprint() -> None:
    def move(env: int, after: StageName, blueprint: str) -> ev.SeedMoved:
        return moved(env, "mid", "dormant", after, blueprint)

    run = [
        run_started(2, 3, 10), ev.RoundStarted(round=1),
        env_stepped(0), move(0, "germinated", "conv_small"), move(0, "fossilized", "conv_small"),
        move(1, "germinated", "norm"), move(1, "culled", "norm"), move(1, "germinated", "norm"),
        *(episode_ended(1, env, 0.5) for env in range(2)),
    ]  # fmt: skip
    app, _ = live(stamp(run))
    async with opened(app, "3", size=ROOMY) as pilot:
        panel = app.screen.query_one(BlueprintTable)
        assert [line.split() for line in panel.text.splitlines()[1:3]] == [
            ["conv_small", "+4.0", "–", "1", "1", "0", "148"],
            ["norm", "–", "–", "2", "0", "1", "–"],
        ]
        await pilot.press("o", "o")
        assert "by planted" in str(panel.border_title)
        assert panel.text.splitlines()[1].startswith(" norm")


async def test_growth_chart_of_a_long_episode_names_and_aligns_its_last_steps() -> None:
    """An env that was rolled back at step 100 has no value in most of the last 240 steps."""
    run = [run_started(2, 3, 400), ev.RoundStarted(round=1)]
    for step in range(1, 301):
        run.append(grown(0, step, "training", "dormant"))
        if step <= 100:
            run.append(grown(1, step, "training", "dormant"))
    app, _ = live(stamp(run))
    async with opened(app, "3", size=(1200, 40)):
        heading, active, inactive = app.screen.query_one(GrowthChart).text.splitlines()[:3]
        assert "early 61–300" in heading
        assert active.count("t") == 240
        assert inactive.count("t") == 40
