"""Faults of a run: it ends, or is held for its user, with a reason; it can restore a checkpoint, and never hangs."""

from __future__ import annotations

import errno
import gc
import os
import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import psutil
import pytest
import torch
from torch import Tensor

from esper.common.control import RequestKind
from esper.networks.seeds.lifecycle import StageTransition
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import UNDONE_DIR, find_checkpoint, list_checkpoints
from esper.recordings.checkpoints.manifest import MANIFEST_FILE
from esper.recordings.files import recorder, segments
from esper.recordings.files.recorder import RecordingError
from esper.recordings.files.run_lock import is_live
from esper.recordings.files.segments import list_segments, packed_path
from esper.training.checkpoint.files import Checkpoint, read_checkpoint
from esper.training.engine import checkpointer, run_files, setup
from esper.training.envs.env import Env
from esper.training.lanes.errors import FaultError, RunFailedError
from esper.training.policy.actions import Action
from esper.training.ppo.learner import PPOLearner
from tests.runs import LiveRun, computed, recorded, stopped_run, wait_for_fault


def fail_once(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], NoReturn]) -> None:
    """Make env 1 fail once, in the third step of the second round."""
    apply, failed = Env.apply_action, threading.Event()

    def broken(env: Env, action: Action, step: int) -> list[StageTransition]:
        if (env.index, env.key.round, step) == (1, 1, 2) and not failed.is_set():
            failed.set()
            fail()
        return apply(env, action, step)

    monkeypatch.setattr(Env, "apply_action", broken)


def out_of_memory() -> NoReturn:
    raise torch.OutOfMemoryError("Tried to allocate 2.00 TiB.")


def not_to_be_read(run: Path) -> NoReturn:
    raise PermissionError(errno.EACCES, "Permission denied", str(run))


