"""A long recording, while the dashboard reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from esper.recordings import events as ev
from esper.recordings.files.segments import compress_segment
from esper.recordings.history.history import History, open_history
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.go_to import GoToDialog
from esper.sanctum.screens.log import LogList
from esper.sanctum.widgets.timeline import Timeline
from tests.factory import example_run, stamp
from tests.recordings.files.recordings import fold, recording, write_segment
from tests.sanctum.driving import SIZE, header, live, notices, opened, press, replay_of, settle, shown, until

ROUNDS, STEPS = 30, 5
RUN = example_run(rounds=ROUNDS, steps=STEPS)


@pytest.fixture(autouse=True)
def _read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read one block in each tick."""
    monkeypatch.setattr("esper.recordings.files.segments.READ_CHUNK_BYTES", 16384)
    monkeypatch.setattr("esper.sanctum.source.READ_BUDGET_S", 0.0)
    monkeypatch.setattr("esper.sanctum.screens.go_to.WAIT_INTERVAL_S", 0.01)


def write_run(folder: Path) -> Path:
    """Write a run of two segments, the first one packed."""
    half = len(RUN) // 2
    compress_segment(write_segment(folder, 1, recording(RUN[:half])))
    write_segment(folder, 2, recording(RUN[half:], fold(RUN[:half])))
    return folder


def partly_read(folder: Path, moment: str | None = None, *, follow: bool = False) -> SanctumApp:
    """Return a dashboard over a recording of which only the start was read."""
    return replay_of(open_history(write_run(folder), 0.0), follow=follow, moment=moment)[0]


