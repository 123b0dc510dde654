"""Charts: cursor, zoom, x axis, smoothing, logarithmic axis and full screen, by keys and by mouse."""

from collections.abc import Sequence

from textual.pilot import Pilot

from esper.common.plots.chart import Curve, XAxis, percent
from esper.common.plots.stacked_chart import StackedChart
from esper.recordings import events as ev
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.chart import ChartScreen
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.population_score import RoundScores
from tests.factory import run_started, stamp
from tests.sanctum.driving import ROOMY, SIZE, live, notices, opened, press, resize, screen_text
from tests.sanctum.population import episode_ended, population

SCORES = (0.2, 0.5, 0.3, 0.9, 0.7, 0.8)


def _rounds(scores: Sequence[float] = SCORES) -> list[ev.AnyEvent]:
    """Return a run of three envs whose scores in a round are 0.1 apart, with this median."""
    events: list[ev.AnyEvent] = [run_started(3, 100, 25), ev.RoundStarted(round=1)]
    for number, score in enumerate(scores, start=1):
        events += [episode_ended(number, env, score + (env - 1) / 10) for env in range(3)]
        events.append(ev.RoundStarted(round=number + 1))
    return stamp(events)


async def _focused(pilot: Pilot[None], app: SanctumApp) -> RoundScores:
    panel = app.screen.query_one(RoundScores)
    panel.focus()
    await pilot.pause()
    return panel


async def test_cursor_shows_the_values_of_its_round() -> None:
    app, _ = live(_rounds())
    async with opened(app, size=ROOMY) as pilot:
        panel = await _focused(pilot, app)
        assert "median 80.0" in str(panel.border_subtitle)
        await press(pilot, "left")
        assert str(panel.border_subtitle).startswith("round 6: median 80.0")
        await press(pilot, "left", "left")
        assert str(panel.border_subtitle).startswith("round 4: median 90.0")
        assert any("│" in line[panel.plot_columns().start :] for line in panel.text.splitlines())
        await press(pilot, *["left"] * 9)
        assert str(panel.border_subtitle).startswith("round 1: median 20.0")
        await press(pilot, "escape")
        assert str(panel.border_subtitle).startswith("median 80.0")
        await press(pilot, "escape")
        assert app.focused is None


async def test_zoom_pan_and_home_change_the_visible_rounds() -> None:
    app, _ = live(_rounds([0.5] * 40))
    async with opened(app, size=ROOMY) as pilot:
        panel = await _focused(pilot, app)

        def ends() -> tuple[str, str]:
            labels = panel.text.splitlines()[-1].split()
            return labels[0], labels[-1]

        whole = ends()
        assert whole[0] == "1"
        await press(pilot, "shift+left")  # there is nothing to move
        assert ends() == whole
        await press(pilot, "plus")
        zoomed = ends()
        assert (int(zoomed[0]) > 20, zoomed[1]) == (True, whole[1])
        await press(pilot, "shift+left")
        assert (int(ends()[0]) < int(zoomed[0]), int(ends()[1]) < int(zoomed[1])) == (True, True)
        await press(pilot, *["plus"] * 10)
        assert float(ends()[1]) - float(ends()[0]) < 2
        await press(pilot, "home")
        assert ends() == whole
        await press(pilot, "plus", "minus")
        assert ends() == whole
        await press(pilot, "left", "plus", "plus", *["left"] * 40)  # the visible part follows the cursor
        assert str(panel.border_subtitle).startswith("round 1:")
        assert ends()[0] == "1"


async def test_axis_and_smoothing_are_named_in_the_title() -> None:
    app, _ = live(_rounds())
    async with opened(app, size=ROOMY) as pilot:
        panel = await _focused(pilot, app)
        await press(pilot, "e", "z")
        assert "▸ mean of 5 ─ " in str(panel.border_title)
        assert "logarithmic" in str(panel.border_title)
        assert f"median {100 * SCORES[-1]:.1f}" in str(panel.border_subtitle)  # the measured value
        await press(pilot, "b")
        assert notices(app) == ["This chart is always by round."]
        await press(pilot, "e", "z", "z", "z")
        assert "logarithmic" not in str(panel.border_title)
        assert "mean" not in str(panel.border_title)


