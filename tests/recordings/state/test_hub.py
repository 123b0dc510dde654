from __future__ import annotations

import math
import queue
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from esper.common.system.ranks import RankGroup, RankLostError
from esper.recordings import events as ev
from esper.recordings.files.recorder import Recorder
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.health.detector import AnomalyDetector
from esper.recordings.state.hub import EventHub, FirstRankEventHub, OtherRankEventHub
from esper.recordings.state.state import Keyframe, Record, RunState
from tests.factory import SLOTS, device_sampled, env_stepped, run_started
from tests.ranks import ThreadRanks, together


class Memory:
    """Sink that stores records in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.failure: str | None = None
        self.notices: deque[str] = deque()

    def put(self, record: Record) -> None:
        self.records.append(record)

    def flush(self) -> bool:
        return self.failure is None

    def snapshot(self) -> Keyframe:
        return Keyframe.from_state(RunState())


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def hub(memory: Memory) -> EventHub:
    return EventHub(memory, AnomalyDetector())


def drained(records: queue.SimpleQueue[Record]) -> Iterator[Record]:
    while not records.empty():
        yield records.get()


def test_first_rank_checks_and_records_the_events_of_all_ranks() -> None:
    """As in a run of one process: envs of other ranks join an anomaly, and the load of all lanes is compared."""
    lanes = ["cpu:0", "cpu:1", "cpu:2"]

    def work(ranks: RankGroup) -> list[Record]:
        memory = Memory()
        hub = FirstRankEventHub(memory, AnomalyDetector(), ranks) if ranks.rank == 0 else OtherRankEventHub(ranks)
        listener = hub.subscribe()
        hub.emit_global(msgspec.structs.replace(run_started(), lanes=lanes))
        for step in range(1, 16):
            hub.emit(device_sampled(lanes[ranks.rank], envs=2, busy=5.0 if ranks.rank == 1 else 0.5))
            blown_up = [msgspec.structs.replace(slot, grad_norm=math.nan) for slot in env_stepped().slots]
            hub.emit(env_stepped(env=ranks.rank, step=step, slots=blown_up))
            hub.emit_global(ev.PhaseTimed(round=1, step=step, wall=0.1, phases={}))
        assert list(drained(listener)) == memory.records
        return memory.records

    records, *others = together(3, work)
    assert others == [[], []]
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    stepped = [event.env for event in records if isinstance(event, ev.EnvStepped)]
    assert stepped == [0, 1, 2] * 15
    found = [event for event in records if isinstance(event, ev.AnomalyFound)]
    assert [event.where for event in found if event.rule == "straggling lane"] == ["cpu:1"]
    joined = [event for event in records if isinstance(event, ev.AnomalyJoined)]
    assert {event.env for event in joined} == {1, 2}
    texts = [event.text for event in (*found, *joined) if event.env is not None]
    assert all(any(slot in text for slot in SLOTS) for text in texts), texts


def test_warnings_and_printed_lines_of_another_rank_are_recorded() -> None:
    def work(ranks: RankGroup) -> list[Record]:
        memory = Memory()
        hub = FirstRankEventHub(memory, AnomalyDetector(), ranks) if ranks.rank == 0 else OtherRankEventHub(ranks)
        if ranks.rank == 1:
            hub.warnings.append("hot")
            hub.take_printed = iter([["hello"]]).__next__
            hub.emit(env_stepped(env=1, step=1))
        hub.emit_global(ev.RunEnded(outcome="done"))
        return memory.records

    records = together(2, work)[0]
    assert [event.text for event in records if isinstance(event, ev.Logged)] == ["hot", "hello"]


def test_first_rank_records_its_events_after_the_loss_of_another() -> None:
    meeting, memory = ThreadRanks(2), Memory()
    hub = FirstRankEventHub(memory, AnomalyDetector(), meeting.rank(0))
    hub.emit(env_stepped(env=0, step=1))
    meeting.leave()
    with pytest.raises(RankLostError):
        hub.emit_global(ev.PhaseTimed(round=1, step=1, wall=0.1, phases={}))
    hub.emit(ev.RunEnded(outcome="failed", reason="a rank is lost"))
    assert [type(record) for record in memory.records] == [ev.EnvStepped, ev.RunEnded]


def test_hub_numbers_events_from_one_and_dates_them(hub: EventHub, memory: Memory) -> None:
    before = time.time()
    for step in (1, 2, 3):
        hub.emit(ev.PhaseTimed(round=1, step=step, wall=0.1, phases={}))

    assert [record.seq for record in memory.records] == [1, 2, 3]
    unit = 0.001  # they are dated to the millisecond that has begun
    assert before - unit <= memory.records[0].time <= memory.records[2].time <= time.time()


def test_hub_sends_later_events_to_every_listener(hub: EventHub, memory: Memory) -> None:
    first, given = hub.subscribe(), queue.SimpleQueue[Record]()
    hub.emit(run_started())
    assert hub.subscribe(given) is given
    hub.emit(ev.RoundStarted(round=1))

    assert list(drained(first)) == memory.records
    assert list(drained(given)) == memory.records[1:]


def test_hub_emits_an_anomaly_after_its_event(hub: EventHub, memory: Memory) -> None:
    hub.emit(env_stepped(env=3, grad_norm=math.nan))
    hub.emit(env_stepped(env=3))

    assert [type(record) for record in memory.records] == [
        ev.EnvStepped,
        ev.AnomalyFound,
        ev.EnvStepped,
        ev.AnomalyEnded,
    ]
    assert [record.seq for record in memory.records] == [1, 2, 3, 4]


def test_hub_continues_numbering_after_restore(hub: EventHub, memory: Memory) -> None:
    records = hub.subscribe()
    for _ in range(9):
        hub.emit(run_started())
    keyframe = Keyframe.from_state(RunState(seq=4, time=1.0))
    hub.rewind(keyframe)
    hub.emit(ev.RoundStarted(round=1))

    assert [record.seq for record in memory.records[-2:]] == [4, 5]
    assert list(drained(records)) == memory.records
    restored = memory.records[-2]
    assert isinstance(restored, Keyframe)
    assert restored.restored > 0
    assert restored.state == keyframe.state
    assert restored.decode_state().time == restored.restored  # the time in between does not count


def test_hub_reports_lost_events_once(hub: EventHub, memory: Memory) -> None:
    records = hub.subscribe()
    memory.notices.extend(["one file is gone", "another too"])
    hub.emit(run_started())
    assert hub.flush()
    logged = [(record.severity, record.text) for record in drained(records) if isinstance(record, ev.Logged)]
    assert logged == [("error", "one file is gone"), ("error", "another too")]


def test_hub_reports_recording_failure_and_recovery_once(hub: EventHub, memory: Memory) -> None:
    records = hub.subscribe()
    hub.emit(run_started())
    memory.failure = "cannot record: no space"
    hub.emit(run_started())
    hub.emit(run_started())
    assert not hub.flush()
    memory.failure = None
    assert hub.flush()

    logged = [record for record in drained(records) if isinstance(record, ev.Logged)]
    assert [(log.severity, log.text) for log in logged] == [
        ("error", "cannot record: no space"),
        ("info", "recording resumed"),
    ]


def test_hub_snapshot_equals_the_state_of_a_listener(tmp_path: Path) -> None:
    recorder = Recorder(RunDirectory.make(tmp_path / "run"))
    hub = EventHub(recorder, AnomalyDetector())
    records = hub.subscribe()
    hub.emit(run_started())
    hub.emit(env_stepped(loss=math.inf))
    state = RunState()
    for record in drained(records):
        assert not isinstance(record, Keyframe)
        state.apply(record)

    assert repr(hub.snapshot().decode_state()) == repr(state)
    assert hub.seq == state.seq == 3
    assert hub.flush()
    recorder.close()
