"""Requests to a run: each takes effect between two steps. Checkpoints on request and on schedule."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest

from esper.common.configuration.files import resolve_config
from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import STATE_FILE
from esper.training.checkpoint.files import Checkpoint, read_checkpoint
from esper.training.engine import checkpointer
from esper.training.engine.ending import NOT_BEGUN
from esper.training.engine.start_point import StartPoint
from esper.training.engine.thread import EngineThread
from tests.runs import LiveRun, computed, recorded, tiny


def ask(live: LiveRun, kind: RequestKind, path: str | None = None) -> None:
    live.control.put(kind, "test", path)


def steps(heard: Sequence[ev.AnyEvent]) -> list[tuple[int, int, int]]:
    return [(event.round, event.step, event.env) for event in heard if isinstance(event, ev.EnvStepped)]


@pytest.fixture
def paused(tmp_path: Path) -> LiveRun:
    """A run that is paused after its second step."""
    return LiveRun(tmp_path, checkpoint_every=0).start_paused(2)


# During setup


@pytest.mark.parametrize("kind", [RequestKind.STOP, RequestKind.ABANDON])
def test_quit_during_setup_leaves_no_files(kind: RequestKind, tmp_path: Path) -> None:
    engine = EngineThread(StartPoint(resolve_config(None, tiny(tmp_path))))
    engine.control.put(kind, "test")
    engine.start()
    engine.join()
    assert (engine.ending, engine.directory) == (NOT_BEGUN, None)
    assert engine.records.empty()
    assert not list(tmp_path.iterdir())


# Pause


def test_paused_run_steps_only_on_request(paused: LiveRun) -> None:
    before = len(paused.events)
    for _ in range(3):  # each is answered, so the engine has looked at its requests that often
        ask(paused, RequestKind.CHECKPOINT)
        paused.wait_for(ev.CheckpointSaved)
    assert steps(paused.events[before:]) == []
    assert (paused.run.trainer.state.round, paused.run.trainer.state.step) == (0, 2)
    assert (paused.state.status, paused.state.round, paused.state.step) == ("paused", 1, 2)

    ask(paused, RequestKind.STEP)
    held = paused.wait_for(ev.Paused)
    assert (held.round, held.step, held.origin) == (1, 3, "test")
    assert steps(paused.events[before:]) == [(1, 3, 0), (1, 3, 1), (1, 3, 2)]
    assert paused.state.status == "paused"

    ask(paused, RequestKind.STEP)
    ask(paused, RequestKind.STEP)
    assert [paused.wait_for(ev.Paused).step for _ in range(2)] == [4, 1]
    assert len(steps(paused.events[before:])) == 3 * 3
    ask(paused, RequestKind.ABANDON)
    assert paused.finish().status == "stopped"


def test_resume_right_after_a_single_step_is_not_lost(paused: LiveRun) -> None:
    ask(paused, RequestKind.STEP)
    ask(paused, RequestKind.RESUME)
    assert paused.finish().status == "done"


def test_redundant_pause_and_resume_are_ignored(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, policy="static", rounds=1)
    ask(live, RequestKind.RESUME)
    live.start_paused(1)
    ask(live, RequestKind.PAUSE)
    ask(live, RequestKind.RESUME)
    assert live.finish().status == "done"
    held = [type(event) for event in live.events if isinstance(event, ev.Paused | ev.Resumed)]
    assert held == [ev.Paused, ev.Resumed]
    requests = [event for event in live.events if isinstance(event, ev.ControlRequested)]
    assert [(request.kind, request.ignored) for request in requests] == [
        ("resume", "the run is not paused"),
        ("pause", None),
        ("pause", "the run is already paused"),
        ("resume", None),
    ]


def test_request_event_has_origin_and_precedes_its_effect(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, checkpoint_every=0).start_paused()
    live.control.put(RequestKind.CHECKPOINT, "attach ann@box 7")
    saved = live.wait_for(ev.CheckpointSaved)
    last = [event for event in live.events if isinstance(event, ev.EnvStepped)][-len(live.run.pool.envs) :]
    live.control.put(RequestKind.STEP, "keyboard")
    live.control.put(RequestKind.RESTORE, "attach bob@box 8", saved.path)
    again = live.wait_for(ev.CheckpointSaved)
    live.wait_for(ev.Resumed)
    live.control.put(RequestKind.STOP, "signal")
    assert live.finish().status == "stopped"
    told = [event for event in live.events if isinstance(event, ev.ControlRequested)]
    assert [(event.kind, event.origin, event.path) for event in told] == [
        ("pause", "test", None),
        ("checkpoint", "attach ann@box 7", None),
        ("step", "keyboard", None),
        ("restore", "attach bob@box 8", saved.path),
        ("stop", "signal", None),
    ]
    after = [type(live.events[live.events.index(event) + 1]) for event in told]
    assert after == [ev.Paused, ev.CheckpointSaved, ev.EnvStepped, ev.CheckpointSaved, ev.CheckpointSaved]

    assert saved.score == pytest.approx(median(event.score for event in last), rel=1e-4)
    assert again.score == saved.score
    assert again.written == pytest.approx(saved.time, abs=1.0)  # by the clock of the file system
    assert (again.origin, again.seconds, saved.written) == ("restore", None, None)
    at_end, ended = live.events[-2:]
    assert isinstance(at_end, ev.CheckpointSaved)
    assert isinstance(ended, ev.RunEnded)
    assert (at_end.origin, ended.outcome, ended.reason) == ("signal", "stopped", None)
    assert read_checkpoint(list_checkpoints(live.run.directory)[-1]).step == at_end.step


# Checkpoints


def test_checkpoint_of_a_paused_run_can_be_resumed(paused: LiveRun, tmp_path: Path) -> None:
    ask(paused, RequestKind.CHECKPOINT)
    saved = paused.wait_for(ev.CheckpointSaved)
    assert (saved.round, saved.step, saved.origin) == (1, 2, "test")
    found = read_checkpoint(Path(saved.path))
    assert (found.round, found.step) == (0, 2)
    assert saved.bytes == sum(file.stat().st_size for file in Path(saved.path).iterdir())
    ask(paused, RequestKind.RESUME)
    resumed = paused.wait_for(ev.Resumed)
    assert (resumed.round, resumed.step, resumed.checkpoint) == (1, 2, None)
    assert paused.finish().status == "done"
    assert steps(paused.events) == [(r, s, e) for r in (1, 2, 3) for s in (1, 2, 3, 4) for e in range(3)]
    whole = computed(recorded(paused.run.directory))

    again = LiveRun.finished(tmp_path, resume=Path(saved.path), checkpoint_every=0)
    assert computed(recorded(again.run.directory)) == whole


def test_abandon_writes_no_checkpoint(paused: LiveRun) -> None:
    ask(paused, RequestKind.ABANDON)
    assert paused.finish().status == "stopped"
    assert list_checkpoints(paused.run.directory) == []
    assert not any(isinstance(event, ev.CheckpointSaved) for event in paused.events)


@pytest.mark.parametrize(
    ("every", "rounds"),
    [(1, [("schedule", 1), ("schedule", 2), ("end", 3)]), (2, [("schedule", 2), ("end", 3)]), (0, [("end", 3)])],
)
def test_checkpoints_follow_the_schedule_and_the_newest_are_kept(
    every: int, rounds: list[tuple[str, int]], tmp_path: Path
) -> None:
    live = LiveRun.finished(tmp_path, policy="static", checkpoint_every=every, keep=2, steps=1)
    saved = [(event.origin, event.round) for event in live.events if isinstance(event, ev.CheckpointSaved)]
    assert saved == rounds
    kept = [read_checkpoint(path).round for path in list_checkpoints(live.run.directory)]
    assert kept == [round_ for _, round_ in rounds[-2:]]


def test_scheduled_checkpoint_on_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpointer.write_checkpoint

    def full_in_the_first_round(directory: Path, checkpoint: Checkpoint) -> int:
        if checkpoint.round == 1:
            raise OSError(28, "No space left on device")
        return write(directory, checkpoint)

    monkeypatch.setattr(checkpointer, "write_checkpoint", full_in_the_first_round)
    live = LiveRun(tmp_path, policy="static", steps=1)
    assert live.start().finish().status == "done"
    told = [event.text for event in live.events if isinstance(event, ev.Logged)]
    assert told == [f"the checkpoint cannot be written to {live.run.directory}: No space left on device"]
    assert [event.round for event in live.events if isinstance(event, ev.CheckpointSaved)] == [2, 3]


def test_checkpoint_is_written_despite_undeletable_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(run: Path, count: int) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(checkpointer, "prune_checkpoints", refused)
    live = LiveRun(tmp_path, policy="static", steps=1, rounds=2)
    assert live.start().finish().status == "done"
    assert [event.round for event in live.events if isinstance(event, ev.CheckpointSaved)] == [1, 2]
    told = [event.text for event in live.events if isinstance(event, ev.Logged)]
    assert told == [f"older checkpoints cannot be removed from {live.run.directory}: Permission denied"] * 2


def test_damaged_checkpoint_is_reported_and_run_continues(tmp_path: Path, whole: list[ev.AnyEvent]) -> None:
    live = LiveRun(tmp_path / "live").start_paused(2)
    ask(live, RequestKind.CHECKPOINT)
    path = Path(live.wait_for(ev.CheckpointSaved).path)
    damaged = path.with_name("round-00000-step-0001")
    shutil.copytree(path, damaged)
    (damaged / STATE_FILE).write_text("{}")

    for wrong in (damaged, tmp_path / "nowhere"):
        ask(live, RequestKind.RESTORE, str(wrong))
        logged = live.wait_for(ev.Logged)
        assert logged.severity == "error"
        assert str(wrong) in logged.text
        assert live.state.status == "paused"
    ask(live, RequestKind.RESUME)
    live.finish()
    undisturbed = [event for event in computed(recorded(live.run.directory)) if not isinstance(event, ev.Logged)]
    assert undisturbed == whole
