"""Runs with scores of a whole split: lanes, resume, simulation, growth, harvest, evaluation and every printed table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.recordings import events as ev
from tests.runs import computed, only, recorded, task_reference

TASK = """
import torch
from torch import nn

import esper


def data(directory):
    x = torch.randn(180, 6, generator=torch.Generator().manual_seed(0))
    parts = [(part, 3 * part[:, 0] + part[:, 1]) for part in x.split(60)]
    return esper.Splits(train=parts[0], validation=parts[1], test=parts[2])


def classes(directory):
    splits = data(directory)
    return esper.Splits(**{name: (x, (y > 0).long()) for name, (x, y) in vars(splits).items()})


def rmse(output, y):
    return (output.squeeze(1) - y).pow(2).mean().sqrt()


def auc(output, y):
    margin = output[:, 1] - output[:, 0]
    return (margin[y == 1][:, None] > margin[y == 0][None]).float().mean()


def perplexity(output, y):
    return nn.functional.cross_entropy(output, y).exp()


def task(name, outputs, data, score, **options):
    return esper.Task(
        name=name, score=score, score_name=name, data=data, slots={"hidden": "1"}, batch_size=20, validation_batch=25,
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs)),
        optimizer=esper.SGD(0.02), seed_optimizer=esper.SGD(0.02), **options,
    )


low = esper.over_split(rmse, best="low", range=(0, None))
error = task("rmse", 1, data, low, loss=lambda output, y: (output.squeeze(1) - y).pow(2))
ranking = task("auc", 2, classes, esper.over_split(auc))
surprise = task(
    "perplexity", 2, classes, esper.over_split(perplexity, best="low", range=(1, None)),
    metrics={"auc": esper.over_split(auc)},
)
"""
SIZE = ("--envs", "2", "--steps", "5", "--policy", "periodic", "--no-tui")


def run(*arguments: str, task: str = "own", to: str = "telemetry") -> int:
    return main([*arguments, "--task", task_reference(Path.cwd(), task), "--telemetry-dir", to])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.mark.slow
@pytest.mark.parametrize("task", ["error", "ranking", "surprise"])
def test_run_is_resumed_simulated_and_harvested(task: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lanes = ("--devices", "cpu:0", "cpu:1")
    assert run(*SIZE, "--rounds", "2", *lanes, to="whole", task=task) == EXIT_OK
    assert run(*SIZE, "--rounds", "1", "--devices", "cpu:0", task=task) == EXIT_OK
    assert run("--no-tui", "--resume", "last", "--rounds", "2", *lanes, task=task) == EXIT_OK
    whole, resumed = only(directory / "whole"), only(directory / "telemetry")
    assert computed(recorded(resumed)) == computed(recorded(whole))
    said(capsys)
    assert run("whatif", "last", "--without", "step:1", "--devices", "cpu:0", task=task) == EXIT_OK
    assert "≈" not in said(capsys)  # the simulation of the unchanged episode equals the recording
    assert run("harvest", "last", "--to", "grown", task=task) == EXIT_OK
    structure = json.loads((directory / "grown" / "structure.json").read_text())
    assert structure["score_scale"].get("best", "high") == ("high" if task == "ranking" else "low")


def test_rmse_has_its_own_unit_and_direction_everywhere(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SIZE, "--rounds", "2", "--devices", "cpu:0", task="error") == EXIT_OK
    directory_of_run = only(directory / "telemetry")
    events = recorded(directory_of_run)
    ends = [event for event in events if isinstance(event, ev.EpisodeEnded)]
    steps = [event for event in events if isinstance(event, ev.EnvStepped)]
    for end in ends:
        scores = [step.score for step in steps if (step.env, step.round) == (end.env, end.round)]
        assert end.best_score == min(scores)
        assert end.score > 0
    gains = [slot.dependence for step in steps for slot in step.slots if slot.dependence is not None]
    errors = [slot.dependence_se for step in steps for slot in step.slots if slot.dependence is not None]
    assert gains
    assert set(errors) == {None}  # a score of a whole split has no value per sample
    for step in steps:  # the reward is the skill, 0 to 1
        assert -1 <= step.reward_parts["score"] <= 1
    said(capsys)
    for command in ("show", "runs"):
        assert main([command, *(["last"] if command == "show" else []), "--telemetry-dir", "telemetry"]) == EXIT_OK
        text = said(capsys)
        lines = [line for line in text.splitlines() if "rmse" in line]
        assert lines
        assert not [line for line in lines if "%" in line and "waits" not in line]
    best = min(end.best_score for end in ends)
    assert main(["show", "last", "--json", "--telemetry-dir", "telemetry"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out)["best"]["score"] == best


@pytest.mark.parametrize("objective", ["return", "score"])
def test_growth_prefers_a_smaller_rmse(objective: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--trials", "3", "--steps", "4", "--envs", "2", "--devices", "cpu:0", "--no-tui")
    assert run("grow", *size, "--objective", objective, task="error") == EXIT_OK
    events = recorded(only(directory / "telemetry"))
    measured = {
        event.candidate: event for event in events if isinstance(event, ev.CandidateMeasured)
    }  # the last of each
    trials = [event for event in events if isinstance(event, ev.TrialEnded) and event.fresh is not None]
    for event in measured.values():
        scores = [trial.score for trial in trials if trial.candidate == event.candidate and trial.score is not None]
        assert event.score.mean == pytest.approx(sum(scores) / len(scores), rel=1e-4)
        if event.score_gain is not None:  # positive: the RMSE is smaller than that of the bare host
            assert event.score_gain.mean == pytest.approx(
                measured[""].score.mean - event.score.mean, rel=1e-3, abs=1e-6
            )
    report = said(capsys)
    assert not [line for line in report.splitlines() if "rmse" in line and "%" in line]
