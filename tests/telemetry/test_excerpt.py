"""The minutes around a moment, as a recording that opens by itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from esper.telemetry import events as ev
from esper.telemetry import excerpt
from esper.telemetry.excerpt import write_excerpt
from esper.telemetry.reader import History, open_history
from tests.factory import example_run
from tests.telemetry.recordings import fold, recording, write_segment

RUN = [msgspec.structs.replace(event, time=1e9 + event.seq * 4.0) for event in example_run()]


@pytest.fixture
def history(tmp_path: Path) -> History:
    write_segment(tmp_path / "night", 1, recording(RUN))
    return open_history(tmp_path / "night")


def test_it_opens_by_itself_and_shows_what_the_run_showed(history: History, tmp_path: Path) -> None:
    moment = 50  # positions; the first event stands at 0 seconds

    path = write_excerpt(history, (moment - 1) * 4.0, tmp_path)

    assert path.suffixes == [".jsonl", ".zst"]
    piece = open_history(path)
    assert piece.notices == []
    start = 20  # the last event at or before 76 s is the 20th
    assert piece.length == 60
    assert repr(list(piece.events())) == repr(RUN[start : start + 60])
    for position in (0, 1, 30, 60):
        assert repr(piece.state_at(position)) == repr(fold(RUN[: start + position]))


def test_near_the_start_and_the_end_it_is_shorter(history: History, tmp_path: Path) -> None:
    first = open_history(write_excerpt(history, 0.0, tmp_path))
    last = open_history(write_excerpt(history, history.duration, tmp_path))

    assert (first.length, next(first.events()).seq) == (31, 1)
    assert list(last.events())[-1] == RUN[-1]
    assert last.length == 30


def test_it_is_named_after_run_and_step_and_overwrites_nothing(history: History, tmp_path: Path) -> None:
    step_two = history.steps[1]
    assert isinstance(RUN[step_two - 1], ev.PhaseTimed)

    paths = [write_excerpt(history, (step_two - 1) * 4.0, tmp_path) for _ in range(3)]

    assert [path.name for path in paths] == [
        "night-step2.jsonl.zst", "night-step2-2.jsonl.zst", "night-step2-3.jsonl.zst",
    ]  # fmt: skip


def test_what_cannot_be_written_leaves_nothing(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(excerpt, "encode_lines", full)

    with pytest.raises(OSError, match="No space"):
        write_excerpt(history, 100.0, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["night"]


def test_a_directory_that_is_not_there_is_an_error(history: History, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_excerpt(history, 0.0, tmp_path / "nowhere")
