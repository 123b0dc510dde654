"""Runs with optimizers, a schedule and no clipping of the user's own: workers, resume, simulation, growth, harvest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from esper.cli.main import main
from esper.cli.options import EXIT_OK, EXIT_USAGE
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import TENSORS_FILE
from tests.runs import computed, only, recorded, task_reference

TASK = """
import torch
from torch import nn

import esper


def data(directory):
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    parts = [(part, (part[:, 0] > 0).long()) for part in x.split(40)]
    return esper.Splits(train=parts[0], validation=parts[1], test=parts[2])


def rising(fraction):
    return 0.1 + fraction


def task(name, optimizer, schedule=rising):
    return esper.Task(
        name=name, model=lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), slots={"hidden": "1"},
        data=data, optimizer=optimizer, seed_optimizer=esper.Optimizer(torch.optim.Adagrad, lr=0.05),
        schedule=schedule, clip=None, batch_size=20,
    )


own = task("own", esper.Optimizer(torch.optim.RMSprop, lr=0.01, momentum=0.9, groups=[esper.no_decay]))
two_passes = task("two_passes", esper.Optimizer(torch.optim.LBFGS, lr=0.1))
negative = task("negative", esper.SGD(0.1), lambda fraction: 0.5 - fraction)
"""
SIZE = ("--envs", "2", "--steps", "4", "--policy", "periodic", "--no-tui")


def run(*arguments: str, task: str = "own", to: str = "telemetry") -> int:
    return main([*arguments, "--task", task_reference(Path.cwd(), task), "--telemetry-dir", to])


@pytest.mark.slow
def test_run_with_an_own_recipe_is_resumed_simulated_and_harvested(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lanes = ("--devices", "cpu:0", "cpu:1")
    assert run(*SIZE, "--rounds", "2", *lanes, to="whole") == EXIT_OK
    assert run(*SIZE, "--rounds", "1", "--devices", "cpu:0") == EXIT_OK
    assert run("--no-tui", "--resume", "last", "--rounds", "2", *lanes) == EXIT_OK
    whole, resumed = only(directory / "whole"), only(directory / "telemetry")
    assert computed(recorded(resumed)) == computed(recorded(whole))
    ends = [load_file(list_checkpoints(each)[-1] / TENSORS_FILE) for each in (resumed, whole)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    started, *_ = [event for event in recorded(whole) if isinstance(event, ev.RunStarted)]
    assert started.recipe == {
        "optimizer": "RMSprop(lr=0.01, momentum=0.9) with 2 groups of parameters",
        "seed_optimizer": "Adagrad(lr=0.05)",
        "schedule": "rising",
    }
    assert started.config["training"]["host-clip"] is None
    rates = [event.learning_rate for event in recorded(whole) if isinstance(event, ev.EnvStepped) and event.env == 0]
    assert rates[:4] == pytest.approx([0.01 * (0.1 + fraction) for fraction in (1 / 8, 3 / 8, 5 / 8, 7 / 8)])
    capsys.readouterr()

    assert run("whatif", "last", "--without", "step:1", "--devices", "cpu:0") == EXIT_OK
    said = capsys.readouterr()
    assert "≈" not in said.out  # the simulation of the unchanged episode equals the recording
    assert run("harvest", "last", "--to", "grown") == EXIT_OK
    assert "| optimizer of the training | `RMSprop(lr=0.01" in (directory / "grown" / "README.md").read_text()


def test_growth_uses_the_recipe(directory: Path) -> None:
    size = ("--trials", "2", "--steps", "3", "--envs", "2", "--devices", "cpu:0", "--no-tui")
    assert run("grow", *size) == EXIT_OK
    started, *_ = [event for event in recorded(only(directory / "telemetry")) if isinstance(event, ev.RunStarted)]
    assert started.recipe["schedule"] == "rising"


@pytest.mark.parametrize(
    ("task", "options", "problem"),
    [
        ("two_passes", (), "LBFGS needs a closure"),
        ("negative", (), "the factor at 0.625 must be a finite number of at least 0, not -0.125"),
        ("own", ("--training.momentum", "0.5"), "whose seed_optimizer is Adagrad, which has no momentum"),
    ],
)
def test_recipe_that_cannot_be_used_is_refused_before_the_run(
    task: str, options: tuple[str, ...], problem: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SIZE, "--devices", "cpu:0", *options, task=task) == EXIT_USAGE
    assert problem in capsys.readouterr().err
    assert not (directory / "telemetry").exists()
