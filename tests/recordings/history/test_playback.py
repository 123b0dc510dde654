"""The playhead shows the same state at a position, however it got there."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.recordings import events as ev
from esper.recordings.files import segments
from esper.recordings.history import keyframe_index
from esper.recordings.history import playback as module
from esper.recordings.history.history import History, open_history
from esper.recordings.history.playback import Playback
from tests.factory import example_run, stamp
from tests.recordings.files.recordings import fold, lines, recording, write_segment

RUN = example_run()
STEPS = [i + 1 for i, event in enumerate(RUN) if isinstance(event, ev.PhaseTimed)]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    path = write_segment(tmp_path_factory.mktemp("run"), 1, recording(RUN))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyframe_index, "INDEX_INTERVAL", 7)
        patch.setattr(segments, "READ_CHUNK_BYTES", 1000)
        return open_history(path)


@pytest.fixture
def playback(history: History) -> Playback:
    return Playback(history)


def is_exact(playback: Playback) -> bool:
    return repr(playback.state) == repr(fold(RUN[: playback.position]))


MOVES: st.SearchStrategy[Callable[[Playback], None]] = st.one_of(
    st.builds(lambda n: lambda p: p.seek(n), st.integers(-3, len(RUN) + 3)),
    st.builds(lambda n: lambda p: p.step(n), st.integers(-4, 4)),
    st.builds(lambda n: lambda p: p.step_round(n), st.integers(-2, 2)),
    st.builds(lambda s: lambda p: p.seek_time(s), st.floats(-1, 2)),
    st.sampled_from([Playback.seek_start, Playback.seek_end]),
)


@given(moves=st.lists(MOVES, max_size=12), forward_seek_limit=st.sampled_from([0, 5, 1000]))
def test_seek_gives_the_same_state_from_anywhere(
    history: History, moves: list[Callable[[Playback], None]], forward_seek_limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FORWARD_SEEK_LIMIT", forward_seek_limit)
        playback = Playback(history)
        for move in moves:
            move(playback)
            assert is_exact(playback)
            assert 0 <= playback.elapsed <= playback.duration


def test_playback_starts_paused_at_the_beginning(playback: Playback) -> None:
    assert (playback.position, playback.length, playback.playing) == (0, len(RUN), False)
    assert playback.advance(10) == 0
    assert playback.position == 0


def test_playback_applies_events_by_recorded_time(playback: Playback) -> None:
    playback.playing = True

    assert playback.advance(0.105) == 11  # one per 0.01 s, the first at 0 s
    assert playback.elapsed == pytest.approx(0.105)
    playback.speed = 10
    assert playback.advance(0.01) == 10
    assert is_exact(playback)
    assert playback.playing


def test_playback_keeps_the_time_between_frames(playback: Playback) -> None:
    playback.playing = True
    playback.speed = 0.1

    for _ in range(21):
        playback.advance(0.05)

    assert playback.position == 11
    assert playback.elapsed == pytest.approx(0.105)


@pytest.mark.parametrize("speed", [100.0, math.inf])
def test_playback_stops_at_the_end(playback: Playback, speed: float) -> None:
    playback.playing = True
    playback.speed = speed

    playback.advance(60)

    assert (playback.position, playback.playing) == (len(RUN), False)
    assert playback.elapsed == playback.duration == pytest.approx((len(RUN) - 1) / 100)


def test_playback_limits_the_events_of_a_frame(playback: Playback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS_PER_ADVANCE", 20)
    playback.playing = True
    playback.speed = math.inf

    assert playback.advance(0.1) == 20
    assert playback.elapsed == pytest.approx(0.19)  # the clock does not run ahead of the shown state
    assert playback.advance(0.1) == 20
    assert playback.playing


def test_playback_steps_forwards_and_back(playback: Playback) -> None:
    playback.step(1)
    assert playback.position == STEPS[0]
    playback.step(2)
    assert playback.position == STEPS[2]
    playback.step(-1)
    assert playback.position == STEPS[1]
    playback.seek(next(at for at, event in enumerate(RUN, 1) if at > STEPS[1] and isinstance(event, ev.EnvStepped)))
    playback.step(-1)
    assert playback.position == STEPS[1]  # from within the next step
    playback.step(-2)
    assert playback.position == 0
    playback.step(len(STEPS) + 1)
    assert playback.position == len(RUN)


def test_step_back_from_behind_a_step_reaches_the_step_before(playback: Playback) -> None:
    playback.seek_end()  # events follow the end of the last step
    assert playback.position > STEPS[-1]
    playback.step(-1)
    assert playback.position == STEPS[-2]


def test_playback_round_jump_ends_after_its_last_event(playback: Playback) -> None:
    playback.step_round(2)

    assert isinstance(RUN[playback.position], ev.RoundStarted)
    assert (playback.state.round, playback.state.step) == (1, 5)
    assert all(env.stepped is not None for env in playback.state.envs)
    assert playback.state.update is not None
    assert playback.state.update.round == 1


def test_playback_continues_from_a_seek(playback: Playback) -> None:
    playback.seek_time(0.305)
    assert playback.position == 31
    playback.playing = True

    playback.advance(0.02)

    assert playback.position == 33
    assert is_exact(playback)


def test_playhead_at_the_end_follows_a_growing_run(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 1, recording(RUN[:40]))
    playback = Playback(open_history(path))
    assert not playback.poll()
    playback.seek_end()
    with path.open("ab") as file:
        file.write(lines(RUN[40:50]))

    assert playback.poll()
    assert playback.position == 50
    assert is_exact(playback)
    playback.seek(10)
    with path.open("ab") as file:
        file.write(lines(RUN[50:]))
    assert playback.poll()
    assert (playback.position, playback.length) == (10, len(RUN))
    playback.seek_end()
    assert is_exact(playback)


@pytest.mark.parametrize(("position", "expected"), [(60, 42), (50, 31), (20, 20)])
def test_playhead_on_undone_events_moves_back(tmp_path: Path, position: int, expected: int) -> None:
    write_segment(tmp_path, 1, recording(RUN[:60]))
    playback = Playback(open_history(tmp_path))
    playback.seek(position)
    later = stamp(RUN[31:42], first=32, start=RUN[60].time)
    write_segment(tmp_path, 2, recording(later, fold(RUN[:31])))

    assert playback.poll()

    assert playback.position == expected
    assert repr(playback.state) == repr(fold((RUN[:31] + later)[:expected]))


def test_playback_continues_into_events_read_while_it_plays(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 1, recording(RUN[:20]))
    playback = Playback(open_history(path))
    playback.playing = True
    playback.advance(0.105)
    with path.open("ab") as file:
        file.write(lines(RUN[20:]))
    playback.poll()

    playback.advance(0.2)

    assert (playback.position, playback.playing) == (31, True)
    assert is_exact(playback)
    assert playback.elapsed == pytest.approx(0.305)  # a poll does not turn the clock back
    playback.seek(50)
    assert playback.position == 50
    assert is_exact(playback)


def test_playback_skips_events_undone_while_it_plays(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(RUN[:60]))
    playback = Playback(open_history(tmp_path))
    playback.playing = True
    playback.advance(0.105)
    later = stamp(RUN[31:42], first=16, start=RUN[60].time)
    write_segment(tmp_path, 2, recording(later, fold(RUN[:15])))
    playback.poll()

    playback.advance(0.095)

    assert playback.position == 21
    assert repr(playback.state) == repr(fold((RUN[:15] + later)[:21]))
