from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.recordings.history.history import History
from esper.recordings.history.timeline import MarkKind
from esper.sanctum.app import MAX_NOTICES, SanctumApp
from esper.sanctum.screens.dialogs import ChoiceDialog
from esper.sanctum.screens.go_to import GoToDialog
from esper.sanctum.screens.growth import GrowthChart
from esper.sanctum.screens.help import HelpScreen
from esper.sanctum.symbols import MARK_SYMBOLS
from esper.sanctum.widgets.env_map import EnvMap
from esper.sanctum.widgets.env_table import EnvTable
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.timeline import Timeline
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment
from tests.sanctum.driving import emit, header, live, notices, opened, press, replay, screen_text, settle, shown, tick
from tests.sanctum.sessions import fall_silent

RUN = example_run(rounds=3)
ENDS = [index for index, event in enumerate(RUN, start=1) if isinstance(event, ev.PhaseTimed)]
STOPS = sorted(
    {
        next(end for end in ENDS if end >= event.seq)
        for event in RUN
        if isinstance(event, ev.AnomalyFound | ev.CheckpointSaved)
    }
)
"""Ends of the steps with a mark."""
HALF = next(index for index, event in enumerate(RUN) if isinstance(event, ev.RoundStarted) and event.round == 3)


async def test_bookmark_keys_set_visit_and_delete_marks(tmp_path: Path) -> None:
    app, playback = replay(RUN, tmp_path)
    app.view.mark_group = "all"
    async with opened(app) as pilot:
        seen: list[int] = []
        for _ in STOPS:
            await pilot.press("n")
            seen.append(playback.position)
        assert seen == STOPS
        await pilot.press("n")
        assert playback.position == STOPS[-1]
        await pilot.press("N")
        assert playback.position == STOPS[-2]

        await pilot.press("left_curly_bracket", "right", "m", "left_curly_bracket", "n")
        own = playback.position
        assert own not in STOPS
        assert MARK_SYMBOLS[MarkKind.BOOKMARK][0].glyph not in shown(app, Timeline)  # the playhead covers it
        await press(pilot, "right")
        assert MARK_SYMBOLS[MarkKind.BOOKMARK][0].glyph in shown(app, Timeline)
        await pilot.press("left", "m", "left_curly_bracket", "n")
        assert playback.position == STOPS[0]


async def test_go_to_accepts_valid_and_refuses_unknown_moments(tmp_path: Path) -> None:
    app, playback = replay(RUN, tmp_path)
    async with opened(app) as pilot:
        await pilot.press("g", *"round:9", "enter")
        assert isinstance(app.screen, GoToDialog)
        assert "it has round:1 to round:3" in str(app.screen.query_one("#hint", Static).content)
        app.screen.query_one(Input).value = "step:7"
        await press(pilot, "enter")
        assert (app.source.state.round, app.source.state.step) == (2, 2)
        for text, moment in (("r1", (1, 5)), ("3", (3, 5)), ("round 2", (2, 5)), ("2:2", (2, 2))):
            await press(pilot, "g", *text, "enter")
            assert (app.source.state.round, app.source.state.step) == moment
        await pilot.press("g", "escape")
        assert app.source.state.step == 2
        assert not playback.playing


async def test_playhead_can_be_dragged(tmp_path: Path) -> None:
    app, playback = replay(RUN, tmp_path)
    async with opened(app) as pilot:
        await pilot.mouse_down(Timeline, offset=(40, 1))
        there = playback.position
        assert 0 < there < playback.length
        await pilot.hover(Timeline, offset=(70, 1))
        assert playback.position > there
        await pilot.hover(Timeline, offset=(119, 1))
        await pilot.mouse_up(Timeline, offset=(119, 1))
        assert playback.position == playback.length
        await pilot.hover(Timeline, offset=(40, 1))
        assert playback.position == playback.length


