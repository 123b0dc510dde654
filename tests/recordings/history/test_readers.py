"""Every way to read a recording gives the same state after each event: the plain fold of its records in order.

The recordings are shipped, packed, torn, resumed and growing ones. The readers are a history, a playback, the end of a
run as lists show it, and an attached viewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import pytest
import zstandard

from esper.recordings.events.codec import encode_json, make_decoder
from esper.recordings.files.reader import RecordingReader
from esper.recordings.files.segments import compress_segment, list_segments, packed_path, segment_path
from esper.recordings.history.history import History, open_history
from esper.recordings.history.playback import Playback
from esper.recordings.history.run_info import RunEnd
from esper.recordings.state import state
from esper.recordings.state.state import Keyframe, Record, RunState
from tests.factory import example_run, growth_run
from tests.recordings.files.recordings import fold, lines, recording, write_segment

RUN = example_run()
DEMOS = Path(__file__).parents[3] / "telemetry"
_decoder: msgspec.json.Decoder[Record] = make_decoder(Record)


def to_json(run_state: RunState) -> bytes:
    """Return a state as JSON, because NaN does not equal itself."""
    return encode_json(run_state)


def records_of(directory: Path) -> Iterator[Record]:
    """Yield the records of a recording without damage, one complete line after another."""
    for path in list_segments(directory):
        packed = packed_path(path)
        with zstandard.open(packed, "rb") if packed.exists() else path.open("rb") as file:
            yield from (_decoder.decode(line) for line in file.read().split(b"\n")[:-1])


def plain_states(records: Sequence[Record]) -> Iterator[tuple[int, RunState]]:
    """Yield number and state after each event that was not undone later; the state object is reused."""
    undone_above, kept = float("inf"), list[Record]()
    for record in reversed(records):
        if isinstance(record, Keyframe):
            undone_above = min(undone_above, record.seq)
            kept.append(record)
        elif record.seq <= undone_above:
            kept.append(record)
    current = RunState()
    for record, following in pairwise([*reversed(kept), None]):
        if isinstance(record, Keyframe):
            current = record.decode_state()
        elif record is not None:
            current.apply(record)
        if current.seq and not isinstance(following, Keyframe):  # the moment of a restore is after its Keyframe
            yield current.seq, current


def resumed(directory: Path, at: int, *, restored: float) -> None:
    """Write a run of three segments, the second of which restores the state after an event."""
    first, keyframe = RUN[:40], Keyframe.from_state(fold(RUN[:at]))
    later = [msgspec.structs.replace(event, time=event.time + restored) for event in RUN[at:70]]
    restore = msgspec.structs.replace(keyframe, restored=RUN[40].time + restored)
    second = lines([restore, *later])
    third = recording(
        [msgspec.structs.replace(event, time=event.time + restored) for event in RUN[70:]],
        fold(later, restore.decode_state()),
    )
    for number, content in enumerate((recording(first), second, third), 1):
        write_segment(directory, number, content)


@pytest.fixture(params=["packed", "growth", "resumed at the end", "resumed before the end", "torn"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A recording without lines that are skipped."""
    run = tmp_path / "run"
    match request.param:
        case "packed":
            compress_segment(write_segment(run, 1, recording(RUN[:50])))
            compress_segment(write_segment(run, 2, recording(RUN[50:], fold(RUN[:50]))))
        case "growth":
            write_segment(run, 1, recording(growth_run(envs=2, trials=4, fresh=2)))
        case "resumed at the end":
            resumed(run, 40, restored=3600.0)
        case "resumed before the end":
            resumed(run, 31, restored=3600.0)
        case _:  # the writer was killed within a line, and the run was resumed from an earlier checkpoint
            resumed(run, 31, restored=60.0)
            with segment_path(run, 1).open("ab") as file:
                file.write(lines(RUN[40:41])[:30])
    return run


def test_history_and_playback_give_the_plain_state_after_each_event(recorded: Path) -> None:
    history = open_history(recorded)
    playback = Playback(history)
    states = [(seq, to_json(after)) for seq, after in plain_states(list(records_of(recorded)))]
    assert history.length == len(states)
    for position, (seq, expected) in enumerate(states, 1):
        if position % 2:
            assert to_json(history.state_at(position)) == expected, f"history, event {seq}"
        playback.seek(position)
        assert to_json(playback.state) == expected, f"playback, event {seq}"


@pytest.mark.parametrize("run", [pytest.param("demo", marks=pytest.mark.slow), "demo-faults"])
def test_shipped_recording_gives_the_plain_states(run: str) -> None:
    history = open_history(DEMOS / run)
    playback = Playback(history)
    states = enumerate(plain_states(list(records_of(DEMOS / run))), 1)
    for position, (seq, after) in islice(states, 0, None, 97):
        playback.seek(position)
        assert to_json(playback.state) == to_json(after), f"event {seq}"


def test_readers_agree_after_each_line_of_a_growing_recording(recorded: Path, tmp_path: Path) -> None:
    """Each reader follows the recording from its first line on; others begin in the middle."""
    copy = tmp_path / "growing"
    copy.mkdir()
    history, end, viewer = History(copy), RunEnd(copy), RecordingReader(copy, from_last_segment=True)
    expected, viewed = RunState(), RunState()
    for path in list_segments(recorded):
        packed = packed_path(path)
        with zstandard.open(packed, "rb") if packed.exists() else path.open("rb") as file:
            content = file.read()
        for line in content.splitlines(keepends=True):
            with (copy / path.name).open("ab") as target:
                target.write(line)
            if line.endswith(b"\n"):
                record = _decoder.decode(line)
                if isinstance(record, Keyframe):
                    expected = record.decode_state()
                else:
                    expected.apply(record)
            viewed = state.fold(viewed, viewer.records())
            history.poll()
            assert to_json(history.state_at(history.length)) == to_json(expected), f"history, event {expected.seq}"
            assert to_json(viewed) == to_json(expected), f"viewer, event {expected.seq}"
            assert to_json(end.read()) == to_json(expected), f"end of the run, event {expected.seq}"
            if expected.seq % 10 == 0:
                assert to_json(RunEnd(copy).read()) == to_json(expected), f"later reader, event {expected.seq}"
        if packed.exists():
            compress_segment(copy / path.name)