async def read_until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Read on until a condition holds."""
    app = pilot.app
    assert isinstance(app, SanctumApp)
    for _ in range(len(RUN)):
        if condition():
            await settle(pilot)
            return
        app.source.tick(0.0)
    raise AssertionError("the condition does not hold after the end")


def hint(app: SanctumApp) -> str:
    return str(app.screen.query_one("#hint", Static).content)


async def test_dashboard_shows_how_much_was_read(tmp_path: Path) -> None:
    app = partly_read(tmp_path)
    async with opened(app) as pilot:
        seen: list[float] = []
        while (fraction := app.source.fraction_read) is not None:
            seen.append(fraction)
            assert f"REPLAY reading {100 * fraction:.0f} %" in header(app)
            assert f"{100 * fraction:.0f} % read" in shown(app, Timeline)
            await settle(pilot)
        assert seen == sorted(seen)
        assert len(set(seen)) > 10
        assert seen[0] < 0.2
        assert seen[-1] > 0.9
        await settle(pilot)
        assert "reading" not in header(app)
        assert "% read" not in shown(app, Timeline)


@pytest.mark.parametrize(("moment", "step"), [("50%", None), (f"round:{ROUNDS}", (ROUNDS, 5))])
async def test_jump_beyond_what_was_read_waits(tmp_path: Path, moment: str, step: tuple[int, int] | None) -> None:
    app = partly_read(tmp_path)
    async with opened(app) as pilot:
        await pilot.press("g", *moment, "enter")
        assert "reading the recording:" in hint(app)
        await read_until(pilot, lambda: app.source.fraction_read is None)
        await until(pilot, lambda: not isinstance(app.screen, GoToDialog))
        playback = app.source.playback
        assert playback is not None
        if step is None:
            assert playback.elapsed == pytest.approx(playback.duration / 2, abs=0.1)
        else:
            assert (app.source.state.round, app.source.state.step) == step


async def test_jump_within_what_was_read_does_not_wait(tmp_path: Path) -> None:
    app = partly_read(tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await read_until(pilot, lambda: (app.source.fraction_read or 0) > 0.3)
        await press(pilot, "g", *"round:3", "enter")
        assert app.source.fraction_read is not None
        assert (app.source.state.round, app.source.state.step) == (3, 5)


async def test_wait_for_a_moment_can_be_cancelled(tmp_path: Path) -> None:
    app = partly_read(tmp_path)
    async with opened(app) as pilot:
        await pilot.press("g", *"50%", "enter", "escape")
        assert not isinstance(app.screen, GoToDialog)
        assert app.source.fraction_read is not None
        assert app.source.state.round <= 1


async def test_missing_moment_is_refused_only_at_the_end(tmp_path: Path) -> None:
    app = partly_read(tmp_path)
    async with opened(app) as pilot:
        await pilot.press("g", *"nonsense", "enter")
        assert "is not a moment" in hint(app)
        app.screen.query_one(Input).value = "round:1000"
        await pilot.press("enter")
        assert "reading the recording:" in hint(app)
        await read_until(pilot, lambda: app.source.fraction_read is None)
        await until(pilot, lambda: "reading" not in hint(app))
        assert hint(app) == f"round:1000 is not in this recording; it has round:1 to round:{ROUNDS}"


async def test_initial_moment_is_waited_for_on_the_screen(tmp_path: Path) -> None:
    app = partly_read(tmp_path, f"round:{ROUNDS}")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: isinstance(app.screen, GoToDialog) and app.screen.is_mounted)
        await pilot.pause()
        assert "reading the recording:" in hint(app)
        await read_until(pilot, lambda: app.source.fraction_read is None)
        await until(pilot, lambda: not isinstance(app.screen, GoToDialog))
        assert app.source.state.round == ROUNDS


async def test_keys_to_the_end_do_not_stop_where_the_reading_is(tmp_path: Path) -> None:
    app = partly_read(tmp_path)
    async with opened(app) as pilot:
        playback = app.source.playback
        assert playback is not None
        await pilot.press(*["shift+right"] * ROUNDS)
        assert playback.position in playback.history.rounds
        await pilot.press(*["n"] * 50)
        assert "that were read." in notices(app)[-1]
        await pilot.press("right_curly_bracket")
        await read_until(pilot, lambda: app.source.fraction_read is None)
        await until(pilot, lambda: not isinstance(app.screen, GoToDialog))
        assert playback.position == len(RUN)


async def test_follow_goes_to_the_end_once_all_was_read(tmp_path: Path) -> None:
    app = partly_read(tmp_path, follow=True)
    async with app.run_test(size=SIZE) as pilot:
        await read_until(pilot, lambda: app.source.fraction_read is None)
        assert app.source.state.seq == len(RUN)


async def test_past_of_live_run_shows_how_much_was_read(tmp_path: Path) -> None:
    app, session = live(RUN[:-1])
    session.directory = write_run(tmp_path)
    async with opened(app, "left"):
        assert app.source.playback is None
        assert f"reading {100 * (app.source.fraction_read or 0):.0f} %" in header(app)


async def test_jump_waits_if_a_later_restore_undid_the_moment(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    step_20 = next(
        index for index, event in enumerate(RUN, start=1) if isinstance(event, ev.PhaseTimed) and event.round == 4
    )
    again = stamp(
        [event for event in RUN[step_20:] if not isinstance(event, ev.AnomalyFound)], first=step_20 + 1, start=2e9
    )
    write_segment(folder, 3, recording(again, fold(RUN[:step_20])))
    app, _ = replay_of(open_history(folder, 0.0))
    async with app.run_test(size=SIZE) as pilot:
        await read_until(pilot, lambda: (app.source.fraction_read or 0) > 0.3)
        await press(pilot, "g", *"round:3", "enter")
        assert not isinstance(app.screen, GoToDialog)
        await pilot.press("g", *"round:6", "enter")
        assert "reading the recording:" in hint(app)
        await read_until(pilot, lambda: app.source.fraction_read is None)
        await until(pilot, lambda: not isinstance(app.screen, GoToDialog))
        assert app.source.state.round == 6
        assert app.source.state.time >= 2e9


async def test_reading_for_the_log_stops_with_its_screen(tmp_path: Path) -> None:
    app, session = live(RUN[:-1])
    session.directory = write_run(tmp_path)
    async with opened(app, "6") as pilot:
        assert "reading" in header(app)
        await press(pilot, "1")
        assert "reading" not in header(app)


async def test_log_line_of_an_unfinished_step_is_gone_to_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = partly_read(tmp_path)
    async with opened(app) as pilot:
        history = app.source.history
        assert history is not None
        while history.position_of_event(history.log.last_seq) <= history.steps[-1]:
            app.source.tick(0.0)
        line = history.log.line(history.log.last_seq)
        with monkeypatch.context() as patch:
            patch.setattr(History, "poll", lambda history, _: history.length)
            await pilot.press("6", "slash", *line.text[:10].lower(), "enter")  # a search shows no groups
            assert "searched up to" in (app.screen.query_one(LogList).panel_subtitle or "")
            await pilot.press(*["pagedown"] * 50, "enter")
            assert "not read yet" in notices(app)[-1]
        await read_until(pilot, lambda: app.source.fraction_read is None)
        app.run_deferred_action()
        assert app.source.state.seq >= line.seq
        assert not app.source.state.working
