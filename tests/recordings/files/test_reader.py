"""RecordingReader yields the last Keyframe, then every later record once and in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from esper.common.domain import VERSION
from esper.recordings.events import SCHEMA_VERSION
from esper.recordings.events.codec import encode_json
from esper.recordings.files import segments
from esper.recordings.files.reader import RecordingReader
from esper.recordings.files.recorder import Recorder
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_manifest import MANIFEST_FILE
from esper.recordings.files.segments import ReadError, Segment, compress_segment, first_seq, segment_path
from esper.recordings.history.history import open_history
from esper.recordings.history.run_info import RunEnd
from esper.recordings.state.state import STATE_FORMAT, Keyframe, Record, RunState
from tests.factory import example_run
from tests.recordings.files.recordings import fold, lines, recording, write_segment

RUN = example_run()


def state_json(records: Sequence[Record]) -> bytes:
    """Return the state after the records as JSON, because NaN does not equal itself."""
    state = RunState()
    for record in records:
        if isinstance(record, Keyframe):
            state = record.decode_state()
        else:
            state.apply(record)
    return encode_json(state)


def kinds(records: Sequence[Record]) -> list[str]:
    return [type(record).__name__ for record in records]


def test_reader_yields_every_record_once_in_order(tmp_path: Path) -> None:
    recorder = Recorder(RunDirectory.make(tmp_path))
    reader = RecordingReader(tmp_path, from_last_segment=True)
    assert list(reader.records()) == []
    records: list[Record] = []
    for start in range(0, len(RUN), 7):
        for event in RUN[start : start + 7]:
            recorder.put(event)
        assert recorder.flush()
        records += reader.records()
    recorder.close()
    assert list(reader.records()) == []
    assert kinds(records[:1]) == ["Keyframe"]
    assert lines(records[1:]) == lines(RUN)
    assert state_json(records) == state_json(RUN)


def test_reader_starts_at_the_last_segment(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, b"not a record\n")
    write_segment(tmp_path, 2, recording(RUN[30:40], fold(RUN[:30])))
    reader = RecordingReader(tmp_path, from_last_segment=True)
    records = list(reader.records())
    assert kinds(records) == ["Keyframe", *kinds(RUN[30:40])]
    assert state_json(records) == state_json(RUN[:40])
    assert reader.notices.messages == []


def test_reader_continues_into_a_new_segment(tmp_path: Path) -> None:
    first = write_segment(tmp_path, 1, recording(RUN[:20]))
    reader = RecordingReader(tmp_path, from_last_segment=True)
    assert len(list(reader.records())) == 21
    with first.open("ab") as file:
        file.write(lines(RUN[20:25]))
    write_segment(tmp_path, 2, recording(RUN[25:30], fold(RUN[:25])))
    compress_segment(first)
    assert lines(reader.records()) == lines(RUN[20:30])


def test_reader_waits_for_the_rest_of_a_line(tmp_path: Path) -> None:
    content = recording(RUN[:9])
    file = segment_path(tmp_path, 1)
    for cut in (0, 10, len(content) - 5):
        file.write_bytes(content[:cut])
        reader = RecordingReader(tmp_path, from_last_segment=True)
        before = list(reader.records())
        file.write_bytes(content)
        assert state_json(before + list(reader.records())) == state_json(RUN[:9])
        assert reader.notices.messages == []


def test_reader_reports_unreadable_lines(tmp_path: Path) -> None:
    unknown = b'{"type":"Sneezed","seq":3,"time":1.0}\n' * 2
    content = recording(RUN[:5]) + unknown + b"rubbish\n" + lines(RUN[5:7]) + b'{"type":"RunE'
    write_segment(tmp_path, 1, content)
    reader = RecordingReader(tmp_path, from_last_segment=True)
    assert len(list(reader.records())) == 8
    write_segment(tmp_path, 2, recording(RUN[7:9], fold(RUN[:7])))
    assert len(list(reader.records())) == 2
    skipped, damaged, torn = reader.notices.messages
    assert skipped == "events of the unknown type Sneezed were skipped; a newer version wrote them"
    assert damaged.startswith(f"{segment_path(tmp_path, 1)}, line 9 is damaged and was skipped: ")
    assert torn == f"{segment_path(tmp_path, 1)} ends in the middle of a line; that event is lost"


def test_reader_reports_a_deleted_file_and_reads_the_next(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(RUN[:5]))
    reader = RecordingReader(tmp_path, from_last_segment=True)
    records = list(reader.records())
    segment_path(tmp_path, 1).unlink()
    assert list(reader.records()) == []
    write_segment(tmp_path, 2, recording(RUN[9:12], fold(RUN[:9])))
    records += reader.records()
    assert state_json(records) == state_json(RUN[:12])
    assert reader.notices.messages == [f"{segment_path(tmp_path, 1)} was deleted; its unread events are lost"]


def test_reader_refuses_a_damaged_state(tmp_path: Path) -> None:
    write_segment(
        tmp_path, 1, b'{"type":"Keyframe","seq":5,"time":1.0,"format":%d,"state":{"seq":"five"}}\n' % STATE_FORMAT
    )
    with pytest.raises(ReadError, match=r"does not begin with the state of the run: .*seq"):
        list(RecordingReader(tmp_path, from_last_segment=True).records())


def of_another_version(state: RunState, **changes: float) -> Keyframe:
    """Return a Keyframe in the format of another version, which this one cannot read."""
    return msgspec.structs.replace(Keyframe.from_state(state), format=1, state=msgspec.Raw(b"{}"), **changes)


@pytest.mark.parametrize("from_last_segment", [False, True])
def test_state_of_another_version_is_computed_from_the_events(tmp_path: Path, from_last_segment: bool) -> None:
    for number, (first, last) in enumerate([(0, 40), (40, 60), (60, len(RUN))], 1):
        write_segment(tmp_path, number, lines([of_another_version(fold(RUN[:first])), *RUN[first:last]]))
    reader = RecordingReader(tmp_path, from_last_segment=from_last_segment)
    assert encode_json(reader.fold_into(RunState())) == encode_json(fold(RUN))
    assert not reader.notices.messages
    history = open_history(tmp_path)
    assert encode_json(history.state_at(history.length)) == encode_json(fold(RUN))
    assert not history.notices


@pytest.mark.parametrize("from_last_segment", [False, True])
def test_restored_state_of_another_version_is_refused(tmp_path: Path, from_last_segment: bool) -> None:
    write_segment(tmp_path, 1, recording(RUN[:40]))
    write_segment(tmp_path, 2, lines([of_another_version(fold(RUN[:30]), restored=1e9), *RUN[30:]]))
    reader = RecordingReader(tmp_path, from_last_segment=from_last_segment)
    with pytest.raises(
        ReadError, match=r"events-00002.jsonl begins with a state that another version wrote in format 1"
    ):
        reader.fold_into(RunState())


@pytest.mark.parametrize("from_last_segment", [False, True])
def test_reader_refuses_events_of_another_schema(tmp_path: Path, from_last_segment: bool) -> None:
    write_segment(tmp_path, 1, recording(RUN))
    manifest = b'{"schema":%d,"versions":{"esper-sanctum":"0.0.7"}}'
    (tmp_path / MANIFEST_FILE).write_bytes(manifest % (SCHEMA_VERSION - 1))
    sentence = f"{tmp_path} has event schema 1; this is esper-sanctum {VERSION}, which reads schema 2; version 0.0.7"
    with pytest.raises(ReadError, match=f"^{re.escape(sentence)}"):
        list(RecordingReader(tmp_path, from_last_segment=from_last_segment).records())
    with pytest.raises(ReadError, match="event schema 1"):
        RunEnd(tmp_path).read()
    (tmp_path / MANIFEST_FILE).write_bytes(manifest % SCHEMA_VERSION)
    assert list(RecordingReader(tmp_path, from_last_segment=from_last_segment).records())


def test_reader_refuses_a_deleted_directory(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"cannot read .*gone: No such file"):
        list(RecordingReader(tmp_path / "gone", from_last_segment=True).records())


def test_first_event_number_of_a_segment_is_that_of_its_keyframe(tmp_path: Path) -> None:
    assert first_seq(write_segment(tmp_path, 1, recording([], fold(RUN[:30])))) == RUN[29].seq
    assert first_seq(write_segment(tmp_path, 2, lines(RUN[:1]))) == 0  # damaged: it opens with an event


def test_progress_in_a_packed_segment_is_that_of_its_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "ZSTD_FRAME_BYTES", 2000)
    content = recording(RUN)
    path = write_segment(tmp_path, 1, content)
    offsets = (0, len(content) // 3, len(content) // 2, len(content) - 1)
    assert [Segment(path).fraction_before(offset) for offset in (*offsets, 2 * len(content))] == [
        *(offset / len(content) for offset in offsets),
        1.0,
    ]
    compress_segment(path)
    packed = Segment(path)
    assert b"".join(text for _, text in packed.line_blocks(0)) == content  # the frames are known once they are read
    fractions = [packed.fraction_before(offset) for offset in offsets]
    assert fractions == sorted(set(fractions))
    assert fractions[0] == 0.0
    assert 0.8 < fractions[-1] < 1.0
