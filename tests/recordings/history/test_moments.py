"""Moments in all spellings resolve to positions; invalid ones are rejected with one sentence."""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.recordings import events as ev
from esper.recordings.history.address import MomentError, find_moment, parse_moment
from esper.recordings.history.history import History, open_history
from tests.factory import example_run
from tests.recordings.files.recordings import fold, recording, write_segment

START_TIME = datetime(2026, 3, 4, 12, 30, 20).timestamp()
RUN = [
    msgspec.structs.replace(event, time=START_TIME + 60 * index)  # one event per minute
    for index, event in enumerate(example_run())
]
STEPS = [index + 1 for index, event in enumerate(RUN) if isinstance(event, ev.PhaseTimed)]
ANOMALIES = [index + 1 for index, event in enumerate(RUN) if isinstance(event, ev.AnomalyFound)]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return open_history(write_segment(tmp_path_factory.mktemp("run"), 1, recording(RUN)))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        *((text, STEPS[4]) for text in ("round:1", "round 1", "Round 1", "r1", "R 1", "1")),
        ("round:2", STEPS[9]),
        ("1:1", STEPS[0]),
        ("2:3", STEPS[7]),
        ("step:1", STEPS[0]),
        ("step:7", STEPS[6]),
        ("event:50", 50),
        ("anomaly:2", next(end for end in STEPS if end >= ANOMALIES[1])),
        ("0s", 1),
        ("5m", 6),
        ("90s", 2),
        ("1h20m", 81),
        (" 1h0m30.5s ", 61),
        ("12:30:00", 0),  # the minute of the start
        ("12:31:20", 2),
        ("13:00:00", 30),
        ("100%", len(RUN)),
        ("50%", len(RUN) // 2 + 1),
    ],
)
def test_moments_accept_common_spellings(history: History, text: str, position: int) -> None:
    assert parse_moment(text, history) == position


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a moment; expected 8 or round:8"),
        ("noon", "'noon' is not a moment"),
        ("140%", "'140%' is not a moment"),
        ("round:0", "round:0 is not in this recording; it has round:1 to round:2"),
        ("3:1", "round:3 is not in this recording; it has round:1 to round:2"),
        ("2:6", "round 2 has no step 6, only 1 to 5; a time of day has seconds: 2:06:00"),
        ("step:11", "it has step:1 to step:10"),
        ("event:1000", f"it has event:1 to event:{len(RUN)}"),
        ("anomaly:4", "anomaly:4 is not in this recording; it has anomaly:1 to anomaly:2"),
        ("9h", "9h is after the end of this recording, which lasts 1:46:00"),
        ("25:00:00", "25:00:00 is not a time of day"),
        ("12:29:00", "12:29:00 is not in this recording, which lasts from 12:30:20 to 14:16:20"),
    ],
)
def test_invalid_moment_is_refused(history: History, text: str, message: str) -> None:
    with pytest.raises(MomentError, match=message):
        parse_moment(text, history)


@given(
    text=st.text(max_size=12)
    | st.from_regex(r"(round|step|event|anomaly)[: ]\d{1,4}|r?\d{1,4}|\d{1,3}:\d{1,3}|\d{0,3}h?\d{0,3}m?\d{0,3}s?")
)
def test_any_text_is_a_position_or_refused(history: History, text: str) -> None:
    with contextlib.suppress(MomentError):
        assert 0 <= parse_moment(text, history) <= history.length


def test_time_of_day_after_midnight_is_found(tmp_path: Path) -> None:
    begin = datetime(2026, 3, 4, 23, 59, 0).timestamp()
    run = [msgspec.structs.replace(event, time=begin + index) for index, event in enumerate(example_run())]
    history = open_history(write_segment(tmp_path, 1, recording(run)))
    assert parse_moment("0:00:10", history) == 71


def test_time_of_day_in_a_gap_is_the_resume(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    write_segment(directory, 1, recording(RUN[:20]))
    later = [msgspec.structs.replace(event, time=event.time + 7200) for event in RUN[20:]]

    write_segment(directory, 2, recording(later, fold(RUN[:20])))
    history = open_history(directory)
    assert parse_moment("13:30:00", history) == 20
    assert parse_moment("14:50:20", history) == 21


def without(*lost: int) -> list[ev.AnyEvent]:
    """Return the run without the events with these numbers."""
    return [event for event in RUN if event.seq not in lost]


def test_round_without_steps_is_its_start(tmp_path: Path) -> None:
    starts = [index + 1 for index, event in enumerate(RUN) if isinstance(event, ev.RoundStarted)]
    history = open_history(write_segment(tmp_path, 1, recording(RUN[: starts[1] + 1])))
    assert parse_moment("round:2", history) == starts[1]
    assert history.state_at(starts[1]).round == 2


def test_round_that_is_half_read_is_waited_for(tmp_path: Path) -> None:
    """The end of a round is known once the next one has begun, or all was read."""
    file = write_segment(tmp_path, 1, recording(RUN[: STEPS[2]]))
    history = open_history(file)
    assert parse_moment("1", history) == STEPS[2]
    file.write_bytes(recording(RUN))
    history.poll(0.0)
    assert history.is_fully_read or find_moment("2", history) is None
    history.poll()
    assert parse_moment("1", history) == STEPS[4]


def test_damaged_line_keeps_later_numbers(tmp_path: Path) -> None:
    second_step, second_round = STEPS[1], next(e.seq for e in RUN if isinstance(e, ev.RoundStarted) and e.round == 2)
    history = open_history(write_segment(tmp_path, 1, recording(without(second_step, second_round))))

    assert parse_moment(f"event:{second_step - 1}", history) == second_step - 1
    assert parse_moment(f"event:{second_step + 1}", history) == second_step
    assert parse_moment(f"event:{len(RUN)}", history) == history.length
    assert parse_moment("step:1", history) == STEPS[0]
    assert parse_moment("step:3", history) == STEPS[2] - 1
    assert parse_moment("step:10", history) == STEPS[9] - 2
    assert parse_moment("1:1", history) == STEPS[0]
    for lost in ("step:2", f"event:{second_step}"):
        with pytest.raises(MomentError, match=f"{lost} is not in this recording; its line is damaged or missing"):
            parse_moment(lost, history)
    with pytest.raises(MomentError, match="it has round:1 to round:1"):
        parse_moment("round:2", history)


@pytest.mark.parametrize("digits", [16, 5000])
@pytest.mark.parametrize("form", ["event:{}", "round:{}", "{}h", "{}s", "{}%", "1.{}s"])
def test_number_with_too_many_digits_is_refused(history: History, form: str, digits: int) -> None:
    with pytest.raises(MomentError, match="is not a moment"):
        parse_moment(form.format("1" * digits), history)
