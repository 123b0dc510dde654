"""Curves screen: values at the cursor, search, pages, pins, the past, a live run and a rewound one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot

import esper
from esper.recordings import events as ev
from esper.recordings.history.history import open_history
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.chart import ChartScreen
from esper.sanctum.screens.curves import CurvesStatus
from esper.sanctum.widgets.curve_chart import CurveChart, CurveGroup
from tests.factory import START, example_run, growth_run, stamp
from tests.recordings.files.recordings import fold, lines, recording, write_segment
from tests.sanctum.driving import ROOMY, SIZE, live, notices, opened, press, replay_of, settle, shown

RUN = example_run(rounds=4)
KEY = "7"
SMALL = (80, 24)


async def read(pilot: Pilot[None], app: SanctumApp) -> None:
    """Read the source until no more points are found."""
    await settle(pilot)
    while app.source.curves.is_waiting:
        await settle(pilot)
    await settle(pilot)


@asynccontextmanager
async def at_the_end(folder: Path, size: tuple[int, int]) -> AsyncIterator[tuple[SanctumApp, Pilot[None]]]:
    """Open the curves screen at the end of a replay, once all points were read."""
    app, playback = replay_of(open_history(write_segment(folder, 1, recording(RUN))))
    playback.seek_end()
    async with opened(app, KEY, size=size) as pilot:
        await read(pilot, app)
        yield app, pilot


def visible(app: SanctumApp) -> list[CurveChart]:
    """Charts of the page, in order."""
    return [chart for chart in app.screen.query(CurveChart) if chart.display]


def chart_of(app: SanctumApp, quantity: str, owner: str = "") -> CurveChart:
    [chart] = [chart for chart in app.screen.query(CurveChart) if chart.group == CurveGroup(quantity, owner)]
    return chart


def readout(chart: CurveChart) -> str:
    return " ".join(str(chart.border_subtitle).split())


async def test_values_at_the_cursor_are_those_of_the_recording(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "run", 1, recording(RUN)).parent
    run = esper.read_run(path)
    curves, steps = run.curves(per_env=True), run.config["steps"]
    app, playback = replay_of(open_history(path))
    playback.seek_end()
    async with opened(app, KEY, size=ROOMY) as pilot:
        await read(pilot, app)
        chart_of(app, "accuracy").focus()
        await press(pilot, "enter")
        accuracy = app.screen.query_one(CurveChart)
        for moves in (1, 4, 3):
            await press(pilot, *["left"] * moves)
            cursor = app.view.charts_on(app.screen).cursor_on("round")
            assert cursor is not None
            step = round(cursor * steps)
            median, low, high, env, least, most = (
                f"{100 * curves[name].values[curves[name].steps.index(step)]:.1f}"
                for name in (
                    *("accuracy/median", "accuracy/lower quartile", "accuracy/upper quartile", "accuracy/env 00"),
                    *("accuracy/min", "accuracy/max"),
                )
            )
            wanted = f"median {median} quartiles {low} to {high} env 00 {env} min {least} max {most}"
            assert readout(accuracy).partition(": ")[2] == wanted
        await press(pilot, "escape", "escape")
        final = chart_of(app, "final accuracy")
        final.focus()
        await press(pilot, "left", "left")
        assert app.view.charts_on(app.screen).cursor == ("round", 3.0)
        summary = run.summary.finished[2]
        assert readout(final).startswith(f"round 3: median {100 * summary.score.median:.1f}")
        kl = curves["KL/policy"]
        assert readout(chart_of(app, "KL", "policy")) == f"round 3: policy {kl.values[kl.steps.index(15)]}"


async def test_search_shows_the_charts_with_the_text_in_a_name(tmp_path: Path) -> None:
    async with at_the_end(tmp_path, ROOMY) as (app, pilot):
        count = len(visible(app))
        await press(pilot, "slash", *"head op")
        assert [chart.group for chart in visible(app)] == [
            CurveGroup("entropy", "policy"), CurveGroup("gradient norm", "policy"),
        ]  # fmt: skip
        assert "2 charts · /head op" in shown(app, CurvesStatus)
        await press(pilot, "enter")
        assert app.focused is visible(app)[0]
        await press(pilot, "escape", "escape")
        assert len(visible(app)) == count
        await press(pilot, "slash", *"nothing")
        assert shown(app, CurvesStatus) == "no matching curve · /nothing"
        await press(pilot, "escape")
        assert len(visible(app)) == count


async def test_pages_show_all_charts_once(tmp_path: Path) -> None:
    async with at_the_end(tmp_path, SMALL) as (app, pilot):
        status = shown(app, CurvesStatus)
        assert status.startswith("page 1 of ")
        pages = int(status.split()[3])
        first = visible(app)[0]
        groups = [chart.group for chart in visible(app)]
        assert 2 <= len(groups) <= 4
        for page in range(2, pages + 1):
            await press(pilot, "pagedown")
            assert shown(app, CurvesStatus).startswith(f"page {page} of {pages}")
            assert all(chart.text.strip() for chart in visible(app))
            groups += [chart.group for chart in visible(app)]
        assert len(groups) == len(set(groups)) == len(app.screen.query(CurveChart))
        await press(pilot, "pageup", "pagedown", "pagedown")
        assert shown(app, CurvesStatus).startswith("page 1 of ")
        await press(pilot, "down")  # the arrows move the focus over all pages
        assert app.focused is first
        await press(pilot, "down", "down")
        assert app.focused is visible(app)[0]
        assert shown(app, CurvesStatus).startswith("page 2 of ")
        await press(pilot, "up", "up", "up")
        assert app.focused is first


async def test_pinned_charts_come_first(tmp_path: Path) -> None:
    async with at_the_end(tmp_path, ROOMY) as (app, pilot):
        order = [chart.group for chart in visible(app)]
        await press(pilot, "P")
        assert notices(app) == ["Focus a chart first, with Tab or a click."]
        for group in (CurveGroup("KL", "policy"), CurveGroup("loss", "")):
            chart_of(app, *group).focus()
            await press(pilot, "P")
            assert app.focused is chart_of(app, *group)
        assert [chart.group for chart in visible(app)][:3] == [
            CurveGroup("KL", "policy"),
            CurveGroup("loss", ""),
            order[0],
        ]
        assert str(chart_of(app, "loss").border_title).startswith("▸ • loss")
        await press(pilot, "P")
        chart_of(app, "KL", "policy").focus()
        await press(pilot, "P")
        assert [chart.group for chart in visible(app)] == order


async def test_enter_shows_the_curves_on_the_whole_screen(tmp_path: Path) -> None:
    async with at_the_end(tmp_path, SMALL) as (app, pilot):
        await press(pilot, "slash", *"entropy", "enter", "enter")
        assert isinstance(app.screen, ChartScreen)
        assert "blueprint" in app.screen.query_one(CurveChart).text
        await press(pilot, "escape")
        assert [chart.group.quantity for chart in visible(app)] == ["entropy"]


async def test_curves_end_at_the_playhead(tmp_path: Path) -> None:
    app, playback = replay_of(open_history(write_segment(tmp_path, 1, recording(RUN))))
    async with opened(app, KEY, size=SMALL) as pilot:
        await read(pilot, app)
        assert visible(app) == []
        assert shown(app, CurvesStatus) == "no curve yet"
        playback.seek(playback.history.steps[6])
        await read(pilot, app)
        assert app.view.curves.curve("loss/median").steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
        await press(pilot, "shift+left")
        await read(pilot, app)
        assert app.view.curves.curve("loss/median").steps.tolist() == [1, 2, 3, 4, 5]


async def test_selected_env_has_a_curve(tmp_path: Path) -> None:
    async with at_the_end(tmp_path, SMALL) as (app, pilot):
        await press(pilot, "down", "right_square_bracket", "enter")
        await read(pilot, app)
        assert isinstance(app.screen, ChartScreen)
        last = next(event.score for event in reversed(RUN) if isinstance(event, ev.EnvStepped) and event.env == 1)
        assert f"env 01 {100 * last:.1f}" in readout(app.screen.query_one(CurveChart))
        await press(pilot, "right_square_bracket")
        await read(pilot, app)
        assert "env 02" in readout(app.screen.query_one(CurveChart))


async def test_live_run_adds_points_and_a_restored_checkpoint_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.sanctum.source.CURVE_INTERVAL_S", 0.0)
    cut = 1 + max(i for i, event in enumerate(RUN) if isinstance(event, ev.PhaseTimed) and event.round == 3)
    app, session = live(RUN[:cut], recorded_in=tmp_path)
    async with opened(app, KEY, size=SMALL) as pilot:
        await read(pilot, app)
        curves = app.view.curves
        assert curves.curve("KL/policy").steps.tolist() == [5, 10, 15]
        with (tmp_path / "events-00001.jsonl").open("ab") as file:
            file.write(lines(RUN[cut:]))
        session.say(*RUN[cut:])
        await read(pilot, app)
        assert curves.curve("KL/policy").steps.tolist() == [5, 10, 15, 20]
        kept = 1 + next(i for i, event in enumerate(RUN) if isinstance(event, ev.PhaseTimed) and event.round == 2)
        other = [
            msgspec.structs.replace(event, kl=0.5) if isinstance(event, ev.PolicyUpdated) else event
            for event in RUN[kept:cut]
        ]
        again = stamp(other, first=kept + 1, start=START + 1000)
        write_segment(tmp_path, 2, recording(again, fold(RUN[:kept])))
        session.say(*again)
        await read(pilot, app)
        await read(pilot, app)
        kl = curves.curve("KL/policy")
        assert (kl.steps.tolist(), kl.values.tolist()[1:]) == ([5, 10, 15], [0.5, 0.5])


@pytest.mark.parametrize("key", ["tab", "left"])
async def test_arrows_in_the_present_move_the_cursor_of_a_chart(tmp_path: Path, key: str) -> None:
    """Tab focuses a chart before the anomalies above it, where an arrow would leave the present."""
    app, _ = live(RUN, recorded_in=tmp_path)
    async with opened(app, KEY, size=SMALL) as pilot:
        await read(pilot, app)
        await press(pilot, key, "left")
        assert app.focused is visible(app)[0]
        assert readout(visible(app)[0])
        assert app.source.playback is None
        await press(pilot, "escape", "escape", "6", "left")
        assert app.source.playback is not None


async def test_recording_that_cannot_be_read_is_reported_once(tmp_path: Path) -> None:
    app, session = live(RUN)
    session.directory = tmp_path
    async with opened(app, KEY, size=SMALL) as pilot:
        for _ in range(4):
            await settle(pilot)
        messages = [*notices(app), *app.source.pop_messages()]  # the app's own timer may have taken it
        assert sum(text.startswith("Cannot show the recording any longer: ") for text in messages) == 1
        assert visible(app) == []


async def test_x_axis_is_chosen_by_a_key(tmp_path: Path) -> None:
    async with at_the_end(tmp_path, SIZE) as (app, pilot):
        final = chart_of(app, "final accuracy")
        final.focus()
        for name, at in (
            ("round", "round 4"),
            ("step", "run step 20"),
            ("env-steps", "env-steps 80"),
            ("time", "time "),
        ):
            await press(pilot, "left")
            assert str(chart_of(app, "loss").border_title) == f"loss ─ by {name}"
            assert readout(final).startswith(at)
            await press(pilot, "b")


async def test_curves_by_round_say_that_a_growth_mixes_trials_and_comparisons(tmp_path: Path) -> None:
    app, playback = replay_of(open_history(write_segment(tmp_path, 1, recording(growth_run()))))
    playback.seek_end()
    async with opened(app, "7", size=ROOMY) as pilot:
        await read(pilot, app)
        titles = {chart.group.quantity: chart.name_in_title() for chart in app.screen.query(CurveChart)}
    mixed = {quantity for quantity, title in titles.items() if "trials and comparisons" in title}
    assert mixed == {"final accuracy", "return", "fossilized seeds", "culled seeds"}
