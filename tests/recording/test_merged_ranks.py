"""The merged recordings of several ranks give the same history as the recording of a single process."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.history import keyframe_index
from esper.history.history import open_history
from esper.history.playback import Playback
from esper.recording import merged_ranks
from esper.recording.run_lock import LOCK_FILE, LockHolder, RunLock
from esper.recording.segments import compress_segment, segment_path
from esper.telemetry import events as ev
from esper.telemetry.state import Keyframe, RunState
from tests.factory import env_stepped, example_run, run_started, stamp
from tests.recording.recordings import fold, lines, write_segment

RUN = example_run(envs=4, rounds=2, steps=5)


def rank_of(event: ev.AnyEvent, ranks: int) -> int:
    """Return the rank that records an event: envs are distributed over the ranks, other events belong to rank 0."""
    return (getattr(event, "env", None) or 0) % ranks


def events_by_rank(run: Sequence[ev.AnyEvent], ranks: int) -> list[list[ev.AnyEvent]]:
    """Return the events that each rank records. Every rank records the start of the run."""
    return [
        [event for event in run if rank_of(event, ranks) == rank or isinstance(event, ev.RunStarted)]
        for rank in range(ranks)
    ]


def directory_of(run: Path, rank: int) -> Path:
    return run / f"rank-{rank}" if rank else run


def record(run: Path, events: Sequence[ev.AnyEvent], ranks: int) -> list[Path]:
    """Write the recording of every rank and return the files."""
    run.mkdir()
    opening = Keyframe.from_state(RunState())
    return [
        write_segment(directory_of(run, rank), 1, lines([opening, *events_of_rank]))
        for rank, events_of_rank in enumerate(events_by_rank(events, ranks))
    ]


def assert_history_equals(run: Path, events: Sequence[ev.AnyEvent]) -> None:
    history = open_history(run)
    assert repr(list(history.events())) == repr(list(events))
    assert history.notices == []
    for position in (0, 1, len(events) // 3, len(events) // 2, len(events)):
        assert repr(history.state_at(position)) == repr(fold(events[:position]))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_merged_ranks_read_as_one_history(ranks: int, packed: bool, tmp_path: Path) -> None:
    paths = record(tmp_path / "run", RUN, ranks)
    if packed:
        for path in paths:
            compress_segment(path)
    assert_history_equals(tmp_path / "run", RUN)


def test_merged_history_seeks_to_any_position(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(merged_ranks, "READ_CHUNK_BYTES", 2_000)
    monkeypatch.setattr(keyframe_index, "INDEX_INTERVAL", 16)
    record(tmp_path / "run", RUN, 2)
    history = open_history(tmp_path / "run")
    for position in range(history.length + 1):
        assert repr(history.state_at(position)) == repr(fold(RUN[:position]))
    assert repr(list(history.events(37, 61))) == repr(RUN[37:61])


@pytest.mark.parametrize("packed", [False, True])
def test_merged_history_knows_how_much_was_read(packed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(merged_ranks, "READ_CHUNK_BYTES", 200)
    for path in record(tmp_path / "run", RUN, 2):
        if packed:
            compress_segment(path)
    history = open_history(tmp_path / "run", 0.0)
    fractions: list[float] = []
    while not history.is_fully_read:
        fractions.append(history.fraction_read)
        history.poll(0.0)
    assert fractions == sorted(fractions)
    assert packed or max(fractions) > 0.9  # a place within a frame of a packed file is not known
    assert packed or len(set(fractions)) > len(RUN) / 2
    assert history.fraction_read == 1
    assert history.length == len(RUN)


def test_merged_ranks_may_have_different_segments(tmp_path: Path) -> None:
    """Recorders begin a new segment depending on the size of their own file."""
    run = tmp_path / "run"
    first, second = events_by_rank(RUN, 2)
    cut = len(second) // 2
    record(run, RUN, 2)
    (run / "rank-1" / "events-00001.jsonl").write_bytes(lines([Keyframe.from_state(RunState()), *second[:cut]]))
    write_segment(run / "rank-1", 2, lines([Keyframe.from_state(fold(RUN[: second[cut - 1].seq])), *second[cut:]]))
    cut = len(first) // 3
    (run / "events-00001.jsonl").write_bytes(lines([Keyframe.from_state(RunState()), *first[:cut]]))
    # The state of rank 0 includes events of other ranks.
    known_to_rank_0 = RUN[: first[cut].seq - 1]
    write_segment(run, 2, lines([Keyframe.from_state(fold(known_to_rank_0)), *first[cut:]]))
    assert_history_equals(run, RUN)


def record_with_restore(ranks: int, run: Path) -> list[ev.AnyEvent]:
    """Record a run that restored the state after its 20th event. Returns the events that were not undone."""
    kept, undone = RUN[:20], RUN[20:40]
    again = stamp(RUN[30:60], first=21, start=RUN[60].time)
    restored = msgspec.structs.replace(Keyframe.from_state(fold(kept)), restored=RUN[45].time)
    run.mkdir()
    for rank in range(ranks):
        before, after = events_by_rank([*kept, *undone], ranks)[rank], events_by_rank(again, ranks)[rank]
        write_segment(directory_of(run, rank), 1, lines([Keyframe.from_state(RunState()), *before]))
        write_segment(directory_of(run, rank), 2, lines([restored, *after]))
    return [*kept, *again]


def test_merged_history_omits_undone_events(tmp_path: Path) -> None:
    assert_history_equals(tmp_path / "run", record_with_restore(2, tmp_path / "run"))


def test_merged_history_spans_a_changed_number_of_ranks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    history = record_with_restore(2, run)
    third = stamp(RUN[60:], first=history[-1].seq + 1, start=RUN[-1].time + 1)
    restored = msgspec.structs.replace(Keyframe.from_state(fold(history)), restored=RUN[-1].time + 1)
    write_segment(run, 3, lines([restored, *third]))
    assert_history_equals(run, [*history, *third])


def test_merged_reader_reports_joining_ranks(tmp_path: Path) -> None:
    """An open history continues with the events of rank 0 only."""
    run = tmp_path / "run"
    write_segment(run, 1, lines([Keyframe.from_state(RunState()), *RUN[:50]]))
    history = open_history(run)
    restored = msgspec.structs.replace(Keyframe.from_state(fold(RUN[:50])), restored=RUN[50].time)
    later = stamp([run_started(), *RUN[50:]], first=51, start=RUN[50].time)
    first, second = events_by_rank(later, 2)
    write_segment(run / "rank-1", 1, lines([restored, *second]))
    write_segment(run, 2, lines([restored, *first]))
    history.poll()
    assert history.length == 50 + len(first)
    assert "was resumed with more ranks" in history.notices[0]
    assert_history_equals(run, [*RUN[:50], *later])


def test_merged_event_waits_for_earlier_ones_of_other_ranks(tmp_path: Path) -> None:
    """Recorders of different ranks write at different times. The reader must never revoke an event."""
    run = tmp_path / "run"
    _, path = record(run, RUN, 2)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:4]))
    playback = Playback(open_history(run))
    seen = [event.seq for event in playback.history.events()]
    missing = events_by_rank(RUN, 2)[1][3].seq
    assert seen == list(range(1, missing))
    playback.seek_end()
    path.write_bytes(b"".join(whole[:9]))
    assert playback.poll()
    path.write_bytes(b"".join(whole))
    assert playback.poll()
    assert repr(playback.state) == repr(fold(RUN))
    assert repr(list(playback.history.events())) == repr(RUN)


def test_merged_reader_waits_for_nothing_after_the_end(tmp_path: Path) -> None:
    """A killed rank loses its unwritten events; those of the other ranks are shown."""
    run = tmp_path / "run"
    first, second = record(run, RUN, 2)
    text = second.read_bytes()
    kept = text[: text.rindex(b"\n", 0, -40) + 10]
    second.write_bytes(kept)
    compress_segment(first)
    lost = {event.seq for event in events_by_rank(RUN, 2)[1]} - {
        event.seq for event in events_by_rank(RUN, 2)[1][: kept.count(b"\n") - 1]
    }
    assert lost
    history = open_history(run)
    assert [event.seq for event in history.events()] == [event.seq for event in RUN if event.seq not in lost]
    assert history.state_at(history.length).status == "done"


def test_merged_reader_reports_missing_events_of_a_lost_rank(tmp_path: Path) -> None:
    record(tmp_path / "run", RUN, 2)
    lost = [event for event in events_by_rank(RUN, 2)[1] if event.seq > 1]
    shutil.rmtree(tmp_path / "run" / "rank-1")
    history = open_history(tmp_path / "run")
    # Events after the last one of the other ranks cannot be detected as missing.
    known = [event for event in lost if event.seq < history.state_at(history.length).seq]
    (notice,) = history.notices
    assert (
        notice == f"{len(known)} events are missing in {segment_path(tmp_path / 'run', 1)}, from event {lost[0].seq} on"
    )


def leave_lock(directory: Path, host: str) -> None:
    """Leave the lock file that a killed process on a machine leaves."""
    lock = RunLock(directory)
    (directory / LOCK_FILE).write_bytes(msgspec.json.encode(LockHolder(pid=1, host=host)))
    lock.release()


def test_merged_reader_shows_other_ranks_if_rank_0_was_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    record(run, RUN, 2)[0].unlink()
    assert open_history(run).length == 0  # rank 0 might still write
    leave_lock(run, socket.gethostname())
    history = open_history(run)
    second = events_by_rank(RUN, 2)[1]
    assert repr(list(history.events())) == repr(second)
    (notice,) = history.notices
    assert notice == f"{second[-1].seq - len(second)} events are missing in {segment_path(run, 1)}, from event 2 on"
    state = history.state_at(history.length)
    assert state.started == RUN[0]
    assert [env.stepped is not None for env in state.envs] == [False, True, False, True]


@pytest.mark.parametrize(("host", "shown"), [("this", True), ("another", False)])
def test_merged_reader_skips_a_rank_known_to_be_killed(host: str, shown: bool, tmp_path: Path) -> None:
    """Rank 0 was killed and lost its unwritten events; the other rank recorded the end of the run."""
    run = tmp_path / "run"
    first, second = record(run, RUN, 2)
    first.write_bytes(b"".join(first.read_bytes().splitlines(keepends=True)[:6]))
    compress_segment(second)
    leave_lock(run, socket.gethostname() if host == "this" else "elsewhere")
    last = events_by_rank(RUN, 2)[1][-1].seq
    history = open_history(run)
    assert (history.state_at(history.length).seq == last) is shown
    lock = RunLock(run)  # the run is resumed
    assert open_history(run).state_at(open_history(run).length).seq < last
    lock.release()


def test_merged_history_has_one_run_start(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, _ = record(run, RUN, 2)
    whole = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(whole[0])
    history = open_history(run)
    assert history.length == 0
    first.write_bytes(b"".join(whole))
    history.poll()
    assert repr(list(history.events())) == repr(RUN)
    assert history.notices == []


def test_merged_damage_is_reported_with_its_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _, path = record(run, RUN, 2)
    text = path.read_bytes().splitlines(keepends=True)
    text[5] = b"{" + text[5][2:]
    path.write_bytes(b"".join(text))
    compress_segment(run / "events-00001.jsonl")
    history = open_history(run)
    assert history.length == len(RUN) - 1
    (notice,) = history.notices
    assert notice.startswith(f"{path}, line 6 is damaged and was skipped")


def test_merged_event_of_an_unknown_env_is_damage(tmp_path: Path) -> None:
    run = tmp_path / "run"
    record(run, RUN, 2)
    stray = msgspec.structs.replace(env_stepped(9, 2, 5), seq=len(RUN) + 1, time=RUN[-1].time)
    with (run / "rank-1" / "events-00001.jsonl").open("ab") as file:
        file.write(lines([stray]))
    history = open_history(run)
    assert history.length == len(RUN)
    assert "it is about env 9, but the run has 4 envs" in history.notices[0]


@settings(max_examples=30)
@given(data=st.data())
def test_merged_history_is_independent_of_the_split(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    owners = data.draw(st.lists(st.integers(0, 2), min_size=len(RUN), max_size=len(RUN)))
    run = tmp_path_factory.mktemp("run")
    for rank in range(3):
        recorded = [event for event, owner in zip(RUN, owners, strict=True) if owner == rank or event.seq == 1]
        write_segment(directory_of(run, rank), 1, lines([Keyframe.from_state(RunState()), *recorded]))
    history = open_history(run)
    assert repr(list(history.events())) == repr(RUN)
