"""An excerpt is a recording of the minutes around a moment that can be opened alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from esper.recordings import events as ev
from esper.recordings.history import excerpt
from esper.recordings.history.address import MomentError, parse_moment
from esper.recordings.history.excerpt import write_excerpt
from esper.recordings.history.history import History, open_history
from tests.factory import example_run
from tests.recordings.files.recordings import fold, recording, write_segment

STEP_ENDS = [index for index, event in enumerate(example_run(), start=1) if isinstance(event, ev.PhaseTimed)]
RUN = [msgspec.structs.replace(event, time=1e9 + event.seq * 4.0) for event in example_run()]


@pytest.fixture
def history(tmp_path: Path) -> History:
    write_segment(tmp_path / "night", 1, recording(RUN))
    return open_history(tmp_path / "night")


def test_excerpt_opens_alone_with_the_same_state(history: History, tmp_path: Path) -> None:
    moment = 50  # a position; the first event is at 0 s

    path = write_excerpt(history, moment, tmp_path)

    assert path.suffixes == [".jsonl", ".zst"]
    excerpt = open_history(path)
    assert excerpt.notices == []
    # The 20th to the 80th event are at 76 s to 316 s; the excerpt contains the complete steps around them.
    start, stop = max(end for end in STEP_ENDS if end <= 20), min(end for end in STEP_ENDS if end >= 80)
    assert excerpt.length == stop - start
    assert repr(list(excerpt.events())) == repr(RUN[start:stop])
    for position in (0, 1, moment - start, stop - start):
        assert repr(excerpt.state_at(position)) == repr(fold(RUN[: start + position]))


def test_excerpt_near_start_or_end_is_shorter(history: History, tmp_path: Path) -> None:
    first = open_history(write_excerpt(history, 0, tmp_path))
    last = open_history(write_excerpt(history, history.length, tmp_path))

    assert (first.length, next(first.events()).seq) == (min(end for end in STEP_ENDS if end >= 30), 1)
    assert list(last.events())[-1] == RUN[-1]
    assert last.length == len(RUN) - max(end for end in STEP_ENDS if end <= len(RUN) - 30)


def test_moments_have_the_same_names_in_an_excerpt(history: History, tmp_path: Path) -> None:
    excerpt = open_history(write_excerpt(history, STEP_ENDS[-1], tmp_path))
    assert excerpt.state_at(0).steps_done > 0
    for text in (f"step:{len(STEP_ENDS)}", f"event:{len(RUN) - 3}", f"step:{len(STEP_ENDS) - 1}"):
        states = [where.state_at(parse_moment(text, where)) for where in (history, excerpt)]
        assert repr(states[0]) == repr(states[1])
    with pytest.raises(MomentError, match=f"step:1 is not in this recording; it has step:.* to step:{len(STEP_ENDS)}"):
        parse_moment("step:1", excerpt)


def test_excerpt_keeps_recorded_time_still_at_a_resume(tmp_path: Path) -> None:
    at = STEP_ENDS[3]
    later = [msgspec.structs.replace(event, time=event.time + 5000.0) for event in RUN[at:]]
    write_segment(tmp_path / "night", 1, recording(RUN[:at]))
    write_segment(tmp_path / "night", 2, recording(later, fold(RUN[:at])))
    history = open_history(tmp_path / "night")

    excerpt = open_history(write_excerpt(history, at, tmp_path))

    first = (
        history.length - excerpt.length if excerpt.state_at(excerpt.length).seq == len(RUN) else excerpt.state_at(0).seq
    )
    assert excerpt.duration < 300.0
    assert excerpt.duration == pytest.approx(
        history.elapsed(first + excerpt.length - 1, excerpt.state_at(excerpt.length).time)
        - history.elapsed(first, next(history.events(first)).time)
    )
    assert repr(excerpt.state_at(at - first)) == repr(history.state_at(at))


def test_excerpt_is_named_after_the_step_without_overwriting(history: History, tmp_path: Path) -> None:
    step_two = history.steps[1]
    assert isinstance(RUN[step_two - 1], ev.PhaseTimed)

    paths = [write_excerpt(history, step_two, tmp_path) for _ in range(3)]

    assert [path.name for path in paths] == [
        "night-step2.jsonl.zst", "night-step2-2.jsonl.zst", "night-step2-3.jsonl.zst",
    ]  # fmt: skip


def test_failed_excerpt_leaves_no_file(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(excerpt, "encode_lines", fail)

    with pytest.raises(OSError, match="No space"):
        write_excerpt(history, 26, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["night"]


def test_excerpt_into_missing_directory_fails(history: History, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_excerpt(history, 0, tmp_path / "nowhere")
