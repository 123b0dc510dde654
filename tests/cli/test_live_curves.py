"""`--tensorboard`: the curves of a live run, of its resumed part, and of a run whose disk is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.history import tensorboard
from tests.runs import only
from tests.terminals import run as run_program

accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
OPTIONS = ("--no-tui", "--envs", "2", "--steps", "2", "--training.samples-per-epoch", "64", "--devices", "cpu:0")


def scalars(run: Path, curve: str) -> list[int]:
    """Return the steps of the points of a curve."""
    found = accumulator.EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    return [point.step for point in found.Scalars(curve)]


def test_curves_of_a_live_run_and_its_continuation(tmp_path: Path) -> None:
    done = run_program(*OPTIONS, "--rounds", "2", "--tensorboard", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = only(tmp_path / "telemetry")
    assert scalars(run, "all envs/accuracy median") == [2, 4]
    assert scalars(run, "policy/kl") == [2, 4]
    done = run_program("--no-tui", "--resume", "last", "--rounds", "3", "--tensorboard", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert scalars(run, "all envs/accuracy median") == [2, 4, 6]


def test_missing_package_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: None)
    assert main([*OPTIONS, "--tensorboard"]) == 2
    assert "--tensorboard: tensorboard is not installed: pip install" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


FULL = """
import sys
from esper.history import tensorboard
def full(*_, **__):
    raise OSError(28, "No space left on device")
tensorboard.TensorboardWriter.__init__ = full
from esper.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_run_goes_on_without_curves(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, *OPTIONS, "--rounds", "1", "--tensorboard"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0
    assert "--tensorboard: the curves cannot be written: No space left on device" in done.stdout + done.stderr