async def test_cancelled_go_to_stays_in_the_present(tmp_path: Path) -> None:
    app, _ = live(RUN[:HALF], recorded_in=tmp_path)
    async with opened(app, size=(80, 24)) as pilot:
        await pilot.press("g", *"12:30:00", "enter")
        hint = app.screen.query_one("#hint", Static)
        await settle(pilot)
        assert hint.size.height > 1  # it is wrapped
        await pilot.press("escape")
        assert app.source.playback is None
        await press(pilot, "left_curly_bracket")
        assert "loading torch" not in screen_text(app)
        await pilot.press("g", "escape")
        assert app.source.playback is not None  # closing this dialog does not return to the present


async def test_live_run_past_can_be_visited_and_left(tmp_path: Path) -> None:
    app, session = live(RUN[:HALF])
    file = session.record(tmp_path, RUN[:HALF])
    async with opened(app) as pilot:
        assert not app.screen.query_one(Timeline).display
        await press(pilot, "left")
        assert (app.source.state.round, app.source.state.step) == (2, 4)
        await pilot.press("shift+left")
        assert (app.source.state.round, app.source.state.step) == (1, 5)
        position = app.source.state.seq
        assert "◀ PAST: 1 s behind; the live run continues" in header(app)
        assert app.screen.query_one(Timeline).display

        tick(app)  # the dashboard has seen the run while it trained
        session.say(*RUN[HALF:])  # the run continues and records its events
        file.write_bytes(recording(RUN))
        await settle(pilot)
        assert app.source.state.seq == position
        assert app.source.live_state.seq == len(RUN)
        assert "behind; the live run has ended" in header(app)
        assert app.source.playback is not None
        assert app.source.playback.length == len(RUN)

        await press(pilot, "end")
        assert app.source.state.seq == len(RUN)
        tick(app)
        await pilot.pause()
        assert isinstance(app.screen, ChoiceDialog)  # the present is shown, in which the run has ended
        await press(pilot, "escape")
        assert "DONE" in header(app)
        assert not app.screen.query_one(Timeline).display


@pytest.mark.parametrize("in_progress", [0, 1])
async def test_first_step_back_from_the_present_moves_one_step(tmp_path: Path, in_progress: int) -> None:
    run = RUN[: ENDS[7] + in_progress]
    app, _ = live(run, recorded_in=tmp_path)
    async with opened(app) as pilot:
        assert "step 3/5" in header(app)
        await press(pilot, "left")
        assert "step 2/5" in header(app)


async def test_first_step_back_from_the_end_of_a_replay_moves_one_step(tmp_path: Path) -> None:
    app, playback = replay(RUN, tmp_path, at_end=True)
    async with opened(app) as pilot:
        assert "step 5/5" in header(app)
        await press(pilot, "left")
        assert "step 4/5" in header(app)
        playback.seek(ENDS[7] + 1)
        playback.playing = True
        await press(pilot, "left")
        assert "step 2/5" in header(app)


async def test_key_without_effect_in_the_present_says_why(tmp_path: Path) -> None:
    back = " Left goes back in time."
    said = {
        "space": "A live run plays by itself." + back,
        "right": "No step after the present." + back,
        "shift+right": "No round after the present." + back,
        "n": "No mark after the present." + back,
        "less_than_sign": "A live run has no playback speed." + back,
        "greater_than_sign": "A live run has no playback speed." + back,
        "right_curly_bracket": "The present is shown already.",
    }
    app, _ = live(RUN[:HALF], recorded_in=tmp_path)
    async with opened(app) as pilot:
        for key, note in said.items():
            app.clear_notifications()
            await press(pilot, key)
            assert notices(app) == [note]
            assert app.source.playback is None


async def test_key_that_cannot_move_a_replay_says_why(tmp_path: Path) -> None:
    app, playback = replay(RUN, tmp_path, at_end=True)
    async with opened(app) as pilot:
        await press(pilot, "right")
        assert notices(app)[-1] == "This is the end."
        playback.speed = 0.1
        await press(pilot, "less_than_sign")
        assert notices(app)[-1] == "This is the lowest speed."


