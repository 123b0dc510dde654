"""Tests of resuming: a resumed run computes the same as an uninterrupted one, bit for bit."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from esper.recordings import events as ev
from esper.recordings.events import clock
from esper.recordings.files import run_lock
from esper.recordings.files.recorder import RecordingError
from tests.runs import LiveRun, computed, recorded, tiny

HOUR_NS = 3_600_000_000_000


@pytest.mark.parametrize(
    ("stop_after", "lanes"),
    [(4, ("cpu:0", "cpu:1")), *(pytest.param(stop, ("cpu:0",), marks=pytest.mark.slow) for stop in (1, 6, 8, 11))],
)
def test_run_stopped_at_any_step_resumes_identically(
    stop_after: int,
    lanes: tuple[str, ...],
    whole: list[ev.AnyEvent],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = LiveRun(tmp_path).start_paused(stop_after)
    checkpoint = first.stop()

    monkeypatch.setattr(clock, "time_ns", lambda: time.time_ns() - 2 * HOUR_NS)  # the clock was set back meanwhile
    second = LiveRun(tmp_path, resume=checkpoint, devices=lanes)
    state = second.start().finish()
    assert state.status == "done"
    assert computed(recorded(first.run.directory)) == whole
    assert 0 < first.state.elapsed < state.elapsed < HOUR_NS / 1e9


def test_of_two_resumes_at_once_one_is_refused(
    whole: list[ev.AnyEvent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "LOCK_TIMEOUT_S", 0.05)
    first = LiveRun(tmp_path).start_paused(5)
    checkpoint = first.stop()
    refused: list[RecordingError] = []

    def resume(_: int) -> LiveRun | None:
        try:
            return LiveRun(tmp_path, resume=checkpoint)
        except RecordingError as error:
            refused.append(error)
            return None

    with ThreadPoolExecutor(2) as terminals:
        [resumed] = filter(None, terminals.map(resume, range(2)))
    assert resumed.start().finish().status == "done"
    assert "is being trained by process" in str(*refused)
    assert computed(recorded(first.run.directory)) == whole


@pytest.mark.parametrize(("policy", "steps"), [pytest.param("heuristic", 18, marks=pytest.mark.slow), ("random", 6)])
def test_baseline_policies_resume_identically(policy: str, steps: int, tmp_path: Path) -> None:
    options = {"policy": policy, "rounds": 1, "steps": steps, "envs": 2}
    whole = LiveRun.finished(tmp_path / "whole", **options)
    first = LiveRun(tmp_path / "parts", **options).start_paused(2 * steps // 3)
    checkpoint = first.stop()
    LiveRun.finished(tmp_path / "parts", resume=checkpoint, **options)
    expected = computed(recorded(whole.run.directory))
    assert computed(recorded(first.run.directory)) == expected
    assert any(isinstance(event, ev.SeedMoved) for event in expected)


def test_tiny_runs_grow_seeds(whole: list[ev.AnyEvent]) -> None:
    """Guards the tests above, which would otherwise compare very little."""
    moved = {event.after for event in whole if isinstance(event, ev.SeedMoved)}
    assert {"germinated", "training"} <= moved
    assert tiny(Path())["steps"] == 4
