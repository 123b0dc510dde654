"""Timers: overlapping phases split their time, and CUDA events are read and reused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.training.envs.stopwatch import LAUNCH, CudaPhaseTimer, PhaseTimer, Span, StepTimer, split_overlaps

moments = st.integers(0, 20)
spans = st.lists(
    st.tuples(st.sampled_from("abc"), moments, moments).map(lambda s: Span(s[0], min(s[1:]), max(s[1:]))), max_size=12
)


def test_stopwatch_gives_sole_phase_all_its_time() -> None:
    assert split_overlaps([Span("train", 0.0, 2.0), Span("validate", 2.0, 3.0), Span("train", 5.0, 6.0)]) == {
        "train": 3.0,
        "validate": 1.0,
    }


def test_stopwatch_splits_concurrent_time_equally() -> None:
    found = split_overlaps([Span("train", 0.0, 4.0), Span("train", 0.0, 4.0), Span("validate", 1.0, 4.0)])
    assert found == {"train": 1.0 + 3.0 * 2 / 3, "validate": pytest.approx(1.0)}


def test_launching_counts_only_while_no_other_block_is_certain() -> None:
    found = split_overlaps([Span(LAUNCH, 0.0, 2.0), Span("train", 1.0, 4.0), Span(LAUNCH, 3.0, 5.0)])
    assert found == {LAUNCH: 2.0, "train": 3.0}


@given(spans)
def test_stopwatch_phases_sum_to_the_busy_time(found: list[Span]) -> None:
    busy = sum(any(span.start <= moment < span.end for span in found) for moment in range(20))
    assert sum(split_overlaps(found).values()) == pytest.approx(busy)


class Event:
    """A CUDA event on a clock that advances by a millisecond at each record."""

    made = 0
    clock = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        Event.made += 1

    def record(self) -> None:
        Event.clock += 1.0
        self.at = Event.clock

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.mark.parametrize(
    ("launch_ms", "expected"),
    [
        (0.0, {"train": 0.006, "validate": 0.003}),  # all is launched at once: the GPU is certainly busy
        (4.0, {"launch": 0.009}),  # every block ends while it is launched
    ],
)
def test_stopwatch_times_gpu_with_reused_events(
    launch_ms: float, expected: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    Event.made = 0
    host = 0.0

    def host_time() -> float:
        nonlocal host
        host += launch_ms / 1000
        return host

    monkeypatch.setattr("esper.training.envs.stopwatch.time.perf_counter", host_time)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    stopwatch = CudaPhaseTimer()
    for _ in range(3):
        stopwatch.begin()
        for phase in ("train", "validate", "train"):
            with stopwatch(phase):
                pass
        stopwatch.read_cuda_events()
    assert Event.made == 2 + 2 * 3
    found = stopwatch.pop_seconds()
    assert {phase: seconds for phase, seconds in found.items() if seconds} == pytest.approx(expected)
    assert stopwatch.pop_seconds() == {}


def test_stopwatch_discards_open_phases_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    stopwatch = CudaPhaseTimer()
    stopwatch.begin()
    with stopwatch("train"):
        pass
    stopwatch.discard()
    stopwatch.begin()
    stopwatch.read_cuda_events()
    assert stopwatch.pop_seconds() == {}


def test_group_that_waits_for_the_last_one_was_not_launching_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both groups are launched at once. The GPU reaches the second one three milliseconds later."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr("esper.training.envs.stopwatch.time.perf_counter", lambda: 1.0)
    stopwatch = CudaPhaseTimer()
    for phase in ("train", "validate"):
        stopwatch.begin()
        with stopwatch(phase):
            pass
    monkeypatch.setattr("esper.training.envs.stopwatch.time.perf_counter", lambda: 1.002)
    with stopwatch("validate"):  # launched before the GPU has reached the second group
        pass
    for _ in range(2):
        stopwatch.read_cuda_events()
    found = {phase: seconds for phase, seconds in stopwatch.pop_seconds().items() if seconds}
    assert found == pytest.approx({"train": 0.001, "validate": 0.002})


def test_time_that_two_groups_share_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both blocks take five milliseconds. The second one begins two before the end of the first."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr("esper.training.envs.stopwatch.time.perf_counter", lambda: 0.0)
    stopwatch = CudaPhaseTimer()
    for phase, start in (("train", 0.0), ("validate", 3.0)):
        Event.clock = start
        stopwatch.begin()
        Event.clock += 1.0
        with stopwatch(phase):
            Event.clock += 4.0
    for _ in range(2):
        stopwatch.read_cuda_events()
    found = {phase: seconds for phase, seconds in stopwatch.pop_seconds().items() if seconds}
    assert found == pytest.approx({"train": 0.005, "validate": 0.003})


def test_stopwatch_times_cpu_by_the_clock() -> None:
    stopwatch = PhaseTimer()
    with stopwatch("train"):
        sum(range(1000))
    assert list(stopwatch.pop_seconds()) == ["train"]


def test_stopwatch_step_excludes_earlier_phases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 0.0
    monkeypatch.setattr("esper.training.envs.stopwatch.time.perf_counter", lambda: clock)
    lanes = [PhaseTimer(), PhaseTimer()]
    times = StepTimer(lanes)

    clock = 3.0
    lanes[0].add("train", 2.0)
    times.add("checkpoint", 1.0)
    times.start_step()  # the run was held until now

    clock = 13.0
    lanes[0].add("train", 6.0)
    lanes[1].add("train", 4.0)
    lanes[1].add("validate", 2.0)
    times.add("act", 1.0)
    wall, phases, busy = times.end_step()
    assert wall == 10.0
    assert phases == {"act": 1.0, "train": 5.0, "validate": 1.0, "other": 3.0}
    assert busy == [(0.6, 0.0), (0.6, 0.0)]

    clock = 15.0
    assert times.end_step() == (2.0, {"other": 2.0}, [(0.0, 0.0)] * 2)
