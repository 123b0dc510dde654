"""A growth in the dashboard: the candidates screen, and the search on the overview."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from esper.recordings import events as ev
from esper.recordings.candidates.candidates import BARE_HOST, describe_candidate
from esper.recordings.candidates.report import MARK_LEGEND
from esper.recordings.history.history import open_history
from esper.sanctum.screens.candidates import CandidatesScreen
from esper.sanctum.screens.dialogs import ChoiceDialog
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.widgets.candidate_table import CandidateDetail, CandidateTable
from esper.sanctum.widgets.env_table import EnvTable
from esper.sanctum.widgets.front_chart import FrontChart
from esper.sanctum.widgets.header import Tabs
from esper.sanctum.widgets.panel import Panel
from esper.sanctum.widgets.population_score import StepScores
from esper.sanctum.widgets.search_summary import SearchSummary
from tests.factory import env_stepped, example_run, growth_run
from tests.recordings.files.recordings import recording, write_segment
from tests.sanctum.driving import (
    ROOMY,
    SIZE,
    emit,
    header,
    live,
    notices,
    opened,
    press,
    replay,
    replay_of,
    resize,
    screen_text,
    settle,
    shown,
    tick,
)  # fmt: skip

RUN = growth_run()
DURING = growth_run(stop=2)


async def test_screen_of_the_candidates_fits_its_terminal() -> None:
    app, _ = live(RUN)
    async with opened(app, "8") as pilot:
        assert isinstance(app.screen, CandidatesScreen)
        assert "8 candidates" in shown(app, Tabs)
        for size in ((80, 24), SIZE, ROOMY):
            await resize(pilot, size)
            assert "85.0% [82.5, 87.5] against 77.0% [74.5, 79.5] on the" in shown(app, SearchSummary)
            rows = app.screen.query_one(CandidateTable).text.splitlines()
            assert rows[1].startswith("▸a ● conv_small in mid at step 2"), size
            assert "86.0 [83.5, 88.5] +0.307 ×1.53" in " ".join(rows[1].split()), size
            assert "◆ your network" in rows[4], size
            chart = app.screen.query_one(FrontChart)
            assert {"a", "b", "◆"} <= set(chart.text), size
            assert chart.text.splitlines()[-1].strip() == MARK_LEGEND
            assert all(panel.size.height > 1 for panel in (chart, app.screen.query_one(CandidateDetail))), size
            assert all(len(row) <= size[0] for row in screen_text(app).splitlines()), size


async def test_cursor_follows_its_candidate_and_opens_its_env() -> None:
    app, session = live(DURING)
    async with opened(app, "8") as pilot:
        table = app.screen.query_one(CandidateTable)
        [trains] = [row for row in table.text.splitlines() if "▶ env 02" in row]
        assert table.text.count("▶ env") == 2  # of four envs: one trial has failed, one was pruned
        await press(pilot, "end")
        assert "failed: RuntimeError: out of memory" in shown(app, CandidateDetail)
        await press(pilot, *["up"] * 3)
        assert f"▸{trains[1:]}" in table.text
        assert "drawn by the search; trains" in shown(app, CandidateDetail)
        assert "– at –" in str(app.screen.query_one(FrontChart).border_subtitle)
        name = app.view.selected_candidate
        assert name is not None
        ended = ev.TrialEnded(
            round=2, step=3, env=2, candidate=name, outcome="done", score=0.99, net_return=0.4, parameter_ratio=1.1
        )
        await emit(pilot, session, ended)
        assert f"▸a ● {describe_candidate(name)[:10]}" in table.text.splitlines()[1]
        await press(pilot, "enter")
        assert isinstance(app.screen, EnvDetailScreen)
        assert app.view.selected_env == 2
        await press(pilot, "escape", "home", "down")
        assert app.view.selected_candidate == "2:conv_small@mid"
        await press(pilot, "enter")
        assert "No env trains this candidate in this round." in notices(app)


async def test_hundreds_of_candidates_scroll() -> None:
    app, _ = live(growth_run(envs=16, trials=300, fresh=0))
    async with opened(app, "8", size=(80, 24)) as pilot:
        table = app.screen.query_one(CandidateTable)
        assert table.text.splitlines()[-1].endswith("↓")
        await press(pilot, "end")
        assert table.text.splitlines()[1].rstrip().endswith("↑")
        assert str(table.panel_subtitle).endswith("–300 of 300")
        await pilot.click(CandidateTable, offset=(10, 1))  # a heading, by which nothing is sorted
        await pilot.click(CandidateTable, offset=(10, 2))
        assert table.text.splitlines()[1].startswith("▸")


async def test_overview_shows_the_search_and_idle_envs() -> None:
    app, session = live(DURING)
    async with opened(app) as pilot:
        for size in ((60, 15), (80, 24), ROOMY):
            await resize(pilot, size)
            assert "6 of 12 trials" in header(app)
            summary = shown(app, SearchSummary)
            assert "86.0 %" in summary
            assert "your network 78.0 %" in summary
            rows = app.screen.query_one(EnvTable).text.splitlines()
            idle = [[word for word in ("failed", "pruned", "+0.250") if word in row] for row in rows[1:5]]
            assert idle == [["+0.250"], ["failed"], ["+0.250"], ["pruned"]], size
            assert ("candidate" in rows[0]) == (size == ROOMY)
        assert "norm mid 2" in rows[2]
        chart = app.screen.query_one(StepScores)
        assert "median 56.5" in str(chart.border_subtitle)  # of both envs that still train
        await emit(pilot, session, env_stepped(2, 2, 3, score=0.6), ev.RoundStarted(round=3))
        await emit(pilot, session, ev.TrialStarted(round=3, env=1, candidate="", origin="host", fresh=4))
        rows = app.screen.query_one(EnvTable).text.splitlines()
        assert [" idle " in row for row in rows[1:5]] == [True, False, True, True]
        assert "0 of 12 fresh trainings" in header(app)


@pytest.mark.parametrize("compared_is_best", [False, True])
async def test_end_of_a_growth_offers_its_answer_and_no_harvest(compared_is_best: bool) -> None:
    [answer] = [event for event in RUN if isinstance(event, ev.SearchEnded)]
    written = msgspec.structs.replace(answer, directory="telemetry/run/grown")
    app, session = live([written if event is answer else event for event in RUN[:-1]])
    async with opened(app) as pilot:
        tick(app)
        if compared_is_best:
            await emit(pilot, session, env_stepped(3, 6, 5, score=0.99))
        await emit(pilot, session, RUN[-1])
        tick(app)
        await pilot.pause()
        assert isinstance(app.screen, ChoiceDialog)
        text = " ".join(screen_text(app).split())
        assert "Run done. conv_small in mid at step 2 has a better return (score" in text
        assert "The network is in telemetry/run/grown" in text
        assert "harvest" not in text
        assert ("what if" in text) != compared_is_best


async def test_silent_engine_is_no_anomaly_once_all_trainings_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A growth trains the comparisons and tests its networks without an event."""
    monkeypatch.setattr("esper.recordings.history.run_status.check_stale", lambda cadence, *_: cadence and ANOMALY)
    app, session = live(DURING)
    async with opened(app) as pilot:
        app.view.frame_stats.age = 60.0
        assert app.view.status.anomaly is ANOMALY
        for env in (0, 2):
            await emit(pilot, session, ev.TrialEnded(round=2, step=2, env=env, candidate="x", outcome="pruned"))
        app.view.frame_stats.age = 60.0
        assert app.view.status.anomaly is None


ANOMALY = ev.AnomalyFound(rule="stale telemetry", severity="warning", where="engine", value=1.0, text="silent")


async def test_only_a_growth_has_the_screen(tmp_path: Path) -> None:
    app, _ = replay(example_run(), tmp_path, at_end=True)
    async with opened(app, "8"):
        assert app.screen.name == "overview"
        assert not app.screen.query_one(SearchSummary).display
    write_segment(tmp_path / "run", 1, recording(RUN))
    app, playback = replay_of(open_history(tmp_path / "run"), initial_view="candidates")
    async with opened(app) as pilot:
        assert app.screen.name == "candidates"
        playback.seek_end()
        await settle(pilot)
        assert "86.0" in shown(app, CandidateTable)
        assert app.view.standings[0].name == "2:conv_small@mid"
        assert BARE_HOST in {one.name for one in app.view.standings}
        assert all(panel.size for panel in app.screen.query(Panel) if panel.display)
