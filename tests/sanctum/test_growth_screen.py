"""The growth screen: step and transition events to growth chart, charts of the population and blueprint table."""

import math
from pathlib import Path

import pytest

from esper.common.domain import StageName
from esper.recordings import events as ev
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.screens.growth import BlueprintTable, GrowthChart
from esper.sanctum.widgets.population_charts import (
    BlueprintChart,
    EnvScatterChart,
    StageChart,
    blueprint_letters,
)
from tests.factory import env_stepped, policy_updated, run_started, stamp
from tests.sanctum.driving import ROOMY, drawn, emit, live, opened, press, until
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


async def test_growth_chart_scrolls_to_every_env() -> None:
    app, _ = live(population(envs=32, rounds=2, stop=12))
    async with opened(app, "3", size=(80, 24)) as pilot:
        panel = app.screen.query_one(GrowthChart)
        assert panel.text.splitlines()[-1].endswith("↓")
        seen: set[str] = set()
        for _ in range(32):
            rows = panel.text.splitlines()[1 : panel.size.height]
            selected = [row.partition("▸")[2] for row in rows if "▸" in row]
            assert len(selected) == 1
            seen.add(selected[0].split()[0].strip("✖▲"))
            assert len(selected[0].split()[1]) >= 10
            await pilot.press("j")
        assert seen == {f"{env:02d}" for env in range(32)}
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
            ["C", "conv_small", "–", "–", "–", "–", "1", "1", "0", "148"],
            ["N", "norm", "–", "–", "–", "–", "2", "0", "1", "–"],
        ]
        await pilot.press("o", "o", "o", "o")
        assert "by planted" in str(panel.border_title)
        assert panel.text.splitlines()[1].startswith(" N norm")


def test_growth_chart_of_a_long_episode_names_and_aligns_its_last_steps() -> None:
    """An env that was rolled back at step 100 has no value in most of the last 240 steps."""
    run = [run_started(2, 3, 400), ev.RoundStarted(round=1)]
    for step in range(1, 301):
        run.append(grown(0, step, "training", "dormant"))
        if step <= 100:
            run.append(grown(1, step, "training", "dormant"))
    heading, active, inactive = drawn(GrowthChart, stamp(run), (800, 40)).text.splitlines()[:3]
    assert "early 61–300" in heading
    assert active.count("t") == 240
    assert inactive.count("t") == 40


async def test_all_64_envs_are_in_one_view_and_a_click_selects_one() -> None:
    app, _ = live(population(envs=64, rounds=2, stop=25))
    async with opened(app, "3", size=ROOMY) as pilot:
        panel = app.screen.query_one(GrowthChart)
        assert panel.panel_subtitle == "1–64 of 64"
        text = panel.text
        assert all(f" {env:02d}" in text or f"▸{env:02d}" in text for env in range(64))
        row = next(row for row in text.splitlines() if " 60" in row)
        await pilot.click(GrowthChart, offset=(row.index(" 60") + 4, text.splitlines().index(row) + 1))
        assert app.view.selected_env == 60


async def test_stage_chart_has_the_fractions_of_all_slots_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.sanctum.widgets.paced_panel.REDRAW_INTERVAL_S", 0.0)
    run: list[ev.AnyEvent] = [run_started(2, 3, 10), ev.RoundStarted(round=1)]
    for step, stage in enumerate(LIFE[:4], 1):
        run += [grown(0, step, stage, "dormant"), grown(1, step, "fossilized", "dormant")]
    app, session = live(stamp(run))
    async with opened(app, "3", size=ROOMY) as pilot:
        chart = app.screen.query_one(StageChart)
        chart.focus()
        await press(pilot, "left")
        assert str(chart.border_subtitle).startswith("step 4: fossilized 16.7  blending 16.7")
        await press(pilot, "left", "left")
        assert "germinated 16.7" in str(chart.border_subtitle)
        await emit(pilot, session, grown(0, 5, "fossilized", "fossilized"))
        await press(pilot, *["right"] * 9)
        assert str(chart.border_subtitle).startswith("step 5: fossilized 66.7")  # only env 00 has finished it
        await emit(pilot, session, grown(1, 5, "dormant", "dormant"))
        assert str(chart.border_subtitle).startswith("step 5: fossilized 33.3")


