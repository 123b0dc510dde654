"""`--tensorboard`: the curves of a live run, of its resumed part, and of a run whose disk is full."""

from __future__ import annotations

import errno
import math
import sys
from collections import deque
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from esper.cli.live_curves import LiveCurves
from esper.cli.main import main
from esper.recordings import events as ev
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.history import tensorboard
from esper.recordings.state.state import Keyframe, Record
from tests.factory import example_run
from tests.recordings.files.recordings import fold
from tests.runs import only
from tests.terminals import run as run_program

if TYPE_CHECKING:
    from esper.training.engine.thread import EngineThread

accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
OPTIONS = ("--no-tui", "--envs", "2", "--steps", "2", "--training.samples-per-epoch", "64", "--devices", "cpu:0")


def scalars(run: Path, curve: str) -> list[int]:
    """Return the steps of the points of a curve."""
    found = accumulator.EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    return [point.step for point in found.Scalars(curve)]


@pytest.mark.slow
def test_curves_of_a_live_run_and_its_continuation(tmp_path: Path) -> None:
    done = run_program(*OPTIONS, "--rounds", "2", "--tensorboard", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = only(tmp_path / "telemetry")
    assert scalars(run, "final accuracy/median") == [2, 4]
    assert scalars(run, "KL/policy") == [2, 4]
    done = run_program("--no-tui", "--resume", "last", "--rounds", "3", "--tensorboard", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert scalars(run, "final accuracy/median") == [2, 4, 6]


class Engine:
    """The part of an engine thread that the curves use."""

    def __init__(self, directory: Path) -> None:
        self.run_directory = RunDirectory(directory)
        self.warnings: deque[str] = deque()
        self.records: SimpleQueue[Record] = SimpleQueue()

    def subscribe(self) -> SimpleQueue[Record]:
        return self.records


def test_curves_leave_out_what_a_restored_checkpoint_undoes(tmp_path: Path) -> None:
    run = example_run()
    third = next(i for i, event in enumerate(run) if isinstance(event, ev.PhaseTimed) and event.step == 3) + 1
    update = next(i for i, event in enumerate(run) if isinstance(event, ev.PolicyUpdated))
    rolled_back = ev.GovernorRolledBack(round=1, step=4, env=0, reason="the loss is NaN", value=math.nan)
    engine = Engine(tmp_path)

    with LiveCurves(cast("EngineThread", engine)):
        for record in (
            Keyframe.from_state(fold(run[:1])),
            *run[1:],  # to the end of the second round
            Keyframe.from_state(fold(run[:third])),
            rolled_back,
            *run[third:update],  # the episodes end
            Keyframe.from_state(fold(run[:third])),
            *run[third : update + 1],
        ):
            engine.records.put(record)

    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(point.step, point.value) for point in found.Scalars("rollbacks/sum")] == [(5, 0)]
    assert [point.step for point in found.Scalars("KL/policy")] == [5]
    assert engine.warnings == deque()


def test_missing_package_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main([*OPTIONS, "--tensorboard"]) == 2
    assert (
        "--tensorboard: tensorboard is not installed: run `uv sync --inexact --extra tensorboard`"
        in capsys.readouterr().err
    )
    assert list(tmp_path.iterdir()) == []


def test_run_goes_on_without_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tensorboard.TensorboardWriter, "__init__", full)
    assert main([*OPTIONS, "--rounds", "1", "--tensorboard"]) == 0
    printed = capsys.readouterr()  # the log of the run, or standard error if the run has ended already
    assert "--tensorboard: the curves cannot be written: No space left on device" in printed.out + printed.err
