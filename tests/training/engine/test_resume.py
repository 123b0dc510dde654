"""Tests of resuming: a resumed run computes the same as an uninterrupted one, bit for bit."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.events import clock
from esper.recordings.files import run_lock
from esper.recordings.files.recorder import RecordingError
from tests.runs import LiveRun, computed, recorded, tiny

HOUR_NS = 3_600_000_000_000


@settings(max_examples=4)
@given(stop_after=st.integers(1, 11), lanes=st.sampled_from([("cpu:0",), ("cpu:0", "cpu:1")]))
def test_run_stopped_at_any_step_resumes_identically(
    whole: list[ev.AnyEvent], tmp_path_factory: pytest.TempPathFactory, stop_after: int, lanes: tuple[str, ...]
) -> None:
    directory = tmp_path_factory.mktemp("stopped")
    first = LiveRun(directory).start_paused(stop_after)
    first.control.put(RequestKind.STOP, "test")
    assert first.finish().status == "stopped"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "time_ns", lambda: time.time_ns() - 2 * HOUR_NS)  # the clock was set back meanwhile
        second = LiveRun(directory, resume=list_checkpoints(first.run.directory)[-1], devices=lanes)
        state = second.start().finish()
    assert state.status == "done"
    assert computed(recorded(first.run.directory)) == whole
    assert 0 < first.state.elapsed < state.elapsed < HOUR_NS / 1e9


def test_of_two_resumes_at_once_one_is_refused(
    whole: list[ev.AnyEvent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "LOCK_TIMEOUT_S", 0.05)
    first = LiveRun(tmp_path).start_paused(5)
    first.control.put(RequestKind.STOP, "test")
    first.finish()
    checkpoint = list_checkpoints(first.run.directory)[-1]
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


def test_restore_in_a_live_run_undoes_later_events(whole: list[ev.AnyEvent], tmp_path: Path) -> None:
    live = LiveRun(tmp_path)
    live.start()
    saved = live.wait_for(ev.CheckpointSaved)
    live.control.put(RequestKind.PAUSE, "test")
    live.wait_for(ev.Paused)
    live.control.put(RequestKind.RESTORE, "test", saved.path)
    live.wait_for(ev.Resumed)
    assert (live.state.round, live.state.step) == (saved.round, saved.step)
    live.finish()
    assert computed(recorded(live.run.directory)) == whole


@pytest.mark.parametrize(("policy", "steps"), [("heuristic", 18), ("random", 8), ("static", 3)])
def test_baseline_policies_resume_identically(policy: str, steps: int, tmp_path: Path) -> None:
    options = {"policy": policy, "rounds": 1, "steps": steps, "envs": 2}
    whole = LiveRun(tmp_path / "whole", **options)
    whole.start().finish()
    first = LiveRun(tmp_path / "parts", **options).start_paused(2 * steps // 3)
    first.control.put(RequestKind.STOP, "test")
    first.finish()
    second = LiveRun(tmp_path / "parts", resume=list_checkpoints(first.run.directory)[-1], **options)
    second.start().finish()
    expected = computed(recorded(whole.run.directory))
    assert computed(recorded(first.run.directory)) == expected
    assert any(isinstance(event, ev.SeedMoved) for event in expected) == (policy != "static")


def test_tiny_runs_grow_seeds(whole: list[ev.AnyEvent]) -> None:
    """Guards the tests above, which would otherwise compare very little."""
    moved = {event.after for event in whole if isinstance(event, ev.SeedMoved)}
    assert {"germinated", "training"} <= moved
    assert tiny(Path())["steps"] == 4
