"""Clocks: the wall clock is set, the machine sleeps, or a process is stopped, during a run and between its parts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from esper.common.formatting import format_age
from esper.recordings import events
from esper.recordings.events import clock
from esper.recordings.events.clock import EventClock
from esper.recordings.files import recorder as recorder_module
from esper.recordings.files.recorder import Recorder
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.health.detector import AnomalyDetector
from esper.recordings.health.incidents import group_incidents
from esper.recordings.history.history import History, open_history
from esper.recordings.history.run_info import RunEnd, RunInfo, read_run_info
from esper.recordings.history.run_status import is_being_written
from esper.recordings.history.tensorboard import TensorboardWriter
from esper.recordings.state.hub import EventHub
from tests.factory import START, run_started
from tests.recordings.files.recordings import fold

HOUR = 3600.0
CHANGES = [pytest.param(HOUR, id="asleep for an hour"), pytest.param(-2 * HOUR, id="set back by two hours")]


class Machine:
    """The two clocks of a machine, in seconds."""

    def __init__(self) -> None:
        self.wall, self.monotonic = START, 1000.0

    def work(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(clock, "time_ns", lambda: round(machine.wall * 1e9))
    monkeypatch.setattr(clock, "monotonic_ns", lambda: round(machine.monotonic * 1e9))
    return machine


def train(hub: EventHub, machine: Machine, steps: range) -> None:
    for step in steps:
        machine.work(1.0)
        hub.emit(events.PhaseTimed(round=1, step=step, wall=1.0, phases={"train": 1.0}))


def begin(run: Path) -> tuple[Recorder, EventHub]:
    recorder = Recorder(RunDirectory.make(run))
    return recorder, EventHub(recorder, AnomalyDetector())


def info_of(run: Path) -> RunInfo:
    return read_run_info(run, START, START, RunEnd(run))


def recorded_seconds(history: History) -> list[float]:
    return [history.elapsed(index, event.time) for index, event in enumerate(history.events())]


@pytest.mark.parametrize("change", CHANGES)
def test_times_of_a_run_are_those_of_the_monotonic_clock(change: float, machine: Machine, tmp_path: Path) -> None:
    recorder, hub = begin(tmp_path)
    hub.emit(run_started(steps=10))
    train(hub, machine, range(1, 4))
    machine.wall += change
    train(hub, machine, range(4, 6))
    recorder.close()

    history = open_history(tmp_path)
    assert history.notices == []
    changed = [event for event in history.events() if isinstance(event, events.ClockChanged)]
    assert [event.seconds for event in changed] == [change]
    state = history.state_at(history.length)
    assert state.time == pytest.approx(machine.wall)  # the log shows the time of the clock on the wall
    assert state.elapsed == pytest.approx(5.0)
    assert state.steps_per_second is not None
    assert history.duration == pytest.approx(5.0)
    assert recorded_seconds(history) == pytest.approx([0, 1, 2, 3, 4, 4, 5])
    assert info_of(tmp_path).measures["duration"] == pytest.approx(5.0)
    how = "back by 2h00m" if change < 0 else "forward by 1h00m, or the machine slept"
    assert state.log[-1].text == f"the clock of this machine was set {how}"


@pytest.mark.parametrize("change", CHANGES)
def test_change_at_the_start_of_a_segment_is_no_time_of_the_run(
    change: float, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, hub = begin(tmp_path)
    hub.emit(run_started(steps=10))
    train(hub, machine, range(1, 4))
    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "MAX_SEGMENT_BYTES", 1)
        assert hub.flush()
        train(hub, machine, range(4, 5))
        assert hub.flush()
    machine.wall += change
    train(hub, machine, range(5, 7))
    recorder.close()
    history = open_history(tmp_path)
    assert history.state_at(history.length).elapsed == pytest.approx(6.0)
    assert history.duration == pytest.approx(4.0)  # the two times between segments do not count


@pytest.mark.parametrize("change", CHANGES)
def test_times_of_the_parts_of_a_run_are_added(change: float, machine: Machine, tmp_path: Path) -> None:
    """The machine is started again in between, so that its monotonic clock starts again."""
    recorder, hub = begin(tmp_path)
    hub.emit(run_started(steps=10))
    train(hub, machine, range(1, 4))
    saved = hub.snapshot()
    train(hub, machine, range(4, 6))
    recorder.close()
    machine.wall += change
    machine.monotonic = 5.0
    recorder, hub = begin(tmp_path)
    hub.rewind(saved)
    train(hub, machine, range(4, 7))
    recorder.close()

    history = open_history(tmp_path)
    state = history.state_at(history.length)
    assert not any(isinstance(event, events.ClockChanged) for event in history.events())
    assert state.elapsed == pytest.approx(6.0)
    assert state.start_time == pytest.approx(START)
    assert all(before <= after for before, after in pairwise(recorded_seconds(history)))
    assert info_of(tmp_path).measures["duration"] == pytest.approx(6.0)


def test_stop_between_two_readings_is_no_change_of_the_clock(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = iter([60.0])

    def stop_and_read() -> int:
        machine.work(next(stops, 0.0))
        return round(machine.wall * 1e9)

    event_clock = EventClock()
    monkeypatch.setattr(clock, "time_ns", stop_and_read)
    assert event_clock.read() == (START + 60, 0.0)


def test_anomaly_after_the_clock_was_set_back_is_no_symptom_of_an_ended_one() -> None:
    found: dict[str, Any] = {"severity": "error", "where": "env 0", "env": 0, "value": 9.0, "text": "text"}
    state = fold(
        [
            run_started(),
            events.AnomalyFound(seq=2, time=START, rule="exploding gradient", **found),
            events.AnomalyEnded(seq=3, time=START + 1, rule="exploding gradient", where="env 0", env=0),
            events.ClockChanged(seq=4, time=START - 2 * HOUR + 2, seconds=-2 * HOUR),
            events.AnomalyFound(seq=5, time=START - 2 * HOUR + 3, rule="non-finite loss", **found),
        ]
    )
    assert len(group_incidents([*state.anomalies.values()])) == 2


def test_curves_of_tensorboard_never_go_back_in_time(tmp_path: Path) -> None:
    accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = TensorboardWriter(tmp_path, per_env=False)
    writer.write(run_started())
    for step, time in enumerate((START, START + 1, START - 2 * HOUR, START - 2 * HOUR + 1), start=1):
        writer.write(events.PhaseTimed(seq=step, time=time, round=1, step=step, wall=1.0, phases={}))
    writer.restart(fold([run_started()]), START - 4 * HOUR)
    writer.close()
    found = accumulator.EventAccumulator(str(tmp_path), purge_orphaned_data=False)
    found.Reload()
    times = [point.wall_time - START for point in found.Scalars("step time/total")]
    assert times == [0, 1, 1, 2]


def test_run_written_in_the_future_is_neither_live_nor_old(tmp_path: Path) -> None:
    assert not is_being_written(tmp_path, written=START + 2 * HOUR, now=START)
    assert is_being_written(tmp_path, written=START + 1, now=START)
    assert [format_age(seconds) for seconds in (-2 * HOUR, -1, 2 * HOUR)] == ["in the future", "just now", "2 h ago"]
