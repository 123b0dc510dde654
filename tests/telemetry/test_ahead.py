"""Segments that are read ahead in processes of their own give the history that reading them in turn gives."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from esper.telemetry import ahead, reader
from esper.telemetry import events as ev
from esper.telemetry.ahead import Ahead
from esper.telemetry.reader import History, open_history
from esper.telemetry.segment_writer import pack
from esper.telemetry.state import Keyframe
from tests.factory import example_run, stamp
from tests.telemetry.recordings import fold, lines, write_segment

RUN = example_run(envs=4, rounds=4, steps=10)
CUTS = (0, 60, 170, 171, 260, len(RUN))


def write(directory: Path, parts: Sequence[tuple[int, int]], cut: Callable[[bytes], bytes] = lambda text: text) -> None:
    """A packed segment for each part of RUN; the second is changed by `cut`."""
    for number, (start, stop) in enumerate(parts, 1):
        content = lines([Keyframe.of(fold(RUN[:start])), *RUN[start:stop]])
        pack(write_segment(directory, number, cut(content) if number == 2 else content))


PARTS = list(pairwise(CUTS))
RECORDINGS: dict[str, tuple[list[tuple[int, int]], Callable[[bytes], bytes]]] = {
    "in a row": (PARTS, lambda text: text),
    "with a gap": ([*PARTS[:2], *PARTS[3:]], lambda text: text),
    "gone back": ([(0, 150), (60, 200), (150, len(RUN))], lambda text: text),
    "gone back within": (
        PARTS,
        lambda text: text + lines([Keyframe.of(fold(RUN[:40])), *stamp(RUN[40:45], 41, RUN[170].time)]),
    ),
    "with a line left out": (PARTS, lambda text: b"".join(x for x in text.splitlines(True) if b'"seq":100,' not in x)),
    "with a damaged line": (PARTS, lambda text: text.replace(b'"seq":100,', b'"seq":"?",')),
    "with no keyframe": (PARTS, lambda text: text[text.index(b"\n") + 1 :]),
    "of another version": (PARTS, lambda text: text + b'{"type":"Dreamt","seq":171,"time":1.0}\n'),
}


def facts(history: History) -> list[object]:
    """All that can be asked of a history."""
    draw = random.Random(0)
    positions = sorted({0, history.length, *(draw.randrange(history.length) for _ in range(25)), *CUTS})
    return [
        history.length,
        pytest.approx(history.duration),
        list(history.steps),
        list(history.rounds),
        [(mark.sign, mark.position, pytest.approx(mark.elapsed)) for mark in history.marks],
        repr(list(history.events())),
        [repr(history.state_at(position)) for position in positions],
        [history.position_at(history.duration * share / 20) for share in range(21)],
        [history.position_at_time(RUN[0].time + (RUN[-1].time - RUN[0].time) * share / 20) for share in range(21)],
        [pytest.approx(history.elapsed(i, event.time)) for i, event in enumerate(history.events())],
        history.notices,
    ]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What was read ahead, though it is small: the segment, and whether it was joined on as it was."""
    found = list[tuple[str, bool]]()
    monkeypatch.setattr(ahead, "LEAST", 0)
    monkeypatch.setattr(reader, "BLOCK", 64)

    def take(self: Ahead, path: Path, original: Callable[[Ahead, Path], History | None] = Ahead.take) -> History | None:
        alone = original(self, path)
        if alone:
            found.append((path.name, False))
        return alone

    def begin_reading(self: History, deadline: float, original: Callable[..., int] = History._read_on) -> int:
        if found and found[-1][0] == self._segment.path.name:
            found[-1] = (found[-1][0], self._complete)
        return original(self, deadline)

    monkeypatch.setattr(Ahead, "take", take)
    monkeypatch.setattr(History, "_read_on", begin_reading)
    return found


@pytest.mark.parametrize("name", RECORDINGS)
def test_read_ahead_gives_the_same_history(
    tmp_path: Path, taken: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    parts, cut = RECORDINGS[name]
    write(tmp_path / "run", parts, cut)
    found = facts(open_history(tmp_path / "run"))
    joined = [segment for segment, whole in taken if whole]
    assert joined
    assert (len(joined) == len(parts)) == (name == "in a row")

    monkeypatch.setattr(ahead, "MOST", 1)
    seen = len(taken)
    assert facts(open_history(tmp_path / "run")) == found
    assert len(taken) == seen


def test_read_ahead_first_poll_does_not_wait(tmp_path: Path, taken: list[tuple[str, bool]]) -> None:
    write(tmp_path / "run", PARTS)
    history = open_history(tmp_path / "run", 0.0)
    assert 0 < history.length < len(RUN)
    assert not taken

    lengths = {history.length}
    while not history.loaded:
        start = time.perf_counter()
        history.poll(0.01)
        assert time.perf_counter() - start < 5
        lengths.add(history.length)
    assert history.length == len(RUN)
    assert len(lengths) > 2
    assert [name for name, _ in taken] == [f"events-{number:05d}.jsonl" for number in range(2, 6)]


def test_read_ahead_survives_a_killed_process(
    tmp_path: Path, taken: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "run", PARTS)
    start = ahead._start

    def start_and_kill(path: Path) -> object:
        read = start(path)
        read.process.kill()
        return read

    monkeypatch.setattr(ahead, "_start", start_and_kill)
    history = open_history(tmp_path / "run")
    assert history.length == len(RUN)
    assert repr(history.state_at(len(RUN))) == repr(fold(RUN))
    assert not taken


def test_read_ahead_follows_a_growing_recording(tmp_path: Path, taken: list[tuple[str, bool]]) -> None:
    write(tmp_path / "run", PARTS)
    history = open_history(tmp_path / "run")
    more: list[ev.AnyEvent] = stamp(RUN[-40:], first=len(RUN) + 1, start=RUN[-1].time + 60)
    write_segment(tmp_path / "run", len(PARTS) + 1, lines([Keyframe.of(fold(RUN)), *more]))
    history.poll()
    assert history.length == len(RUN) + 40
    assert repr(list(history.events(len(RUN) - 5))) == repr([*RUN[-5:], *more])
    assert history.duration == pytest.approx(RUN[-1].time - RUN[0].time + more[-1].time - more[0].time, abs=1)
    assert len(taken) == len(PARTS)
