"""The overview in small, narrow and crowded terminals, and at the start of a round."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from esper.recordings import events as ev
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.overview import OverviewScreen
from esper.sanctum.screens.overview_rows import StackedRows, divide_left_column, divide_stack
from esper.sanctum.widgets.env_map import EnvMap
from esper.sanctum.widgets.env_table import EnvTable
from esper.sanctum.widgets.header import Tabs
from esper.sanctum.widgets.population_score import RoundScores, StepScores
from tests.factory import env_stepped, run_started, stamp
from tests.sanctum.driving import emit, header, live, opened, replay, resize, screen_text, settle, shown
from tests.sanctum.population import anomaly, population


def step_of(envs: int) -> list[ev.AnyEvent]:
    """Events of one step, whose scores rise with the env index."""
    steps = [env_stepped(env, score=0.2 + env / (2 * envs)) for env in range(envs)]
    return [run_started(envs), ev.RoundStarted(round=1), *steps]


def longest_blank_run(app: SanctumApp) -> int:
    """Return the number of rows in the longest run of rows without a visible character."""
    blank = "".join("." if line.strip() else "x" for line in screen_text(app).splitlines())
    return max(map(len, re.findall("x+", blank)), default=0)


def envs_in_sight(app: SanctumApp) -> list[int]:
    lines = app.screen.query_one(EnvTable).text.splitlines()[1:]
    return [int(match[1]) for line in lines if (match := re.match(r"[▸▼•]? *(\d+)", line))]


async def test_eight_envs_leave_no_blank_rows() -> None:
    app, _ = live(population(envs=8))
    async with opened(app, size=(80, 24)) as pilot:
        for size in ((80, 24), (90, 45), (100, 60), (50, 60), (45, 60), (60, 15), (60, 30), (110, 24)):
            await resize(pilot, size)
            assert longest_blank_run(app) == 0, screen_text(app)
            assert "accuracy % ─ by round" in screen_text(app), size
            assert app.screen.query_one(StepScores).plot_columns(), size
            if size[1] >= 24:
                assert "NaN" in "".join(screen_text(app).splitlines()[-4:]), size  # the log
                assert envs_in_sight(app) == list(range(8)), size
            else:
                assert len(envs_in_sight(app)) == 6, size


async def test_60_by_15_shows_essentials_and_accepts_keys() -> None:
    app, session = live(population(envs=8))
    async with opened(app, size=(60, 15)) as pilot:
        text = screen_text(app)
        for essential in ("● RUNNING", "14/100", "17/25", "✖ 3", "med  69.8", "p pause", "q quit"):
            assert essential in text, essential
        await pilot.press("p")
        assert [request.kind.value for request in session.asked()] == ["pause"]
        await pilot.press("2")
        assert "This screen needs 80 × 24, this terminal is 60 × 15." in " ".join(screen_text(app).split())
        assert "● RUNNING" in screen_text(app)
        await pilot.press("1", "q")
        assert "Quit" in screen_text(app) or "quit" in screen_text(app).lower()


async def test_anomalies_and_worst_envs_are_in_sight_without_a_key() -> None:
    found = [
        anomaly(60),
        anomaly(50, rule="b", severity="warning"),
    ]
    events = [*step_of(64), *found]
    events[2 + 33] = env_stepped(33, score=0.01)
    app, session = live(stamp(events))
    async with opened(app, size=(60, 15)) as pilot:
        order = envs_in_sight(app)
        assert order[:2] == [60, 50]
        assert 33 in order
        assert 0 in order  # the selected env
        session.emit(*(env_stepped(env, score=0.2 + env / 100) for env in range(1, 64)))
        await emit(pilot, session, env_stepped(33, score=0.02))
        assert envs_in_sight(app) == order  # it does not change with every step
        await pilot.press("o", "home")
        assert envs_in_sight(app)[0] == 63  # the order that the user chose


@pytest.mark.parametrize(("envs", "is_map"), [(127, False), (128, True)])
async def test_many_envs_are_shown_as_a_map_first(envs: int, *, is_map: bool) -> None:
    app, session = live(stamp(step_of(envs)))
    async with opened(app, size=(80, 24)) as pilot:
        assert app.screen.query_one(EnvMap).display is is_map
        assert isinstance(app.focused, EnvMap if is_map else EnvTable)
        await pilot.press("w")
        await emit(pilot, session, env_stepped(2, score=0.9))
        assert app.screen.query_one(EnvMap).display is not is_map


async def test_map_shows_all_of_1024_envs_at_80_by_24() -> None:
    app, _ = live(stamp(step_of(1024)))
    async with opened(app, size=(80, 24)) as pilot:
        panel = app.screen.query_one(EnvMap)
        lines = [line for line in panel.text.splitlines() if re.match(r"\d{4} ", line)]
        assert sum(len(line.split()[1]) for line in lines) == 1024
        await pilot.press("down", "right")
        assert app.view.selected_env == 71
        await pilot.click(EnvMap, offset=(6 + 3, 2))
        assert app.view.selected_env == 143


async def test_charts_keep_their_rows_however_many_envs_there_are() -> None:
    app, _ = live(population(envs=16))
    async with opened(app, size=(80, 24)):
        assert app.screen.query_one(RoundScores).outer_size.height == 4
        assert len(envs_in_sight(app)) == 13
    app, _ = live(population(envs=64))
    async with opened(app):
        assert app.screen.query_one(RoundScores).outer_size.height == 9
        assert app.screen.query_one(StepScores).outer_size.height == 9


def test_rows_are_divided_without_a_rest() -> None:
    assert divide_left_column(37, 15) == 22
    assert divide_left_column(37, 69) == 9
    assert divide_left_column(21, 15) == 6
    assert divide_left_column(21, 18) == 6
    assert divide_stack(21, 13, 8, 3, short=False, slim=False) == StackedRows(charts=4, heads=1, devices=1, log=2)
    assert divide_stack(21, 21, 8, 3, short=False, slim=False) == StackedRows(charts=4, heads=1, devices=1, log=0)
    assert divide_stack(12, 11, 8, 3, short=True, slim=True) == StackedRows(charts=4, heads=0, devices=0, log=0)
    assert divide_stack(9, 11, 8, 3, short=True, slim=True) == StackedRows(charts=0, heads=0, devices=0, log=0)
    assert divide_stack(57, 13, 8, 3, short=False, slim=True) == StackedRows(charts=21, heads=9, devices=4, log=10)


async def test_table_keeps_dimmed_values_until_the_first_step_of_a_round() -> None:
    app, session = live(stamp(step_of(4)))
    async with opened(app, size=(80, 24)) as pilot:
        table = app.screen.query_one(EnvTable)
        before = table.text.splitlines()
        await emit(pilot, session, ev.RoundStarted(round=2))
        assert (table.panel_title or "").startswith("envs, round 1 ─ by env")
        assert [line[:12] for line in table.text.splitlines()] == [line[:12] for line in before]
        values = [part for part in table.render_line(2) if "32.5" in part.text]
        dim = app.view.palette["dim"]
        assert [part.style.color for part in values if part.style] == [dim.color]
        await emit(pilot, session, env_stepped(1, 2, score=0.111))
        assert (table.panel_title or "").startswith("envs, round 2 ─ by env")
        assert "11.1" in table.text.splitlines()[2]
        assert "20.0" in table.text.splitlines()[1]
        assert table.text.splitlines()[6].split()[:2] == ["median", "11.1"]


async def test_header_shows_progress_within_a_long_step() -> None:
    app, _ = live(stamp([*step_of(4), ev.PhaseTimed(round=1, step=1, wall=8.0, phases={})]))
    async with opened(app) as pilot:
        app.view.frame_stats.age = 2.0
        app.refresh_view()
        await pilot.pause()
        assert "step 1/5, next ≈25 %" in header(app)
        app.view.frame_stats.age = 60.0
        app.refresh_view()
        await pilot.pause()
        assert "next ≈99 %" in header(app)


async def test_header_of_a_replay_shows_its_position_instead_of_time_left(tmp_path: Path) -> None:
    app, playback = replay(population(envs=4, rounds=3), tmp_path, at_end=True)
    async with opened(app) as pilot:
        assert "❚❚ REPLAY paused" in header(app)
        assert "env-steps/s 1s of 1s" in header(app)  # whole seconds, as on the timeline
        playback.seek_time(0.9)
        await settle(pilot)
        assert "env-steps/s 0s of 1s" in header(app)
        playback.speed = 0.01  # so that it does not reach the end on a slow machine
        playback.playing = True
        await settle(pilot)
        assert "▶ REPLAY round" in header(app)
        assert "env-steps/s 0s of 1s" in header(app)


async def test_header_of_a_live_run_shows_elapsed_time_beside_time_left() -> None:
    app, session = live(stamp(step_of(4)))
    async with opened(app) as pilot:
        assert re.search(r"env-steps/s \d+s elapsed, \S+ left$", header(app))
        await resize(pilot, (60, 15))
        assert re.search(r"\d+s, \S+ left$", header(app))
        await emit(pilot, session, ev.RunEnded(outcome="done"))
        assert header(app).endswith("s elapsed")


async def test_tabs_have_names_where_there_is_room() -> None:
    app, _ = live(stamp(step_of(4)))
    async with opened(app, size=(90, 24)) as pilot:
        assert "2 policy 3 growth 4 numerics 5 devices 6 log 7 curves" in shown(app, Tabs)
        assert "✓ no anomalies" in screen_text(app)
        await resize(pilot, (80, 24))
        assert "✓ no anomalies" in screen_text(app)
    app, _ = live(population(envs=8))
    async with opened(app, size=(100, 24)) as pilot:
        assert "2 policy" in shown(app, Tabs)
        await resize(pilot, (80, 24))
        assert "2 policy" not in shown(app, Tabs)
        assert isinstance(app.screen, OverviewScreen)


async def test_labels_are_spelled_out_and_name_their_quantity() -> None:
    app, _ = live(population(envs=8))
    async with opened(app) as pilot:
        assert "gradient norm scale" in app.screen.query_one(EnvTable).text.splitlines()[0]
        assert "|g|" not in screen_text(app)
        await pilot.press("o", "o", "o", "o", "o", "o")
        assert "gradient norm↓" in app.screen.query_one(EnvTable).text.splitlines()[0]
        await resize(pilot, (80, 24))
        assert "gradient norm  op" in screen_text(app)
        assert "lanes busy  cpu:0 94.5 %" in screen_text(app)
        assert "memory 1.31 of 24 GiB" in screen_text(app)
