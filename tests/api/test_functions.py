"""`esper.train` and `esper.check` as a Python session uses them."""

from __future__ import annotations

import random
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import esper
from esper.common.system.process import RankInfo
from esper.recordings import events as ev
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.files.recorder import RecordingError
from esper.recordings.files.segments import ReadError
from esper.recordings.state import state
from esper.training.engine.thread import EngineThread
from esper.training.envs.env import Env
from esper.training.lanes import devices
from esper.training.lanes.pool import EnvPool
from esper.training.lanes.printed_lines import PrintedLines
from tests.networks.tasks.models import task
from tests.runs import recorded

TASK = task()
"""A task made in the session: worker processes cannot import it."""


def broken(*_: object, **__: object) -> None:
    raise ArithmeticError("broken")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {"policy": "static", "envs": 2, "steps": 1, "rounds": 1, "telemetry_dir": str(tmp_path / "telemetry")}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"devices": ("cuda:99",)}, esper.ConfigError),
        ({"training": {"betas": 0.5}}, esper.ConfigError),
        ({"policy": "ppo", "init_policy": "nowhere"}, ReadError),
        ({"policy": "ppo", "init_policy": "pretrained", "ppo": {"hidden": 8}}, CheckpointError),
        ({"telemetry_dir": "/dev/null"}, RecordingError),
    ],
)
def test_setup_error_keeps_its_type(settings: dict[str, Any], wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        esper.train(TASK, **{**settings, **wrong})
    assert type(raised.value) is error


def test_unknown_setting_is_refused_with_the_nearest(settings: dict[str, Any]) -> None:
    with pytest.raises(esper.ConfigError, match="did you mean rounds"):
        esper.train(TASK, **settings, ronds=1)


@pytest.mark.parametrize("function", [esper.check, esper.train])
def test_traceback_of_a_fault_of_the_user_is_short_and_names_the_line(
    function: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    options = settings if function is esper.train else {}
    with pytest.raises(esper.TaskError) as raised:
        function(task(loss=broken), **options)
    line = broken.__code__.co_firstlineno + 1
    assert str(raised.value) == f"loss of task own: ArithmeticError: broken ({__file__}, line {line})"
    printed = "".join(traceback.format_exception(raised.value))
    assert printed.count("Traceback (most recent call last)") == 1
    assert len(raised.traceback) == 2  # this line, and one of the package
    assert isinstance(raised.value.__context__, ArithmeticError)  # for a debugger


@pytest.mark.parametrize("function", [esper.check, esper.train, esper.grow])
def test_object_that_is_no_task_is_refused(function: Any) -> None:
    with pytest.raises(esper.TaskError, match="or its name or reference; got a dict"):
        function({})


@pytest.mark.parametrize(
    "wrong", [{"rounds": 2}, {"policy": "ppo"}, {"patience": 0}, {"minutes": -1}, {"objective": "retrun"}]
)
def test_growth_refuses_settings_that_it_would_not_follow(settings: dict[str, Any], wrong: dict[str, Any]) -> None:
    del settings["rounds"]
    with pytest.raises(esper.ConfigError, match=f"--{next(iter(wrong))} .*is not"):
        esper.grow(TASK, **{**settings, **wrong})


def test_growth_under_torchrun_is_refused(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RankInfo, "from_environment", lambda: RankInfo(0, 2, 0, 2))
    with pytest.raises(esper.ConfigError, match="cannot be used under torchrun; start the command `esper"):
        esper.grow(TASK, trials=1, telemetry_dir=settings["telemetry_dir"])


def test_task_that_cannot_be_grown_raises_task_error(settings: dict[str, Any]) -> None:
    with pytest.raises(esper.TaskError, match="the model has no submodule '9'"):
        esper.train(replace(TASK, slots={"body": "9"}), **settings)


@pytest.mark.parametrize("function", ["check", "train", "grow"])
@pytest.mark.parametrize("fails", [False, True])
def test_random_generators_of_the_session_continue(
    function: str, fails: bool, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a notebook would draw the same numbers after each call."""

    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    def seed() -> None:
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)

    call = {
        "check": lambda: esper.check(TASK),
        "train": lambda: esper.train(TASK, **settings),
        "grow": lambda: esper.grow(TASK, trials=1, **{name: settings[name] for name in settings if name != "rounds"}),
    }[function]
    seed()
    expected = draw()
    seed()
    if fails:
        monkeypatch.setattr(Env, "validate", broken)
        with pytest.raises((ArithmeticError, esper.RunFailedError)):
            call()
    else:
        call()
    assert draw() == expected


@pytest.mark.parametrize(("trained_task", "lanes"), [(TASK, 1), ("digits_impaired", 2), ("digits_impaired+digits", 2)])
def test_only_a_task_of_the_session_is_limited_to_one_lane(
    trained_task: esper.Task | str, lanes: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tasks can be imported by worker processes, and use all cores."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "_device_counts", lambda: {"cuda": 0, "cpu": 2})
    monkeypatch.setattr(EnvPool, "_start_workers", lambda *_: None)  # both lanes train in this process
    trained = esper.train(trained_task, **settings)
    (started,) = (event for event in recorded(trained.directory) if isinstance(event, ev.RunStarted))
    assert len(set(started.lanes)) == lanes


def test_report_shows_in_a_notebook_what_print_shows() -> None:
    report = esper.check(TASK)
    assert repr(report) == str(report)
    assert unescape(report._repr_html_()) == f"<pre>{report}</pre>"


def test_report_has_the_memory_of_outputs_that_a_score_of_a_split_keeps() -> None:
    assert esper.check(TASK).output_bytes == 0
    ranked = esper.check(task(score=esper.over_split(lambda output, y: (output.argmax(1) == y).float().mean())))
    x, _ = TASK.data(None).validation
    classes = TASK.model()(x).shape[1]
    validated, trained = len(x) * (1 + len(TASK.slots)), len(TASK.data(None).train[0])
    assert ranked.output_bytes == 4 * classes * max(validated, trained)
    assert "outputs that each env keeps for a score of a whole split" in str(ranked)


def test_trained_run_shows_its_recording(settings: dict[str, Any]) -> None:
    trained = esper.train(TASK, **settings)
    read = trained.read()
    assert [event.outcome for event in read.events(ev.RunEnded)] == [trained.status]
    assert read.curves()[f"final {read.summary.score_name}/median"].values == [trained.score]
    assert str(trained) == str(read)
    assert trained._repr_html_() == read._repr_html_()


def test_trained_run_counts_all_rounds(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The state keeps the scores of the last rounds only."""
    monkeypatch.setattr(state, "SERIES_POINTS", 2)
    assert esper.train(TASK, **{**settings, "rounds": 3}).rounds == 3


def test_own_settings_of_a_task_are_no_changed_settings(settings: dict[str, Any]) -> None:
    """The recording has the settings of the task filled in, and its slots in the order of the forward pass."""
    own = task(slots={"later": "3", "sooner": "1"}, samples_per_epoch=48)
    shown = str(esper.train(own, **settings, training={"batch_size": 8}))
    changed = [line.removeprefix("configuration").strip() for line in shown.splitlines() if " (default: " in line]
    assert [line for line in changed if line.startswith(("training.", "slots"))] == [
        "training.batch-size = 8 (default: 16)"
    ]
    shown = str(esper.train(own, **settings, slots=("sooner",)))
    assert "slots = sooner (default: sooner later)" in shown


def test_task_of_the_session_with_the_name_of_a_built_in_one_is_refused(settings: dict[str, Any]) -> None:
    """Worker processes and resumed runs would train the built-in task in its place."""
    with pytest.raises(esper.TaskError, match="the name 'digits' is that of a built-in task; choose another name"):
        esper.train(replace(TASK, name="digits"), **settings)


def test_progress_is_printed_from_another_thread_and_not_logged(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine thread keeps the lines of other threads than the main one for the log of the run."""
    start, enter, replaced = EngineThread.start, PrintedLines.__enter__, threading.Event()

    def enter_and_report(lines: PrintedLines) -> PrintedLines:
        enter(lines)
        replaced.set()
        return lines

    def start_and_wait(engine: EngineThread) -> None:
        start(engine)
        assert replaced.wait(60)

    monkeypatch.setattr(PrintedLines, "__enter__", enter_and_report)
    monkeypatch.setattr(EngineThread, "start", start_and_wait)
    with ThreadPoolExecutor(1) as executor:
        trained = executor.submit(esper.train, TASK, **settings).result()
    assert "round 1/1" in capsys.readouterr().out
    assert not [event for event in recorded(trained.directory) if isinstance(event, ev.Logged)]