@pytest.mark.parametrize("lanes", [("cpu:0",), pytest.param(("cpu:0", "cpu:1"), marks=pytest.mark.slow)])
def test_restore_after_fault_reaches_the_same_result(
    lanes: tuple[str, ...], tmp_path: Path, whole: list[ev.AnyEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, out_of_memory)
    live = LiveRun(tmp_path / "live", interactive=True, devices=lanes).start()
    reason = wait_for_fault(live)
    assert re.fullmatch(rf"env 01 on ({'|'.join(lanes)}) ran out of memory: Tried to allocate 2\.00 TiB\.", reason)
    assert (live.state.status, live.state.reason) == ("paused", reason)
    assert (live.state.round, live.state.step) == (2, 2)

    for kind in (RequestKind.RESUME, RequestKind.STEP, RequestKind.CHECKPOINT, RequestKind.PAUSE):
        live.control.put(kind, "test")
        refused = live.wait_for(ev.ControlRequested)
        assert (refused.kind, refused.ignored is not None) == (kind.value, True)
        assert "failed partway" in (refused.ignored or "")
    saved = live.state.checkpoints[-1]
    assert (saved.round, saved.step, saved.origin) == (1, 4, "schedule")

    live.control.put(RequestKind.RESTORE, "test", str(tmp_path))
    assert live.wait_for(ev.Logged).severity == "error"
    live.control.put(RequestKind.RESTORE, "test", saved.path)
    live.wait_for(ev.Resumed)
    assert (live.state.status, live.state.reason) == ("running", None)
    assert live.finish().status == "done"
    assert live.failure is None
    assert computed(recorded(live.run.directory)) == whole


def test_fault_in_first_round_has_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, failed = Env.train_epoch, threading.Event()

    def broken(env: Env, step: int) -> Tensor:
        if step == 1 and not failed.is_set():
            failed.set()
            raise RuntimeError("once")
        return train(env, step)

    monkeypatch.setattr(Env, "train_epoch", broken)
    live = LiveRun(tmp_path, policy="static", rounds=1, interactive=True).start()
    wait_for_fault(live)
    (start,) = live.state.checkpoints
    assert (start.origin, start.round, start.step) == ("fault", 0, 0)
    live.control.put(RequestKind.RESTORE, "test", start.path)
    assert live.finish().status == "done"


def test_fault_without_user_loses_at_most_the_round(
    tmp_path: Path, whole: list[ev.AnyEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, out_of_memory)
    failed = LiveRun(tmp_path / "failed", checkpoint_every=0).start()
    state = failed.finish()
    assert state.status == "failed"
    assert failed.failure is not None
    assert failed.failure.endswith("continues at round 2, step 1")
    (saved,) = state.checkpoints
    assert (saved.origin, saved.round, saved.step) == ("fault", 1, 4)
    episodes = read_checkpoint(Path(saved.path)).state["episodes"]
    assert [len(episode["view"]["scores"]) for episode in episodes] == [1] * len(episodes)  # of fresh hosts

    resumed = LiveRun(tmp_path / "failed", resume=Path(saved.path), checkpoint_every=0).start()
    assert resumed.finish().status == "done"
    assert computed(recorded(resumed.run.directory)) == whole


@pytest.mark.parametrize("kind", [RequestKind.STOP, RequestKind.ABANDON])
def test_leaving_a_failed_run_prints_how_to_resume(
    kind: RequestKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    fail_once(monkeypatch, out_of_memory)
    live = LiveRun(tmp_path, policy="static", interactive=True).start()
    wait_for_fault(live)
    saved = list_checkpoints(live.run.directory)
    live.control.put(kind, "test")
    assert live.finish().status == "failed"
    assert live.failure == (
        "env 01 on cpu:0 ran out of memory: Tried to allocate 2.00 TiB.; "
        f"--resume {live.run.directory} continues at round 2, step 1"
    )
    assert list_checkpoints(live.run.directory) == saved  # nothing of the half step
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("interactive", [True, False])
def test_lost_gpu_ends_the_run_and_is_not_used_again(
    interactive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_gpu() -> NoReturn:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …")

    def used() -> NoReturn:
        pytest.fail("the GPU was used")

    fail_once(monkeypatch, lose_gpu)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", used)
    live = LiveRun(tmp_path, policy="static", interactive=interactive).start()
    assert live.finish().status == "failed"
    assert live.failure is not None
    assert re.fullmatch(
        r"env 01 on cpu:0 failed: RuntimeError: CUDA error: an illegal memory access was encountered \(.*\) "
        rf"\(traceback in .*\); --resume {live.run.directory} continues at round 2, step 1",
        live.failure,
    )
    assert live.state.checkpoints[-1].round == 1


def test_checkpoint_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(monkeypatch, out_of_memory)
    live = LiveRun(tmp_path, policy="static", rounds=2, interactive=True).start()
    wait_for_fault(live)
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "clone", lambda *_, **__: out_of_memory())
        live.control.put(RequestKind.RESTORE, "test", live.state.checkpoints[-1].path)
        assert live.wait_for(ev.Logged).text.endswith("cannot be restored: it needs more memory")
    live.control.put(RequestKind.RESTORE, "test", live.state.checkpoints[-1].path)
    assert live.finish().status == "done"


def test_fault_in_the_update_holds_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = PPOLearner.update

    def broken(*_: object) -> NoReturn:
        raise ValueError("no such number")

    monkeypatch.setattr(PPOLearner, "update", broken)
    live = LiveRun(tmp_path, interactive=True).start()
    assert wait_for_fault(live).startswith("the engine failed: ValueError: no such number (")
    monkeypatch.setattr(PPOLearner, "update", learn)
    live.control.put(RequestKind.RESTORE, "test", live.state.checkpoints[0].path)
    assert live.finish().status == "done"


def test_fault_keeps_no_tensors_of_the_failed_step() -> None:
    kept: list[weakref.ref[Tensor]] = []

    def work() -> FaultError:
        large = torch.zeros(8)
        kept.append(weakref.ref(large))
        try:
            raise MemoryError
        except MemoryError as error:
            return FaultError.from_exception(error, "env 00 on cpu:0")

    fault = work()
    gc.collect()
    assert str(fault) == "env 00 on cpu:0 ran out of memory"
    assert kept[0]() is None


@pytest.mark.parametrize(("module", "broken"), [(run_files, "Recorder"), (setup, "Trainer")])
def test_failed_setup_leaves_nothing_open(
    module: ModuleType, broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RecordingError("there is no room")

    monkeypatch.setattr(module, broken, refuse)
    threads, processes = set(threading.enumerate()), set(psutil.Process().children())
    with pytest.raises(RecordingError, match="there is no room"):
        LiveRun(tmp_path, devices=("cpu:0", "cpu:1"))
    assert set(threading.enumerate()) <= threads
    assert set(psutil.Process().children()) <= processes
    (directory,) = tmp_path.iterdir()
    assert not is_live(directory)


def test_fault_in_a_lane_ends_the_run_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Env.apply_action

    def broken(env: Env, action: Action, step: int) -> list[StageTransition]:
        if (env.index, step) == (1, 2):
            raise RuntimeError("the device is on fire")
        return apply(env, action, step)

    monkeypatch.setattr(Env, "apply_action", broken)
    before = set(threading.enumerate())
    live = LiveRun(tmp_path, policy="static")
    with pytest.raises(RunFailedError, match=r"continues at round 1, step 1$"):
        live.run.train()
    assert set(threading.enumerate()) <= before

    live.wait_for(ev.RunEnded)
    state = live.state
    assert state.status == "failed"
    assert state.reason is not None
    assert state.reason.startswith("env 01 on cpu:0 ")
    assert "failed: RuntimeError: the device is on fire (" in state.reason
    assert 'raise RuntimeError("the device is on fire")' in (live.run.directory / "traceback.txt").read_text()
    assert (state.round, state.step) == (1, 2)
    (segment,) = list_segments(live.run.directory)
    assert packed_path(segment).exists()  # the recorder has ended, and ended well
    assert recorded(live.run.directory)[-1] == live.events[-1]


# A full disk


def no_room(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def limit_checkpoints(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event; while it is set, writing a checkpoint fails for lack of space."""
    write, full = checkpointer.write_checkpoint, threading.Event()

    def limited(directory: Path, checkpoint: Checkpoint) -> int:
        if full.is_set():
            no_room()
        return write(directory, checkpoint)

    monkeypatch.setattr(checkpointer, "write_checkpoint", limited)
    return full


@pytest.mark.parametrize("kind", [RequestKind.CHECKPOINT, RequestKind.STOP])
def test_fault_on_full_disk_can_be_saved_later(
    kind: RequestKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = limit_checkpoints(monkeypatch)
    full.set()
    fail_once(monkeypatch, out_of_memory)
    live = LiveRun(tmp_path, policy="static", rounds=2, interactive=True, checkpoint_every=0).start()
    assert wait_for_fault(live).endswith(f"cannot be written to {live.run.directory}: No space left on device")
    assert live.state.cause == "unsaved"
    live.control.put(kind, "keyboard")
    assert "No space left on device" in wait_for_fault(live)
    full.clear()
    live.control.put(kind, "keyboard")
    if kind is RequestKind.CHECKPOINT:
        assert "No space left" not in wait_for_fault(live)
        assert live.state.cause == "fault"
        (saved,) = live.state.checkpoints
        assert (saved.origin, saved.round) == ("keyboard", 1)
        live.control.put(RequestKind.RESTORE, "keyboard", saved.path)
        assert live.finish().status == "done"
    else:
        assert live.finish().status == "failed"
        assert live.failure is not None
        assert live.failure.endswith("continues at round 2, step 1")


def test_stop_on_full_disk_holds_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = limit_checkpoints(monkeypatch)
    live = LiveRun(tmp_path, policy="static", interactive=True).start_paused(2)
    full.set()
    live.control.put(RequestKind.STOP, "keyboard")
    assert "No space left on device; free some space and try again" in wait_for_fault(live)
    full.clear()
    live.control.put(RequestKind.STOP, "keyboard")
    assert live.finish().status == "stopped"
    assert live.state.checkpoints[-1].step == 2

    live = LiveRun(tmp_path, policy="static", interactive=True).start_paused(2)
    full.set()
    live.control.put(RequestKind.STOP, "signal")  # no user is left to free space
    assert live.finish().status == "failed"
    assert live.failure is not None
    assert "No space left on device" in live.failure


@pytest.mark.parametrize("kind", [RequestKind.RESUME, RequestKind.ABANDON, RequestKind.RESTORE])
def test_full_disk_after_the_last_round_holds_the_run(
    kind: RequestKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = limit_checkpoints(monkeypatch)
    live = LiveRun(tmp_path, policy="static", interactive=True, checkpoint_every=0, rounds=1).start_paused(2)
    live.control.put(RequestKind.CHECKPOINT, "keyboard")
    early = live.wait_for(ev.CheckpointSaved)
    full.set()
    live.control.put(RequestKind.RESUME, "keyboard")
    for failing in (RequestKind.CHECKPOINT, RequestKind.STOP):
        assert "No space left on device; free some space and try again" in wait_for_fault(live)
        assert live.state.cause == "checkpoint"
        live.control.put(failing, "keyboard")
    wait_for_fault(live)
    full.clear()
    live.control.put(kind, "keyboard", early.path if kind is RequestKind.RESTORE else None)
    assert live.finish().status == "done"
    at_end = live.state.checkpoints[-1].step > 2
    assert at_end == (kind is not RequestKind.ABANDON)


def test_failed_recording_holds_the_run_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, full = os.write, threading.Event()

    def limited(file: int, data: bytes) -> int:
        if full.is_set():
            no_room()
        return write(file, data)

    monkeypatch.setattr(recorder, "RETRY_INTERVAL_S", 0.02)
    monkeypatch.setattr(segments.os, "write", limited)
    live = LiveRun(tmp_path, interactive=True).start_paused(1)
    assert live.run.hub.flush()
    full.set()
    live.control.put(RequestKind.RESUME, "test")
    reason = wait_for_fault(live)
    assert "cannot record to" in reason
    assert "No space left on device" in reason
    assert recorded(live.run.directory)  # the recorded part is valid
    live.control.put(RequestKind.RESUME, "test")
    assert "resumes by itself" in (live.wait_for(ev.ControlRequested).ignored or "")
    full.clear()
    assert live.wait_for(ev.Resumed).origin == "engine"
    assert live.finish().status == "done"
    told = [(event.seq, type(event)) for event in live.events]
    assert [(event.seq, type(event)) for event in recorded(live.run.directory)] == told


# Restore


def test_restore_sets_later_checkpoints_aside(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, policy="static", checkpoint_every=0, rounds=50).start_paused(1)
    directory = live.run.directory
    live.control.put(RequestKind.CHECKPOINT, "test")
    first = Path(live.wait_for(ev.CheckpointSaved).path)
    live.control.put(RequestKind.STEP, "test")
    live.control.put(RequestKind.CHECKPOINT, "test")
    later = Path(live.wait_for(ev.CheckpointSaved).path)
    assert find_checkpoint(directory) == later

    live.control.put(RequestKind.RESTORE, "test", str(first))
    live.abandon()
    assert find_checkpoint(directory) == first
    assert [path.name for path in (directory / UNDONE_DIR).iterdir()] == [later.name]


def test_restore_cancels_a_failed_single_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(monkeypatch, out_of_memory)
    live = LiveRun(tmp_path, policy="static", rounds=2, interactive=True).start_paused(6)
    saved = live.state.checkpoints[-1].path
    live.control.put(RequestKind.STEP, "test")
    wait_for_fault(live)
    live.control.put(RequestKind.RESTORE, "test", saved)
    live.wait_for(ev.Resumed)
    assert live.finish().status == "done"


def test_restore_accepts_only_checkpoints_of_the_run(tmp_path: Path) -> None:
    other = list_checkpoints(stopped_run(tmp_path / "other"))[-1]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    live = LiveRun(tmp_path, policy="static", rounds=1, checkpoint_every=0).start_paused(1)
    for path, refusal in (
        (str(other), f"{other} belongs to {other.parent.parent}, not to this run"),
        (str(loop), "is not a checkpoint: Symlink loop"),
        ("round\0", "'round\\x00' is not a checkpoint: embedded null byte"),
    ):
        live.control.put(RequestKind.RESTORE, "test", path)
        assert refusal in live.wait_for(ev.Logged).text
    live.control.put(RequestKind.RESUME, "test")
    assert live.finish().status == "done"


def test_failed_sync_of_the_last_checkpoint_names_what_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpointer.write_checkpoint

    def unsynced(path: Path, checkpoint: Checkpoint) -> int:
        write(path, checkpoint)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpointer, "write_checkpoint", unsynced)
    live = LiveRun(tmp_path, policy="static", rounds=1, steps=1, checkpoint_every=0, patience_minutes=0).start()
    assert live.finish().status == "failed"
    assert live.failure is not None
    assert live.failure.endswith(f"its last round is saved, and --resume {live.run.directory} records its end")


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "not to be listed"])
def test_fault_is_reported_despite_a_failing_resume_hint(
    damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, out_of_memory)
    live = LiveRun(tmp_path, policy="static", interactive=True).start()
    wait_for_fault(live)
    if damaged:
        (list_checkpoints(live.run.directory)[-1] / MANIFEST_FILE).write_text("{}")
    else:
        monkeypatch.setattr(run_files, "list_checkpoints", not_to_be_read)
        monkeypatch.setattr(checkpointer, "list_checkpoints", not_to_be_read)
    live.control.put(RequestKind.STOP, "test")
    assert live.finish().status == "failed"
    assert live.failure is not None
    told = f"2.00 TiB.; list checkpoints to resume from with `esper-sanctum checkpoints {live.run.directory}`: "
    assert told in live.failure


def test_fault_with_unlistable_checkpoints_holds_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(monkeypatch, out_of_memory)
    monkeypatch.setattr(checkpointer, "list_checkpoints", not_to_be_read)
    live = LiveRun(tmp_path, policy="static", interactive=True, checkpoint_every=0).start()
    assert f"the checkpoints in {live.run.directory} cannot be listed: Permission denied" in wait_for_fault(live)
    live.abandon()


def test_fault_after_restore_saves_no_undone_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, faults = Env.train_epoch, [(1, 1, 2), (1, 0, 2)]

    def broken(env: Env, step: int) -> Tensor:
        if faults and (env.index, env.key.round, step) == faults[0]:
            faults.pop(0)
            out_of_memory()
        return train(env, step)

    monkeypatch.setattr(Env, "train_epoch", broken)
    live = LiveRun(tmp_path, policy="static", interactive=True, checkpoint_every=0).start_paused(1)
    live.control.put(RequestKind.CHECKPOINT, "test")
    early = Path(live.wait_for(ev.CheckpointSaved).path)
    live.control.put(RequestKind.RESUME, "test")
    wait_for_fault(live)
    live.control.put(RequestKind.RESTORE, "test", str(early))
    wait_for_fault(live)
    assert list_checkpoints(live.run.directory) == [early]
    live.abandon()


def test_unattended_run_waits_at_its_end_until_all_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RETRY_INTERVAL_S", 0.02)
    write, write_events, failures = checkpointer.write_checkpoint, os.write, [no_room] * 2

    def late(directory: Path, checkpoint: Checkpoint) -> int:
        if failures:
            failures.pop()()
        monkeypatch.setattr(segments.os, "write", no_room)  # the events cannot be written either, at first
        return write(directory, checkpoint)

    monkeypatch.setattr(checkpointer, "write_checkpoint", late)
    live = LiveRun(tmp_path, policy="static", rounds=1, steps=1, checkpoint_every=0).start()
    assert "the run tries again and ends when it is written" in live.wait_for(ev.Logged).text
    assert live.wait_for(ev.Paused).cause == "recording"
    monkeypatch.setattr(segments.os, "write", write_events)
    assert live.finish().status == "done"
    assert live.failure is None
    assert recorded(live.run.directory)[-1] == live.events[-1]


def test_unattended_run_that_waits_at_its_end_ends_on_stop_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_checkpoints(monkeypatch).set()
    live = LiveRun(tmp_path, policy="static", rounds=1, steps=1, checkpoint_every=0).start()
    live.wait_for(ev.Logged)
    live.control.put(RequestKind.PAUSE, "test")
    assert "the run ends once they are saved" in str(live.wait_for(ev.ControlRequested).ignored)
    live.control.put(RequestKind.STOP, "test")
    assert live.wait_for(ev.ControlRequested).ignored is None
    assert live.finish().status == "failed"
    assert "No space left on device" in str(live.failure)


def test_scheduled_checkpoint_waits_for_the_events_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill, a resume from it would leave a gap in the recording."""
    monkeypatch.setattr(recorder, "RETRY_INTERVAL_S", 0.02)
    live = LiveRun(tmp_path, policy="static", steps=1, rounds=2, checkpoint_every=1).start_paused(1)
    write_events = os.write
    monkeypatch.setattr(segments.os, "write", no_room)
    live.control.put(RequestKind.STEP, "test")
    while live.wait_for(ev.Paused).cause != "recording":
        assert list_checkpoints(live.run.directory) == []
    assert list_checkpoints(live.run.directory) == []
    monkeypatch.setattr(segments.os, "write", write_events)
    assert live.wait_for(ev.CheckpointSaved).origin == "schedule"
    live.control.put(RequestKind.RESUME, "test")
    assert live.finish().status == "done"


def test_failed_run_also_reports_unrecorded_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RETRY_INTERVAL_S", 0.02)
    live = LiveRun(tmp_path, policy="static").start_paused(1)
    monkeypatch.setattr(segments.os, "write", no_room)
    monkeypatch.setattr(checkpointer, "write_checkpoint", no_room)
    live.control.put(RequestKind.STOP, "signal")
    assert live.finish().status == "failed"
    assert live.failure is not None
    assert f"the checkpoint cannot be written to {live.run.directory}: No space left on device; " in live.failure
    assert re.search(r"cannot record to .*: No space left on device; the last \d+ events are lost$", live.failure)


def test_unattended_run_gives_up_when_it_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RETRY_INTERVAL_S", 0.02)
    live = LiveRun(tmp_path, policy="static", patience_minutes=1 / 600, rounds=100).start()
    live.wait_for(ev.EnvStepped)
    monkeypatch.setattr(segments.os, "write", no_room)
    assert live.finish().status == "failed"
    assert live.failure is not None
    assert "the run waited for 0.00166667 minutes (--patience-minutes)" in live.failure
    assert re.search(r"cannot record to .*: No space left on device; the last \d+ events are lost$", live.failure)
    assert list_checkpoints(live.run.directory)[-1].name in {str(Path(c.path).name) for c in live.state.checkpoints}
