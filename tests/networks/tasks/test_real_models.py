"""Real models, unmodified: each trains, writes a checkpoint, resumes to the bit, and is replayed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import TENSORS_FILE
from tests.runs import only, recorded

ROOT = Path(__file__).parents[3]
MODULE = "tests.networks.tasks.real_models"
MODELS = [
    "squeezenet",
    "resnet18",
    "mobilenet",
    "vit",
    "transformer",
    "lstm",
    "timm_resnet",
    "gpt2",
    "frozen",
    "text_cnn",
]
NEEDS = {"timm_resnet": "timm", "gpt2": "transformers"}
GPT = str(ROOT / "examples" / "small_gpt.py")

pytestmark = pytest.mark.slow


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(only(directory))[-1] / TENSORS_FILE)


@pytest.mark.parametrize("model", MODELS)
def test_model_trains_resumes_to_the_bit_and_is_replayed(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (package := NEEDS.get(model)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (group `models`)")
    task = ("--task", f"{MODULE}:{model}", "--devices", "cpu:0")
    short = ("--no-tui", "--envs", "2", "--steps", "6", "--policy", "full", *task)
    assert main([*short, "--rounds", "2", "--checkpoint-every", "1", "--telemetry-dir", str(tmp_path)]) == EXIT_OK
    run = only(tmp_path)
    uninterrupted = tensors(tmp_path)
    assert main(["--no-tui", "--resume", str(list_checkpoints(run)[0]), *task]) == EXIT_OK
    resumed = tensors(tmp_path)
    assert resumed.keys() == uninterrupted.keys()
    assert all(torch.equal(value, uninterrupted[name]) for name, value in resumed.items())
    steps = [event for event in recorded(run) if isinstance(event, ev.EnvStepped)]
    assert len(steps) == 2 * 2 * 6
    assert any(slot.dependence is not None for step in steps for slot in step.slots)
    capsys.readouterr()
    assert main(["replay", str(run), "--no-tui"]) == EXIT_OK
    assert "12 of 12 steps, round 2 of 2" in capsys.readouterr().out


def test_killed_run_of_an_own_task_resumes_to_the_bit(tmp_path: Path) -> None:
    """`kill -9` after the first checkpoint, then `--resume`, equals a run that was never killed."""
    own = ("--task", GPT, "--devices", "cpu:0", "cpu:1", "--training.samples-per-epoch", "64")
    short = ("--no-tui", "--envs", "2", "--steps", "5", "--policy", "random", "--checkpoint-every", "1", *own)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "esper", *short, "--rounds", "3", "--telemetry-dir", str(killed)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while not (written := list(killed.glob("*/checkpoints/round-?????-step-????"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    assert written, "the run wrote no checkpoint within 120 s"
    assert main(["--no-tui", "--resume", str(only(killed)), "--rounds", "3", *own]) == EXIT_OK
    assert main([*short, "--rounds", "3", "--telemetry-dir", str(whole)]) == EXIT_OK
    resumed, uninterrupted = tensors(killed), tensors(whole)
    assert resumed.keys() == uninterrupted.keys()
    assert all(torch.equal(value, uninterrupted[name]) for name, value in resumed.items())
