"""`--resume auto`: which run a command continues, and where it starts."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esper.cli import start_point
from esper.cli.start_point import resolve_start
from esper.common.control import RequestKind
from esper.recordings.checkpoints.catalog import CHECKPOINTS_DIR, list_checkpoints
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.files import run_lock
from esper.recordings.files.notes import RunNotes, write_notes
from esper.recordings.files.recorder import RecordingError
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock, is_live, read_holder
from esper.training.engine.start_point import RunCompleteError, StartPoint
from tests.runs import LiveRun, computed, only, recorded, stopped_run, tiny


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The telemetry directory of a run that was stopped after a checkpoint."""
    return stopped_run(tmp_path_factory.mktemp("begun")).parent


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The telemetry directory of the same run, which is done."""
    directory = tmp_path_factory.mktemp("ended")
    LiveRun(directory).start().finish()
    return directory


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run."""
    return only(Path(shutil.copytree(begun, tmp_path / "telemetry")))


def start(
    telemetry_dir: Path, resume: str | None = "auto", *, name: str = "", restarted: bool = False, **options: object
) -> StartPoint:
    given: dict[str, Any] = {}
    for key, value in tiny(telemetry_dir, **options).items():  # as the command line gives tables
        given |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    return resolve_start(None, resume, given, RunNotes(name=name) if name else None, restarted=restarted)


def test_the_unfinished_run_of_the_same_settings_is_continued(run: Path) -> None:
    newest = list_checkpoints(run)[-1]
    assert start(run.parent).checkpoint == newest
    assert start(run.parent, devices=("cpu:0", "cpu:1"), keep=5).checkpoint == newest  # on another machine
    assert start(run.parent, None, restarted=True).checkpoint == newest
    assert start(run.parent, None).is_new
    assert start(run.parent, seed=5).is_new
    assert start(run.parent, name="other").is_new  # a command with a name does not take the run of another one


def test_a_named_run_is_looked_up_in_the_directory_of_the_option_or_the_file(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'telemetry-dir = "{run.parent}"')
    newest, option = list_checkpoints(run)[-1], {"telemetry_dir": str(run.parent)}
    for name in ("last", run.name):
        assert resolve_start(file, name, {}, None, restarted=False).checkpoint == newest
        assert resolve_start(None, name, option, None, restarted=False).checkpoint == newest


def test_configuration_of_a_resumed_run_is_read_from_a_pipe(run: Path) -> None:
    """A pipe can be read only once."""
    reading, writing = os.pipe()
    os.write(writing, f'telemetry-dir = "{run.parent}"\nrounds = 7'.encode())
    os.close(writing)
    found = resolve_start(Path(f"/dev/fd/{reading}"), "last", {}, None, restarted=False)
    os.close(reading)
    assert (found.checkpoint, found.config.rounds) == (list_checkpoints(run)[-1], 7)


def test_a_policy_is_that_of_the_checkpoint(ended: Path, tmp_path: Path) -> None:
    """`last` names the interrupted run itself, once it has a checkpoint."""
    telemetry = Path(shutil.copytree(ended, tmp_path / "telemetry"))
    new = start(telemetry, None, policy="last", rounds=1)
    first = LiveRun(telemetry, start=new).start_paused()
    first.control.put(RequestKind.STOP, "test")
    first.finish()
    again = start(telemetry, policy="last", rounds=1)
    assert again.checkpoint == list_checkpoints(first.run.directory)[-1]
    assert again.config.policy == new.config.policy


def test_the_run_of_the_name_is_continued(run: Path) -> None:
    write_notes(run, RunNotes(name="job 7"))
    assert start(run.parent, name="job 7", rounds=9).checkpoint == list_checkpoints(run)[-1]
    write_notes(run, RunNotes(name="job 7", archived=True))
    assert start(run.parent, name="job 7").is_new


def test_a_run_that_is_done_is_not_begun_again(ended: Path) -> None:
    run = only(ended)
    complete = f"{run} has finished all of its rounds (3); train more with --resume {run} --rounds N, N > 3; "
    complete += "without --resume, a new run starts"
    with pytest.raises(RunCompleteError, match=f"^{re.escape(complete)}$"):
        start(ended)
    with pytest.raises(RunCompleteError):
        start(ended, None, restarted=True)  # it ended while torchrun restarted its ranks
    assert start(ended, None).is_new
    assert start(ended, seed=5).is_new
    write_notes(run, RunNotes(name="job 7"))
    with pytest.raises(RunCompleteError):
        start(ended, name="job 7")
    assert start(ended, name="job 7", rounds=4).config.rounds == 4


def test_a_live_run_is_refused(run: Path) -> None:
    lock = RunLock(RunDirectory(run))
    with pytest.raises(RecordingError, match="is being trained by process"):
        start(run.parent)
    lock.release()


@pytest.mark.parametrize("is_named", [True, False])
def test_a_resumed_run_is_locked_from_the_decision_on(
    is_named: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch is loaded after it. Until the run trains, no second process may resume it."""
    monkeypatch.setattr(run_lock, "LOCK_TIMEOUT_S", 0.05)
    resume = str(run) if is_named else "auto"
    first = start(run.parent, resume)
    assert is_live(run)
    holder = read_holder(run)
    assert holder is not None
    assert holder.is_starting
    with pytest.raises(RecordingError, match="is being trained by process"):
        start(run.parent, resume)
    assert first.directory is not None
    live = LiveRun(run.parent, start=first)
    live.start().finish()
    assert read_holder(run) == msgspec.structs.replace(holder, is_starting=False)
    assert not is_live(run)


def test_a_refused_resume_leaves_the_run_unlocked(run: Path) -> None:
    with pytest.raises(CheckpointError, match="envs"):
        start(run.parent, str(run), envs=9)
    assert not is_live(run)


def test_a_run_without_a_checkpoint_starts_again_in_its_directory(run: Path, ended: Path) -> None:
    shutil.rmtree(run / CHECKPOINTS_DIR)
    again = start(run.parent)
    assert again.directory
    assert (again.checkpoint, again.directory.path) == (None, run)
    live = LiveRun(run.parent, start=again)
    live.start().finish()
    assert live.state.status == "done"
    assert only(run.parent) == run
    assert computed(recorded(run)) == computed(recorded(only(ended)))
    assert len(list(run.glob("events-*"))) == 2  # the events of the first start are kept
    with pytest.raises(RunCompleteError):
        start(run.parent, None, restarted=True)


def test_restarted_ranks_start_a_new_run_after_an_earlier_one_is_done(
    ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_point, "parent_start_time", lambda: time.time() + 1)  # torchrun began after that run
    assert start(ended, None, restarted=True).is_new
    assert start(ended, None, name="job 7", restarted=True).is_new
    with pytest.raises(RunCompleteError):
        start(ended, "auto", restarted=True)


def test_restarted_ranks_continue_from_the_newest_checkpoint_that_torchrun_has_written(
    ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = list_checkpoints(only(ended))

    def found(named: Path) -> Path | None:
        return start(ended, str(named), rounds=9, restarted=True).checkpoint

    newest = list_checkpoints(only(ended))[-1]
    assert found(first) == found(second) == newest
    assert found(first.with_name("round-00000-step-0001")) == newest  # it is removed by now
    assert start(ended, str(first), rounds=9).checkpoint == first
    monkeypatch.setattr(start_point, "parent_start_time", lambda: time.time() + 1)
    assert found(first) == first  # killed before it wrote one; later ones are of an earlier time