async def test_blueprint_charts_have_the_plantings_of_every_round(tmp_path: Path) -> None:
    run: list[ev.AnyEvent] = [run_started(2, 3, 2)]
    for round_, planted in enumerate((["norm", "norm"], ["norm", "attention"], ["attention"]), 1):
        run.append(ev.RoundStarted(round=round_))
        run += [env_stepped(env, round_, step) for step in (1, 2) for env in range(2)]
        run += [moved(env, "mid", "dormant", "germinated", name) for env, name in enumerate(planted)]
        if round_ < 3:
            run += [episode_ended(round_, env, 0.5) for env in range(2)]
            run.append(policy_updated(round_))
    app, _ = live(stamp(run), recorded_in=tmp_path)
    async with opened(app, "3", size=ROOMY) as pilot:
        charts = {chart.slot: chart for chart in app.screen.query(BlueprintChart)}
        await until(pilot, lambda: app.view.curves.fraction_read == 1 and "norm" in charts["mid"].text)
        assert charts["early"].text.strip() == "no seed planted yet"
        chart = charts["mid"]
        chart.focus()
        await press(pilot, "left")
        assert str(chart.border_subtitle) == "round 3: attention 100.0"  # the round in progress
        await press(pilot, *["left"] * 20)
        assert str(chart.border_subtitle) == "round 1: norm 100.0"
        await press(pilot, *["right"] * 20)
        assert "A attention" in chart.text


async def test_scatter_marks_the_selected_env_and_the_front() -> None:
    run = [run_started(3, 3, 5), ev.RoundStarted(round=1)]
    points = [(1.0, 0.5), (2.0, 0.4), (1.5, 0.8)]
    run += [env_stepped(env, parameter_ratio=ratio, score=score) for env, (ratio, score) in enumerate(points)]
    app, _ = live(stamp(run))
    async with opened(app, "3", size=ROOMY) as pilot:
        chart = app.screen.query_one(EnvScatterChart)
        assert str(chart.border_subtitle) == "◆ env 00 50.0 at ×1.00"
        await press(pilot, "down")
        assert str(chart.border_subtitle) == "◆ env 01 40.0 at ×2.00"
        assert [chart.text.count(glyph) for glyph in "◆●○"] == [1, 2, 0]


async def test_smoothing_leaves_the_front_as_measured() -> None:
    run = [run_started(2, 3, 5), ev.RoundStarted(round=1)]
    run += [env_stepped(env, parameter_ratio=1.0 + env, score=0.4 + env / 2) for env in range(2)]
    app, _ = live(stamp(run))
    async with opened(app, "3", size=ROOMY) as pilot:
        chart = app.screen.query_one(EnvScatterChart)
        chart.focus()
        await press(pilot, "left")
        before = str(chart.border_subtitle), chart.text
        await press(pilot, "z")
        assert (str(chart.border_subtitle), chart.text) == before
        assert "mean" not in str(chart.border_title)


def test_scatter_without_a_finite_score_is_empty() -> None:
    run = [run_started(1, 3, 5), ev.RoundStarted(round=1), env_stepped(0, score=math.nan)]
    assert drawn(EnvScatterChart, stamp(run)).text.strip() == "no step yet"


async def test_charts_take_turns_with_the_envs_on_a_short_screen() -> None:
    app, _ = live(population(envs=8, rounds=2, stop=25))
    async with opened(app, "3", size=(80, 24)) as pilot:
        chart, envs = app.screen.query_one(StageChart), app.screen.query_one(GrowthChart)
        table = app.screen.query_one(BlueprintTable)
        assert (chart.size.height > 5, envs.size.height > 5, table.size.height > 5) == (True, True, True)
        await press(pilot, "v")
        assert (chart.size.height > 5, envs.size.height, table.size.height) == (True, 0, 0)
        await press(pilot, "v")
        assert (chart.size.height, app.screen.query_one(EnvScatterChart).size.height > 5) == (0, True)
        await press(pilot, "v")
        assert (chart.size.height > 5, envs.size.height > 5, envs.has_focus) == (True, True, True)
        for column in ("gain", "rent", "n", "planted", "fossilized", "culled", "params", "net return"):
            await press(pilot, "o")
            assert f"by {column} ↓" in str(table.border_title)
            assert column in table.text.splitlines()[0]


def test_blueprints_have_different_letters_of_their_names() -> None:
    letters = blueprint_letters(["conv_heavy", "conv_light", "conv_small", "norm"])
    assert len(set(letters.values())) == 4
    assert all(letter.lower() in name for name, letter in letters.items())
