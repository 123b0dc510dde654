from __future__ import annotations

from pathlib import Path

import pytest

from esper.cli.main import main
from esper.common.configuration.config import Config
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import checkpoint_path
from esper.recordings.files.notes import read_notes
from esper.recordings.files.recorder import Recorder, write_manifest
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.history.history import open_history
from esper.training.checkpoint.files import write_checkpoint
from tests.factory import example_run
from tests.faults.programs import example_checkpoint


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return a run that was killed after its last checkpoint."""
    return make_killed_run(tmp_path, Config().rounds)


def make_killed_run(tmp_path: Path, rounds: int, *, reason: str | None = None) -> Path:
    """Return a run whose last event, its end, was not recorded, with a checkpoint after so many rounds.

    Args:
        reason: Reason of a failure that ended the run; None: it was killed.
    """
    run = tmp_path / "digits-20260101-000000"
    recorder = Recorder(RunDirectory.make(run))
    write_manifest(RunDirectory.make(run), {"run": run.name, "config": {}, "versions": {}})
    for event in example_run(2, 2, 6)[:-1]:
        recorder.put(event)
    if reason:
        recorder.put(ev.RunEnded(seq=len(example_run(2, 2, 6)), time=0.0, outcome="failed", reason=reason))
    recorder.close()
    write_checkpoint(checkpoint_path(run, rounds, 1), example_checkpoint(rounds))
    return run


@pytest.mark.parametrize("reason", [None, "the checkpoint cannot be written: Input/output error"])
def test_resume_closes_a_complete_run_that_was_killed_or_failed(
    reason: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = make_killed_run(tmp_path, Config().rounds, reason=reason)
    assert main(["--no-tui", "--resume", str(killed), "--tag", "x"]) == 0
    assert read_notes(killed).tags == ("x",)
    assert f"{killed.name} is complete: all of its rounds were done before it ended" in capsys.readouterr().out
    history = open_history(killed)
    assert history.notices == []
    assert history.length == len(example_run(2, 2, 6)) + bool(reason)
    assert history.state_at(history.length).status == "done"

    assert main(["--no-tui", "--resume", str(killed)]) == 2
    assert "has finished all of its rounds (70);" in capsys.readouterr().err
    assert open_history(killed).length == history.length


def test_fewer_rounds_than_are_done_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_killed_run(tmp_path, rounds=2)
    recorded = open_history(run).length
    for rounds in ("1", "2"):
        assert main(["--no-tui", "--resume", str(run), "--rounds", rounds]) == 2
        assert "has done 2 of its 70 rounds; --rounds must be above 2" in capsys.readouterr().err
    assert open_history(run).length == recorded


def test_live_run_is_not_closed(
    killed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("esper.recordings.files.run_lock.LOCK_TIMEOUT_S", 0)
    lock = RunLock(RunDirectory(killed))
    assert main(["--no-tui", "--resume", str(killed)]) == 2
    assert "is being trained by process" in capsys.readouterr().err
    lock.release()
    assert main(["--no-tui", "--resume", str(killed)]) == 0
