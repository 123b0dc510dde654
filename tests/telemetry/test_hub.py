from __future__ import annotations

import math
import queue
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from esper.health.detector import AnomalyDetector
from esper.ranks import RankGroup, RankLostError
from esper.recording.recorder import Recorder
from esper.telemetry import events as ev
from esper.telemetry.hub import EventHub, RankedEventHub
from esper.telemetry.state import Keyframe, Record, RunState
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


class RankedMemory(Memory):
    """Sink of one of several ranks."""

    def apply_remote(self, event: ev.AnyEvent) -> None:
        """Ignore events that other ranks record."""


def test_rank_checks_only_its_own_envs_and_lanes() -> None:
    """A rank gets RunStarted from rank 0, and the load of other lanes from their ranks."""

    def work(ranks: RankGroup) -> list[Record]:
        memory = RankedMemory()
        hub = RankedEventHub(memory, AnomalyDetector(), ranks)
        lanes = ["cpu:0", "cpu:1", "cpu:2"]
        hub.emit_global(msgspec.structs.replace(run_started(), lanes=lanes))
        for step in range(1, 16):
            hub.emit(device_sampled(lanes[ranks.rank], envs=2, busy=5.0 if ranks.rank == 1 else 0.5))
            blown_up = [msgspec.structs.replace(slot, grad_norm=math.nan) for slot in env_stepped().slots]
            hub.emit(env_stepped(env=ranks.rank, step=step, slots=blown_up))
            hub.emit_global(ev.PhaseTimed(round=1, step=step, wall=0.1, phases={}))
        return memory.records

    for rank, records in enumerate(together(3, work)):
        found = [event for event in records if isinstance(event, ev.AnomalyFound)]
        assert [event.where for event in found if event.rule == "straggling lane"] == (["cpu:1"] if rank == 1 else [])
        texts = [event.text for event in found if event.env is not None]
        assert texts
        assert all(any(slot in text for slot in SLOTS) for text in texts), texts


def test_hub_emits_the_report_of_a_lost_rank() -> None:
    meeting, memory = ThreadRanks(2), RankedMemory()
    hub = RankedEventHub(memory, AnomalyDetector(), meeting.rank(0))
    hub.emit(env_stepped(env=0, step=1))
    meeting.leave()
    with pytest.raises(RankLostError):
        hub.emit_global(ev.PhaseTimed(round=1, step=1, wall=0.1, phases={}))
    hub.stop_synchronising()
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
    assert restored.decode_state() == keyframe.decode_state()


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
    recorder = Recorder(tmp_path / "run")
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