async def test_control_keys_act_on_the_present_while_in_the_past(tmp_path: Path) -> None:
    app, session = live(RUN[:HALF], recorded_in=tmp_path)
    async with opened(app) as pilot:
        await pilot.press("left_curly_bracket", "p", "c")
        assert [request.kind for request in session.asked()] == [RequestKind.PAUSE, RequestKind.CHECKPOINT]
        assert app.source.state.seq == 1
        assert "pausing…" in header(app)
        assert shown(app, Footer).startswith("End live p pause")
        await emit(pilot, session, ev.Paused(round=2, step=5, origin="keyboard"))
        assert shown(app, Footer).startswith("End live p resume s step")
        await emit(pilot, session, ev.Resumed(round=2, step=5, origin="keyboard"))
        await press(pilot, "right_curly_bracket")
        assert "RUNNING" in header(app)


async def test_time_keys_without_recording_are_refused() -> None:
    app, session = live(RUN[:HALF])
    async with opened(app) as pilot:
        before = header(app)
        await press(pilot, "space", "right", "left", "comma", "n", "m")
        assert session.asked() == []
        assert header(app) == before
        assert notices(app)[-1] == "No recording yet."


class Gate:
    """Blocks the reading of a recording until opened."""

    def __init__(self) -> None:
        self.open = False
        self.poll_history = History.poll

    def poll(self, history: History, within: float = math.inf) -> int:
        assert within < math.inf
        if self.open:
            return self.poll_history(history, within)
        return history.length


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()

    def poll(history: History, within: float = math.inf) -> int:
        return gate.poll(history, within)

    monkeypatch.setattr(History, "poll", poll)
    return gate


async def test_long_recording_is_read_while_the_run_continues(tmp_path: Path, gate: Gate) -> None:
    app, session = live(RUN[:HALF], recorded_in=tmp_path)
    async with opened(app) as pilot:
        await pilot.press("left", "space")
        session.say(*RUN[HALF : HALF + 5])
        await settle(pilot)
        assert app.source.playback is None
        assert app.source.state.seq == HALF + 5
        assert "RUNNING" in header(app)
        gate.open = True
        tick_until_arrived(app)
        assert (app.source.state.round, app.source.state.step) == (2, 4)


@pytest.mark.parametrize("keys", [["left", "end"], ["m"]])
async def test_cancelled_visit_to_the_past_stays_in_the_present(tmp_path: Path, gate: Gate, keys: list[str]) -> None:
    app, session = live(RUN[:HALF])
    file = session.record(tmp_path, RUN[:HALF])
    async with opened(app) as pilot:
        await pilot.press(*keys)
        file.write_bytes(recording(RUN))
        gate.open = True
        tick_until_arrived(app)
        await settle(pilot)
        assert "PAST" not in header(app)
        await pilot.press("left_curly_bracket")
        tick_until_arrived(app)
        assert app.source.playback is not None
        assert app.source.state.seq == 1
        marks = [mark.position for mark in app.source.playback.history.marks if mark.kind is MarkKind.BOOKMARK]
        assert marks == ([HALF] if "m" in keys else [])


def tick_until_arrived(app: SanctumApp) -> None:
    """Tick often enough to read a recording and go to the requested moment."""
    for _ in range(10):
        app.source.tick(0.0)
        app.run_deferred_action()


async def test_bookmark_set_in_the_present_is_reachable(tmp_path: Path) -> None:
    app, session = live(RUN[:HALF])
    file = session.record(tmp_path, RUN[:HALF])
    async with opened(app) as pilot:
        await pilot.press("m")
        assert app.source.playback is None
        session.say(*RUN[HALF:])
        file.write_bytes(recording(RUN))
        await settle(pilot)
        await pilot.press("left", "end")
        assert app.source.playback is None
        app.view.mark_group = "all"
        await pilot.press(*"N" * sum(stop > HALF for stop in STOPS), "N")
        assert app.source.state.seq == HALF


