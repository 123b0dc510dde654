"""A history gives the recorded events and states of any recording: packed, resumed, growing or damaged."""

from __future__ import annotations

import itertools
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from esper.recordings import events as ev
from esper.recordings.events.codec import encode_json
from esper.recordings.files import decoder, segments
from esper.recordings.files.segments import ReadError, Segment, compress_segment
from esper.recordings.history import keyframe_index
from esper.recordings.history.history import History, open_history
from esper.recordings.state.state import Keyframe
from tests.factory import example_run, policy_updated, stamp
from tests.recordings.files.recordings import fold, lines, recording, write_segment

RUN = example_run()
SHORT = example_run(envs=1, rounds=1, steps=1)
SHORT_BYTES = recording(SHORT)


def matches(history: History, run: list[ev.AnyEvent]) -> bool:
    """Return True if a history consists of these events and ends with their state."""
    return repr(list(history.events())) == repr(run) and repr(history.state_at(len(run))) == repr(fold(run))


@pytest.fixture(params=["file", "packed file", "directory", "packed directory"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """RUN in each form of a recording."""
    path = write_segment(tmp_path / "run", 1, recording(RUN))
    if "packed" in request.param:
        compress_segment(path)
        path = path.with_name(path.name + ".zst")
    return path.parent if "directory" in request.param else path


def test_recording_formats_read_the_same(recorded: Path) -> None:
    history = open_history(recorded)

    assert matches(history, RUN)
    assert history.length == len(RUN)
    assert history.duration == pytest.approx(RUN[-1].time - RUN[0].time)
    assert history.notices == []


def test_poll_in_time_slices_over_segments_reads_all(tmp_path: Path) -> None:
    cuts = [0, len(RUN) // 3, 2 * len(RUN) // 3, len(RUN)]
    for number, (start, stop) in enumerate(pairwise(cuts), 1):
        compress_segment(write_segment(tmp_path / "run", number, recording(RUN[start:stop], fold(RUN[:start]))))

    history = open_history(tmp_path / "run", within=0.0)
    lengths = [history.length]
    while not history.is_fully_read:
        history.poll(within=0.0)
        lengths.append(history.length)

    assert 0 < lengths[0] < len(RUN)
    assert len(lengths) >= 3
    assert matches(history, RUN)
    assert history.notices == []


def test_truncated_file_loses_at_most_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    states = [repr(fold(SHORT[:count])) for count in range(len(SHORT) + 1)]
    ends = list(itertools.accumulate(map(len, SHORT_BYTES.splitlines(keepends=True))))
    sizes = {0, *range(0, len(SHORT_BYTES), 61), *(end + change for end in ends for change in (-1, 0, 1))}
    for size in sizes:
        path.write_bytes(SHORT_BYTES[:size])

        history = open_history(path)

        whole = max(SHORT_BYTES[:size].count(b"\n") - 1, 0)
        assert history.length == whole, size
        assert repr(history.state_at(whole)) == states[whole]


def test_truncated_packed_file_opens_with_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl.zst"
    whole = zstandard.compress(SHORT_BYTES[:2000]) + zstandard.compress(SHORT_BYTES[2000:])
    first_frame = len(zstandard.compress(SHORT_BYTES[:2000]))
    for size in {*range(4, len(whole), 19), first_frame - 1, first_frame, first_frame + 1, len(whole) - 1}:
        path.write_bytes(whole[:size])
        if size < first_frame:
            with pytest.raises(ReadError, match="could not be unpacked completely"):
                open_history(path)
            continue

        history = open_history(path)

        assert history.length < len(SHORT)
        assert repr(list(history.events())) == repr(SHORT[: history.length])
        assert size == first_frame or "could not be unpacked completely" in history.notices[0]


RUN_LINES = recording(RUN).splitlines(keepends=True)
FLIPS = st.lists(st.tuples(st.integers(0, len(recording(RUN)) - 2), st.integers(1, 255)), min_size=1, max_size=8)


def undamaged_events(flips: list[tuple[int, int]]) -> list[ev.AnyEvent]:
    """Return the events without a flipped byte in their line or in the line end before it."""
    ends = list(itertools.accumulate(map(len, RUN_LINES)))
    return [
        event
        for event, start, end in zip(RUN, ends, ends[1:], strict=False)
        if not any(start - 1 <= offset < end for offset, _ in flips)
    ]


@given(flips=FLIPS)
def test_flipped_bytes_lose_only_their_lines(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(recording(RUN))
    for offset, mask in flips:
        damaged[offset] ^= mask
    path = tmp_path / "flipped.jsonl"
    path.write_bytes(damaged)
    whole = undamaged_events(flips)

    try:
        history = open_history(path)
    except ReadError:
        struck = {type(event) for event in RUN} - {type(event) for event in whole}
        assert whole[:1] != RUN[:1] or struck  # a run cannot be opened without its start or all events of a type
        return

    if whole[:1] == RUN[:1]:
        read = list(map(repr, history.events()))
        assert [event for event in map(repr, whole) if event not in set(read)] == []
        assert len(read) == len(RUN) or history.notices
    assert repr(history.state_at(history.length)) == repr(history._state)
    assert len(list(history.events())) == history.length


UNUSED_BIT = (4, 1 << 4)
"""Byte and bit mask of the unused bit of a zstd frame, which decoders ignore (RFC 8878, section 3.1.1.1.1.3)."""


@given(data=st.data())
def test_flipped_byte_in_packed_file_loses_its_frame(tmp_path: Path, data: st.DataObject) -> None:
    cuts = (0, 20, 40, 60, len(RUN_LINES))
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    frames = [compress(b"".join(RUN_LINES[start:stop])) for start, stop in pairwise(cuts)]
    struck = data.draw(st.integers(1, 3))
    damaged = bytearray(frames[struck])
    damage = st.tuples(st.integers(4, len(damaged) - 1), st.integers(1, 255))
    position, bits = data.draw(damage.filter(lambda flip: flip != UNUSED_BIT))
    damaged[position] ^= bits
    path = tmp_path / "flipped.jsonl.zst"
    path.write_bytes(b"".join([*frames[:struck], damaged, *frames[struck + 1 :]]))

    history = open_history(path)

    assert "could not be unpacked completely" in history.notices[-1]
    without = RUN[: cuts[struck] - 1] + RUN[cuts[struck + 1] - 1 :]
    # If the checksum flag was hit, the frame is intact, and its checksum is read as an invalid frame.
    assert repr(list(history.events())) in (repr(without), repr(RUN))
    assert repr(history.state_at(history.length)) == repr(fold(history.events()))


def test_frame_with_wrong_length_keeps_later_frames(tmp_path: Path) -> None:
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    first, struck, last = (compress(b"".join(RUN_LINES[start:stop])) for start, stop in pairwise((0, 20, 40, 60)))
    length_of_block = 8  # its second byte, after 4 bytes of magic number, 1 of flags and 2 of size
    damaged = bytearray(struck)
    damaged[length_of_block] += (len(last) >> 5) + 4  # in units of 32 bytes: longer than the rest of the file
    path = tmp_path / "swallowed.jsonl.zst"
    path.write_bytes(first + damaged + last)

    history = open_history(path)

    missing = f"20 events are missing in {tmp_path / 'swallowed.jsonl'}, from event 20 on"
    assert history.notices == [missing, f"{path} is damaged and could not be unpacked completely"]
    assert repr(list(history.events())) == repr(RUN[:19] + RUN[39:59])


def test_oversized_frame_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_FRAME_BYTES", 3000)
    monkeypatch.setattr(segments, "PACKED_READ_BYTES", 100)
    path = tmp_path / "big.jsonl.zst"
    path.write_bytes(zstandard.compress(recording(RUN)))
    history = open_history(path)

    assert matches(history, RUN)
    assert repr(history.state_at(50)) == repr(fold(RUN[:50]))


@pytest.mark.parametrize("chunk", [16, 17, 19, 23])
def test_next_frame_is_found_across_read_boundaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    first, second = (zstandard.compress(b"".join(lines)) for lines in (RUN_LINES[:9], RUN_LINES[9:]))
    path = tmp_path / "flipped.jsonl.zst"
    path.write_bytes(first[:6] + bytes(len(first) - 6) + second)
    monkeypatch.setattr(segments, "READ_CHUNK_BYTES", chunk)

    assert b"".join(Segment(tmp_path / "flipped.jsonl")._chunks(0)) == b"".join(RUN_LINES[9:])


def test_damaged_only_event_of_its_type_is_skipped(tmp_path: Path) -> None:
    content = recording(RUN).replace(b'"outcome"', b'"outcume"')
    path = write_segment(tmp_path, 1, content)
    history = open_history(path)

    assert matches(history, RUN[:-1])
    [notice] = history.notices
    assert notice.startswith(f"{path}, line {len(RUN) + 1} is damaged and was skipped: ")
    assert "missing required field `outcome`" in notice


@pytest.mark.parametrize(
    ("pattern", "refused"),
    [
        (rb'"task":', r"line 2: this version cannot read RunStarted: .*`task`"),
        (rb'"train_loss":', r"line 4: this version cannot read EnvStepped: .*`train_loss`"),
    ],
)
def test_event_type_without_a_field_is_refused(tmp_path: Path, pattern: bytes, refused: str) -> None:
    path = write_segment(tmp_path, 1, re.sub(pattern + b"[^,]*,", b"", recording(RUN)))

    with pytest.raises(ReadError, match=f"{re.escape(str(path))}, {refused}"):
        open_history(path)


def test_inapplicable_event_is_reported_as_damage(tmp_path: Path) -> None:
    strange = stamp(
        [ev.SeedMoved(round=1, step=1, env=9, slot="mid", before="dormant", after="germinated", reason="c")], first=20
    )
    history = open_history(write_segment(tmp_path, 1, recording(RUN[:19]) + lines([*strange, *RUN[19:]])))

    assert matches(history, RUN)
    assert "it is about env 9, but the run has 4 envs" in history.notices[0]


def test_many_damaged_lines_are_summarised(tmp_path: Path) -> None:
    history = open_history(write_segment(tmp_path, 1, recording(RUN) + b"{}\n" * 1000))

    assert history.length == len(RUN)
    assert len(history.notices) == decoder.MAX_DAMAGE_NOTICES + 1
    assert history.notices[-1] == f"{1000 - decoder.MAX_DAMAGE_NOTICES} more lines are damaged"


def test_newer_version_is_read_as_far_as_known(tmp_path: Path) -> None:
    content = recording(RUN).replace(b'"round":1,"step":1,', b'"round":1,"step":1,"mood":"good",')
    content += b'{"type":"SlotSang","seq":900,"time":1,"song":"la"}\n' * 3
    history = open_history(write_segment(tmp_path, 1, content))

    assert matches(history, RUN)
    assert history.notices == [
        "fields of EnvStepped that a newer version wrote were skipped: mood",
        "fields of PhaseTimed that a newer version wrote were skipped: mood",
        "events of the unknown type SlotSang were skipped; a newer version wrote them",
    ]


def test_resume_by_a_newer_version_is_reported(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(RUN[:40]))
    newer = recording(RUN[40:], fold(RUN[:40])).replace(b'"stage":"embargoed"', b'"stage":"embargoed","mood":1')
    write_segment(tmp_path, 2, newer)
    history = open_history(tmp_path)

    assert matches(history, RUN)
    assert history.notices == ["fields of EnvStepped that a newer version wrote were skipped: mood"]


def test_second_run_in_one_file_is_reported(tmp_path: Path) -> None:
    history = open_history(write_segment(tmp_path, 1, recording(RUN) + lines(example_run(envs=2)[:1])))

    assert matches(history, RUN)
    assert "it starts a run of 2 envs, but this run has 4" in history.notices[0]


@pytest.mark.parametrize(
    "content",
    [
        b"a diary\nof some length\n",
        b"no line end at all",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\n\xff\xfe\n",
        b'{"type":"Feature","geometry":null}\n',
        b'{"score": 0.5}\n' * 1000,
        b"{}",
    ],
)
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.zst"])
def test_foreign_file_is_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(ReadError, match="is not a recording of esper-sanctum; expected"):
        open_history(path)


def test_foreign_directory_and_missing_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"is not a run: it contains neither run\.json nor events"):
        open_history(tmp_path)
    with pytest.raises(ReadError, match="no recording found at"):
        open_history(tmp_path / "nowhere")


def test_run_that_has_just_begun_is_empty(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    history = open_history(tmp_path)

    assert (history.length, history.duration, history.state_at(0).status) == (0, 0.0, "starting")

    write_segment(tmp_path, 1, recording(RUN))
    assert history.poll() == 0
    assert matches(history, RUN)


def record_resumed_run(directory: Path, *, until: int, at: int, torn: bytes = b"") -> list[ev.AnyEvent]:
    """Record a run killed after `until` events and resumed from a checkpoint at event `at`. Returns its history."""
    write_segment(directory, 1, recording(RUN[:until]) + torn)
    later = stamp([ev.Resumed(round=1, step=2, origin="start", checkpoint="c"), *RUN[at:]], at + 1, RUN[0].time + 9000)
    write_segment(directory, 2, recording(later, fold(RUN[:at])))
    return RUN[:at] + later


@pytest.mark.parametrize("torn", [b"", b'{"type":"EnvStep'])
def test_resumed_run_reads_as_one_history(tmp_path: Path, torn: bytes) -> None:
    whole = record_resumed_run(tmp_path, until=60, at=31, torn=torn)

    history = open_history(tmp_path)

    assert matches(history, whole)
    assert repr(history.state_at(31)) == repr(fold(RUN[:31]))
    assert repr(history.state_at(32)) == repr(fold(whole[:32]))
    assert [type(whole[position - 1]) for position in history.steps] == [ev.PhaseTimed] * 10
    assert [type(whole[position]) for position in history.rounds] == [ev.RoundStarted] * 2
    assert [note.split("/")[-1] for note in history.notices] == (
        ["events-00001.jsonl ends in the middle of a line; that event is lost"] if torn else []
    )


def test_history_returns_any_events_and_any_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyframe_index, "INDEX_INTERVAL", 3)
    monkeypatch.setattr(segments, "READ_CHUNK_BYTES", 1000)
    monkeypatch.setattr(keyframe_index, "MAX_INDEX_ENTRIES", 9)
    whole = record_resumed_run(tmp_path, until=60, at=31)
    history = open_history(tmp_path)

    for start in range(0, len(whole), 11):
        assert repr(list(history.events(start, start + 7))) == repr(whole[start : start + 7])
        assert repr(history.state_at(start)) == repr(fold(whole[:start]))
    assert list(history.events(len(whole))) == []
    assert len(history._index) <= 9


def test_events_are_yielded_in_order_while_the_index_is_thinned_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyframe_index, "INDEX_INTERVAL", 3)
    monkeypatch.setattr(segments, "READ_CHUNK_BYTES", 1000)
    monkeypatch.setattr(keyframe_index, "MAX_INDEX_ENTRIES", 9)
    history = open_history(write_segment(tmp_path, 1, recording(RUN)), within=0.0)
    while len(history._index) < 9:
        history.poll(within=0.0)
    length, events = history.length, history.events()
    found = list(itertools.islice(events, 5))
    history.poll()
    assert repr(found + list(events)) == repr(RUN[:length])


def test_recorded_time_stands_still_during_a_gap(tmp_path: Path) -> None:
    whole = record_resumed_run(tmp_path, until=60, at=31)
    history = open_history(tmp_path)

    assert history.duration == pytest.approx((len(whole) - 2) / 100)
    assert history.elapsed(30, whole[30].time) == pytest.approx(0.30)
    assert history.elapsed(31, whole[31].time) == pytest.approx(0.30)
    assert history.elapsed(40, whole[40].time) == pytest.approx(0.39)
    assert history.position_at(0.395) == 41
    assert history.position_at(-1) == 0
    assert history.position_at(1e9) == len(whole)


def test_recorded_time_is_correct_after_a_second_restore(tmp_path: Path) -> None:
    record_resumed_run(tmp_path, until=60, at=31)
    again = stamp(RUN[20:], first=21, start=RUN[0].time + 20_000)
    write_segment(tmp_path, 3, recording(again, fold(RUN[:20])))
    history = open_history(tmp_path)

    assert matches(history, RUN[:20] + again)
    for index, event in enumerate(RUN[:20] + again):
        assert history.elapsed(index, event.time) == pytest.approx(max(index - (index >= 20), 0) / 100, abs=1e-5)


def test_restore_with_damaged_keyframe_is_still_undone(tmp_path: Path) -> None:
    whole = record_resumed_run(tmp_path, until=60, at=31)
    second = tmp_path / "events-00002.jsonl"
    second.write_bytes(second.read_bytes().replace(b"{", b"[", 1))

    history = open_history(tmp_path)

    assert matches(history, whole)
    assert "events-00002.jsonl, line 1 is damaged" in history.notices[0]


def test_missing_first_segment_is_reported(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(RUN[:20]))
    rest = write_segment(tmp_path, 2, recording(RUN[20:], fold(RUN[:20])))
    (tmp_path / "events-00001.jsonl").unlink()

    assert open_history(tmp_path).notices == [f"events 1 to 20 are missing before {rest}"]
    assert open_history(rest).notices == []  # a single segment may be a part of a run


def test_events_lost_in_a_torn_file_are_reported(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(RUN[:20]))
    write_segment(tmp_path, 2, recording(RUN[31:], fold(RUN[:31])))

    history = open_history(tmp_path)

    assert history.notices == [f"events 21 to 31 are missing before {tmp_path / 'events-00002.jsonl'}"]
    assert repr(list(history.events())) == repr(RUN[:20] + RUN[31:])
    assert repr(history.state_at(history.length)) == repr(fold(RUN))


@given(cuts=st.lists(st.integers(0, len(recording(RUN))), max_size=6))
def test_reader_follows_a_growing_file(tmp_path: Path, cuts: list[int]) -> None:
    content = recording(RUN)
    path = tmp_path / "growing.jsonl"
    path.write_bytes(b"")
    history = open_history(path)

    for cut in [*sorted(cuts), len(content)]:
        path.write_bytes(content[:cut])
        before = history.length
        assert history.poll() == before
        assert history.length == max(content[:cut].count(b"\n") - 1, 0)

    assert matches(history, RUN)
    assert history.notices == []


def test_reader_continues_when_its_file_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyframe_index, "INDEX_INTERVAL", 10)
    monkeypatch.setattr(segments, "READ_CHUNK_BYTES", 1000)
    path = write_segment(tmp_path, 1, recording(RUN[:50]))
    history = open_history(tmp_path)
    with path.open("ab") as file:
        file.write(lines(RUN[50:]))
    compress_segment(path)

    assert history.poll() == 50
    assert matches(history, RUN)
    monkeypatch.setattr(Segment, "line_blocks", None)  # a finished file is not unpacked again
    assert history.poll() == len(RUN)
    monkeypatch.undo()
    assert repr(history.state_at(33)) == repr(fold(RUN[:33]))


def test_reader_starts_at_the_needed_frame(tmp_path: Path) -> None:
    path = tmp_path / "framed.jsonl.zst"
    content = recording(RUN)
    path.write_bytes(b"".join(zstandard.compress(content[i : i + 500]) for i in range(0, len(content), 500)))
    history = open_history(path)

    for position in (100, 3, 57):
        assert repr(history.state_at(position)) == repr(fold(RUN[:position]))
    segment = history._segment
    assert isinstance(segment, Segment)
    assert [plain for plain, _ in segment._frames] == [*range(0, len(content), 500), len(content)]


def test_recorded_time_never_decreases(tmp_path: Path) -> None:
    shifted = [msgspec.structs.replace(event, time=event.time - 3600) for event in RUN[50:]]
    history = open_history(write_segment(tmp_path, 1, recording([*RUN[:50], *shifted])))

    assert history.duration == pytest.approx((len(RUN) - 2) / 100)


def test_events_without_a_run_start_are_read(tmp_path: Path) -> None:
    update = stamp([policy_updated()], first=7)
    history = open_history(write_segment(tmp_path, 1, lines(update)))

    assert repr(list(history.events())) == repr(update)
    assert encode_json(Keyframe.from_state(history.state_at(1))) == encode_json(Keyframe.from_state(fold(update)))
