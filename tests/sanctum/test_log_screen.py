from __future__ import annotations

from pathlib import Path

import pytest
from textual.events import MouseScrollUp

from esper.recordings import events as ev
from esper.recordings.state.state import MAX_LOG_LINES
from esper.sanctum.screens.log import LogList
from tests.factory import example_run, run_started, stamp
from tests.recordings.files.recordings import fold
from tests.sanctum.driving import emit, live, opened, press, replay, settle, until
from tests.sanctum.population import anomaly, moved

NUM_MESSAGES = 3 * MAX_LOG_LINES


def long_run() -> list[ev.AnyEvent]:
    """Return a run with more log lines than a state holds; one of the first is about a rollback."""
    messages = [ev.Logged(severity="info", text=f"message {number}") for number in range(NUM_MESSAGES)]
    broken = anomaly(text="env 02 was rolled back")
    steps = [ev.PhaseTimed(round=1, step=step, wall=0.1, phases={}) for step in (1, 2)]
    return stamp([run_started(4), ev.RoundStarted(round=1), broken, steps[0], *messages, steps[1]])


def subtitle(log: LogList) -> str:
    return log.panel_subtitle or ""


def shown_lines(log: LogList) -> list[str]:
    return log.text.rstrip().splitlines()


async def test_log_of_replay_holds_the_whole_recording(tmp_path: Path) -> None:
    run = long_run()
    app, playback = replay(run, tmp_path, at_end=True)
    async with opened(app, "6") as pilot:
        log = app.screen.query_one(LogList)
        assert subtitle(log) == f"{NUM_MESSAGES + 2:,} lines · all kinds · info+ · all envs"
        await pilot.press("slash", *"rolled back", "enter")
        assert subtitle(log) == "1 line · all kinds · info+ · all envs · /rolled back"
        assert "env 02 was rolled back" in log.text
        await pilot.press("enter")
        assert app.view.selected_env == 2
        assert playback.position < 10


async def test_log_of_live_run_is_completed_from_its_recording(tmp_path: Path) -> None:
    run = long_run()
    app, session = live(run[:-1])
    session.record(tmp_path, run[:-9])  # the recorder is a little behind
    async with opened(app, "6") as pilot:
        log = app.screen.query_one(LogList)
        assert subtitle(log).startswith(f"{NUM_MESSAGES + 2:,} lines")
        assert shown_lines(log)[-1].endswith(f"message {NUM_MESSAGES - 1}")
        await pilot.press("slash", *"rolled", "enter")
        assert "env 02 was rolled back" in log.text
        await emit(pilot, session, ev.Logged(severity="info", text="rolled up"))
        assert [line.split()[-1] for line in shown_lines(log)] == ["back", "up"]
        assert app.source.playback is None
        await press(pilot, "home", "enter")
        assert app.source.playback is not None


async def test_log_cursor_stays_on_its_line(tmp_path: Path) -> None:
    run = long_run()
    app, session = live(run, recorded_in=tmp_path)
    async with opened(app, "6") as pilot:
        log = app.screen.query_one(LogList)

        def selected() -> str:
            [line] = [line for line in shown_lines(log) if "▸" in line]
            return line.split(maxsplit=2)[2]

        await pilot.press("pageup", "up")
        before = selected()
        await emit(pilot, session, *[ev.Logged(severity="info", text="more")] * 60)
        assert selected() == before
        await pilot.press("end")
        assert selected() == "more"
        await emit(pilot, session, ev.Logged(severity="info", text="the newest"))
        assert selected() == "the newest"  # the cursor follows again
        log.post_message(MouseScrollUp(log, 5, 5, 0, -1, 0, False, False, False))
        await pilot.pause()
        assert selected() == "more"


async def test_log_says_how_much_was_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.recordings.files.segments.READ_CHUNK_BYTES", 4096)
    monkeypatch.setattr("esper.sanctum.source.READ_BUDGET_S", 0.0)
    run = long_run()
    app, _ = live(run, recorded_in=tmp_path)
    async with opened(app, "6") as pilot:
        log = app.screen.query_one(LogList)
        assert "· searched up to " in subtitle(log)
        await pilot.press("slash", *"rolled", "enter")
        while "env 02 was rolled back" not in log.text:
            await settle(pilot)
        assert "· searched" in subtitle(log)  # the first hits do not wait for the rest
        while "searched" in subtitle(log):
            await settle(pilot)
        assert subtitle(log) == "1 line · all kinds · info+ · all envs · /rolled"


async def test_equal_lines_of_a_step_are_grouped(tmp_path: Path) -> None:
    moves = [moved(env, "mid", "dormant", "germinated", "norm") for env in range(37)]
    steps = [ev.PhaseTimed(round=1, step=step, wall=0.1, phases={}) for step in (1, 2)]
    run = stamp([run_started(40), ev.RoundStarted(round=1), *moves, steps[0], moves[0], steps[1]])
    app, playback = replay(run, tmp_path, at_end=True)
    async with opened(app, "6", size=(120, 60)) as pilot:
        log = app.screen.query_one(LogList)
        assert [line.split()[-3:] for line in shown_lines(log)[1:]] == [
            ["37", "seeds", "planted"], ["mid", "norm", "planted"],
        ]  # fmt: skip
        await pilot.press("up", "enter")
        assert len(shown_lines(log)) == 40
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: app.view.selected_env == 1)
        assert playback.state.steps_done <= 1


async def test_moment_of_a_line_leads_to_its_step(tmp_path: Path) -> None:
    run = example_run()
    app, _ = replay(run, tmp_path, at_end=True)
    async with opened(app, "6", size=(120, 60)) as pilot:
        lines = [line.replace("▸", "").split() for line in shown_lines(app.screen.query_one(LogList))]
        moments = {" ".join(words[2:]): words[1] for words in lines}
        update = next(text for text in moments if text.startswith("round 1 policy update"))
        assert moments[update] == "1:5"  # the update follows the last step of its round
        planted = [event for event in run if isinstance(event, ev.SeedMoved) and event.after == "germinated"]
        await press(pilot, "g", *moments["+ 4 seeds planted"], "enter")
        assert (app.source.state.round, app.source.state.step) == (planted[-1].round, planted[-1].step)


async def test_lines_after_the_playhead_are_shown(tmp_path: Path) -> None:
    run = example_run()
    app, playback = replay(run, tmp_path)
    async with opened(app, "6", size=(120, 60)) as pilot:
        log = app.screen.query_one(LogList)
        assert subtitle(log).startswith(f"{len(fold(run).log)} lines")
        playback.seek(run.index(next(event for event in run if isinstance(event, ev.CheckpointSaved))) + 1)
        await settle(pilot)
        [selected] = [line for line in shown_lines(log) if "▸" in line]
        assert "checkpoint at round 1" in selected