async def test_past_of_paused_run_can_be_played(tmp_path: Path) -> None:
    app, _ = live(RUN[:HALF], recorded_in=tmp_path)
    async with opened(app) as pilot:
        await pilot.press("left_curly_bracket", "space")
        assert app.source.tick(0.1)
        assert app.source.state.seq > 0
        await pilot.press("space")
        assert app.source.tick(0.1) is False


@pytest.mark.parametrize("num_notices", [0, MAX_NOTICES + 1])
async def test_deleted_recording_returns_to_the_present(
    num_notices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is shown however many notices about damage there are."""
    app, session = live(RUN[:HALF])
    session.directory = tmp_path / "run"
    monkeypatch.setattr(type(app.source), "notices", [f"line {number} is damaged" for number in range(num_notices)])
    file = write_segment(session.directory, 1, recording(RUN[:HALF]))
    async with opened(app) as pilot:
        tick(app)
        await pilot.press("left")
        file.unlink()
        await pilot.press("shift+left")
        assert "No such file" in notices(app)[-1]
        tick(app)
        await settle(pilot)
        assert app.source.playback is None
        assert "RUNNING" in header(app)
        assert "Cannot show the past any longer" in notices(app)[-1]


async def test_past_of_a_live_run_does_not_hide_or_fake_a_silent_engine(tmp_path: Path) -> None:
    app, session = live(RUN[:HALF], recorded_in=tmp_path)
    async with opened(app) as pilot:
        await pilot.press("shift+left")
        assert app.source.playback is not None
        fall_silent(app)
        session.say(RUN[HALF])  # the playhead stays, but the engine reports
        await settle(pilot)
        app.update_stats(time.monotonic())
        assert app.view.status.anomaly is None
        fall_silent(app)
        assert app.view.status.anomaly is not None


async def test_hidden_timeline_returns_the_focus(tmp_path: Path) -> None:
    app, _ = live(RUN[:HALF], recorded_in=tmp_path)
    async with opened(app) as pilot:
        for key, focused in (("1", EnvTable), ("w", EnvMap), ("3", GrowthChart)):
            await press(pilot, key, "left_curly_bracket")
            app.screen.query_one(Timeline).focus()
            await pilot.pause()
            await press(pilot, "right_curly_bracket")
            assert not app.screen.query_one(Timeline).display
            assert isinstance(app.focused, focused)


async def test_end_in_an_input_or_a_dialog_stays_in_the_past(tmp_path: Path) -> None:
    app, _ = live(RUN[:HALF], recorded_in=tmp_path)
    async with opened(app) as pilot:
        for keys in (("slash", *"ab", "left"), ("g", *"ab", "left"), ("a",)):
            await pilot.press("shift+left", *keys, "end")
            assert app.source.playback is not None, keys
            if isinstance(app.focused, Input):
                assert app.focused.cursor_position == 2
            await press(pilot, "escape")
            await pilot.press("end")
            assert app.source.playback is None, keys


async def test_keys_that_move_forward_are_shown_in_the_past_of_a_live_run(tmp_path: Path) -> None:
    app, _ = live(RUN[:HALF], recorded_in=tmp_path)
    forward = ("space play", "→ step", "⇧→ round", "n next mark")
    async with opened(app, size=(200, 60)) as pilot:
        assert not any(key in shown(app, Footer) for key in forward)
        await press(pilot, "left_curly_bracket")
        assert all(key in shown(app, Footer) for key in forward)
        assert "p pause" in shown(app, Footer)
        assert "Play (space)" in [command.title for command in app.get_system_commands(app.screen)]
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        page = " ".join(app.screen.page("").plain.split())
        assert "→ forward one step" in page
        assert "Home go to the start" in page
