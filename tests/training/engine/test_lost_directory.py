"""The directory of a run is moved, replaced or deleted while the run trains."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import pytest

from esper.common.configuration.files import resolve_config
from esper.common.control import RequestKind, RequestQueue
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import find_checkpoint
from esper.recordings.files import recorder
from esper.recordings.files.notes import RunNotes
from esper.recordings.files.recorder import RecordingError
from esper.training.engine import run_files, setup, start_events
from esper.training.engine.run_kind import RunKind
from esper.training.engine.setup import set_up_run
from esper.training.engine.start_point import RunOptions, StartPoint
from tests.runs import LiveRun, only, recorded, stopped_run, tiny, wait_for_fault


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped_run(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "FLUSH_INTERVAL_S", 0.01)
    monkeypatch.setattr(recorder, "RETRY_INTERVAL_S", 0.02)


def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, interactive: bool, **options: Any) -> LiveRun:
    """Start a run that a relative path names and whose code changes the current directory. Wait for a checkpoint."""
    monkeypatch.chdir(tmp_path)
    live = LiveRun(Path("runs"), policy="static", interactive=interactive, rounds=5000, **options).start()
    monkeypatch.chdir("/")
    live.wait_for(ev.CheckpointSaved)
    return live


@pytest.mark.usefixtures("short_intervals")
@pytest.mark.parametrize(
    ("module", "moment", "resumes"),
    [
        (setup, "_read_saved", True),
        (run_files, "RunLock", False),
        (run_files, "update_notes", True),
        (run_files, "Recorder", True),
        (start_events, "write_manifest", True),
    ],
)
def test_directory_that_is_replaced_while_its_run_starts_is_noticed(
    module: ModuleType, moment: str, resumes: bool, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is replaced by a copy, which has all that set-up looks for."""
    telemetry = tmp_path / "telemetry"
    start = StartPoint(resolve_config(None, tiny(telemetry)))
    if resumes:
        run = Path(shutil.copytree(stopped, telemetry / stopped.name))
        start = StartPoint.at_checkpoint(start.config, find_checkpoint(run))
    original, files = getattr(module, moment), dict[Path, int]()

    def replace_first(*arguments: Any) -> Any:
        run = only(telemetry)
        run.rename(tmp_path / "away")
        shutil.copytree(tmp_path / "away", run)
        files.update(written_files(telemetry))
        return original(*arguments)

    monkeypatch.setattr(module, moment, replace_first)
    with pytest.raises(RecordingError, match="another directory is in its place"):
        set_up_run(start, RequestQueue(), SimpleQueue(), RunOptions(notes=RunNotes(name="x")), RunKind())
    assert written_files(telemetry) == files


def written_files(directory: Path) -> dict[Path, int]:
    """Return the times of the last change of everything in a directory."""
    return {path: path.stat().st_ctime_ns for path in directory.rglob("*")}


@pytest.mark.usefixtures("short_intervals")
def test_moved_or_replaced_directory_holds_the_run_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = endless(tmp_path, monkeypatch, interactive=True)
    directory, away = tmp_path / live.run.directory, tmp_path / "away"
    directory.rename(away)
    problem = f"cannot record to {live.run.directory}: the directory was moved or unmounted"
    assert wait_for_fault(live) == f"{problem}; the run resumes when it can be recorded again"
    assert (live.state.status, live.state.cause) == ("paused", "recording")
    shutil.copytree(away, directory)  # another directory with the same content
    before = sorted(directory.rglob("*"))
    live.control.put(RequestKind.CHECKPOINT, "test")
    while "the checkpoint cannot be written" not in (text := live.wait_for(ev.Logged).text):
        pass
    assert text.endswith(": another directory is in its place")
    assert sorted(directory.rglob("*")) == before
    shutil.rmtree(directory)
    away.rename(directory)
    assert live.wait_for(ev.Resumed).origin == "engine"
    live.control.put(RequestKind.STOP, "test")
    assert live.finish().status == "stopped"
    told = [(event.seq, type(event)) for event in live.events]
    assert [(event.seq, type(event)) for event in recorded(directory)] == told
    assert find_checkpoint(directory).name == Path(live.state.checkpoints[-1].path).name


@pytest.mark.usefixtures("short_intervals")
@pytest.mark.parametrize("interactive", [True, False])
@pytest.mark.parametrize("paused", [True, False])
def test_deleted_directory_ends_the_run_with_true_advice(
    interactive: bool, paused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = endless(tmp_path, monkeypatch, interactive=interactive)
    if paused:
        live.control.put(RequestKind.PAUSE, "test")
        live.wait_for(ev.Paused)
    while (tmp_path / "runs").exists():  # the run may write a file meanwhile
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    reason = f"cannot record to {live.run.directory}: the directory was deleted"
    if interactive:
        while live.state.cause != "lost":
            wait_for_fault(live)
        assert live.state.reason == reason
        live.control.put(RequestKind.RESUME, "test")
        while (refused := live.wait_for(ev.ControlRequested)).kind != "resume":
            pass
        assert refused.ignored == "the run directory was deleted, and nothing can be saved"
        live.control.put(RequestKind.STOP, "test")
    assert live.finish().status == "failed"
    assert live.failure == f"{reason}; its events and checkpoints are lost; start the run again"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("short_intervals")
def test_unattended_run_whose_directory_stays_away_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = endless(tmp_path, monkeypatch, interactive=False, patience_minutes=1 / 600)
    (tmp_path / "runs").rename(tmp_path / "away")
    assert live.finish().status == "failed"
    directory = live.run.directory
    expected = (
        r"the run waited for [\d.]+ minutes \(--patience-minutes\); put the directory back, then --resume "
        rf"{directory} continues at round \d+, step \d; cannot record to {directory}: the directory was moved or "
        r"unmounted; the last \d+ events are lost"
    )
    assert live.failure is not None
    assert re.fullmatch(expected, live.failure)
    assert [path.name for path in tmp_path.iterdir()] == ["away"]
