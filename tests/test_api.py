"""`esper.train` and `esper.check` as a Python session uses them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import esper
from esper.checkpoint.manifest import CheckpointError
from esper.recording.recorder import RecordingError
from esper.recording.segments import ReadError


def data(_: Path | None) -> esper.Splits:
    x = torch.randn(48, 6)
    split = (x, x[:, :2].argmax(1))
    return esper.Splits(train=split, validation=split, test=split)


TASK = esper.Task(
    name="session",
    model=lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)),
    slots={"body": "1"},
    data=data,
    optimizer=esper.SGD(0.05),
    seed_optimizer=esper.SGD(0.05),
)
"""A task made in the session: worker processes cannot import it."""


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


def test_task_that_cannot_be_grown_raises_task_error(settings: dict[str, Any]) -> None:
    with pytest.raises(esper.TaskError, match="the model has no submodule '9'"):
        esper.train(replace(TASK, slots={"body": "9"}), **settings)