async def test_charts_of_a_screen_share_cursor_and_zoom_and_leave_other_screens_alone() -> None:
    app, _ = live(population())
    async with opened(app, "2", size=ROOMY) as pilot:
        chart, *others = [panel for panel in app.screen.query(ChartPanel) if panel.display]
        chart.focus()
        await press(pilot, "left", "plus", "z")
        at = str(chart.border_subtitle).partition(":")[0]
        assert at.startswith("round ")
        assert all(str(other.border_subtitle).startswith(f"{at}:") for other in others)
        assert all("zoomed, mean of 5 ─ " in str(panel.border_title) for panel in (chart, *others))
        await press(pilot, "enter")
        large = app.screen.query_one(ChartPanel)
        assert (str(large.border_subtitle).partition(":")[0], "zoomed, mean of 5" in str(large.border_title)) == (
            at,
            True,
        )
        await press(pilot, "enter", "1")
        scores = app.screen.query_one(RoundScores)
        assert (scores.changes, str(scores.border_subtitle).startswith("median")) == ("", True)
        await press(pilot, "2")
        assert "zoomed, mean of 5 ─ " in str(chart.border_title)


async def test_changed_chart_says_so_and_reads_out_measured_values_at_every_width() -> None:
    app, _ = live(_rounds())
    async with opened(app) as pilot:
        app.screen.query_one(RoundScores).focus()
        await press(pilot, "plus", "z", "z")
        for size in ((60, 15), (80, 24), SIZE):
            await resize(pilot, size)
            assert "zoomed, mean of 20" in screen_text(app), size
        await press(pilot, "left")
        for size in (SIZE, (80, 24), (60, 15)):
            await resize(pilot, size)
            assert f"round {len(SCORES)}: median {100 * SCORES[-1]:.1f}" in screen_text(app), size
            assert "zoomed, mean of 20" in screen_text(app), size


def test_labels_of_smoothed_areas_are_measured_values() -> None:
    chart = StackedChart(
        quantity=percent("stages"),
        x_axis=XAxis("step", 1, 3),
        curves=[Curve("a", range(1, 4), [0.2, 0.2, 0.9]), Curve("b", range(1, 4), [0.8, 0.8, 0.1])],
        areas=("germinated", "training"),
        letters=("a", "b"),
        has_labels=True,
    )
    assert any("90%" in line for line in chart.smoothed(3).text(60, 10))


async def test_enter_shows_the_chart_on_the_whole_screen_and_escape_returns() -> None:
    app, _ = live(_rounds())
    async with opened(app, size=ROOMY) as pilot:
        panel = await _focused(pilot, app)
        await press(pilot, "left", "enter")
        assert isinstance(app.screen, ChartScreen)
        large = app.screen.query_one(RoundScores)
        assert (large.has_focus, large.size.width > 180, large.size.height > 45) == (True, True, True)
        assert str(large.border_subtitle).startswith("round 6: median 80.0")
        await press(pilot, "escape", "escape")
        assert app.screen.query_one(RoundScores) is panel
        panel.focus()
        await press(pilot, "enter", "enter")
        assert app.screen.query_one(RoundScores) is panel


async def test_pointer_moves_the_cursor_and_the_wheel_zooms() -> None:
    app, _ = live(_rounds([0.5] * 40))
    async with opened(app, size=ROOMY) as pilot:
        panel = app.screen.query_one(RoundScores)
        column = panel.gutter.left + panel.plot_columns().start
        await pilot.hover(RoundScores, offset=(column, 5))
        await pilot.pause()
        assert str(panel.border_subtitle).startswith("round 1:")
        await pilot.click(RoundScores, offset=(column + len(panel.plot_columns()) - 1, 5))
        assert str(panel.border_subtitle).startswith("round 40:")
        assert panel.has_focus
        await pilot.click(RoundScores, offset=(column + 3, 5), times=2)
        assert isinstance(app.screen, ChartScreen)


async def test_cursor_of_a_chart_by_step_counts_the_steps_of_the_round() -> None:
    app, _ = live(population())
    async with opened(app, size=ROOMY) as pilot:
        await press(pilot, "enter")
        assert isinstance(app.screen, EnvDetailScreen)
        charts = [panel for panel in app.screen.query(ChartPanel) if panel.display]
        for chart in charts:
            chart.focus()
            await press(pilot, "left")
            assert str(chart.border_subtitle).startswith("step 17:")
            await press(pilot, "escape")
