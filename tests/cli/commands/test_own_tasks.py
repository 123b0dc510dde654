"""A task file through the real command line: train, resume, evaluate, replay, and the refusals."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import esper
from esper.cli.main import main
from esper.cli.options import EXIT_OK, EXIT_USAGE
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import TENSORS_FILE, read_manifest
from tests.runs import computed, only_run, recorded

TASK = """
import torch
from torch import nn

import esper
from shared_layers import hidden


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = hidden()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        if self.training:
            print("training on", len(x), "samples")
        return self.head(self.body(x))


def data(directory):
    draw = torch.Generator().manual_seed(0)

    def split():
        x = torch.randn(48, 6, generator=draw)
        return x, x[:, :3].argmax(1)

    return esper.Splits(train=split(), validation=split(), test=split())


def recall(output, targets):
    return (output.argmax(1) == targets).float()


task = esper.Task(
    name="peaks", model=Model, slots={"body": "body.2"}, data=data, score=recall, score_name="recall",
    metrics={"margin": lambda output, targets: output.amax(1)},
    optimizer=esper.SGD(0.05), seed_optimizer=esper.AdamW(0.01), batch_size=24,
)
"""
LAYERS = """
from torch import nn


def hidden():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.25), nn.ReLU())
"""
SHORT = ("--no-tui", "--envs", "2", "--steps", "4", "--policy", "random")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a task file and a module beside it, which is the working directory."""
    (tmp_path / "own_peaks.py").write_text(TASK)
    (tmp_path / "shared_layers.py").write_text(LAYERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    forget()


def forget() -> None:
    """Remove the imported modules, as in a new process."""
    for name in ("own_peaks", "shared_layers"):
        sys.modules.pop(name, None)


def run(*arguments: str) -> int:
    forget()
    return main([*arguments])


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(only_run(directory))[-1] / TENSORS_FILE)


def test_own_task_trains_and_its_metrics_are_shown_and_exported(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*SHORT, "--task", "own_peaks.py", "--rounds", "1", "--devices", "cpu:0") == EXIT_OK
    events = recorded(only_run(directory))
    started = next(event for event in events if isinstance(event, ev.RunStarted))
    assert (started.task, started.slot_names, started.score_name) == ("peaks", ["body"], "recall")
    assert started.chance_loss == pytest.approx(1.0986, abs=0.05)
    steps = [event for event in events if isinstance(event, ev.EnvStepped)]
    assert all(set(step.metrics) == {"margin"} for step in steps)
    manifest = read_manifest(list_checkpoints(only_run(directory))[-1])
    assert manifest.config["task"] == "peaks"
    assert manifest.origin is not None
    assert manifest.origin.reference == "own_peaks.py"
    assert set(manifest.origin.digests) == {"own_peaks.py", "shared_layers.py"}
    printed = [event.text for event in events if isinstance(event, ev.Logged)]
    assert printed.count("training on 24 samples") == 2 * 4 * 2
    last = sorted(step.metrics["margin"] for step in steps[-2:])
    capsys.readouterr()
    assert run("show", "last", "--json") == EXIT_OK
    low, _, middle, _, high = json.loads(capsys.readouterr().out)["metrics"]["margin"]
    assert [low, high] == last
    assert middle == pytest.approx(sum(last) / 2)
    assert run("show", "last") == EXIT_OK
    assert f"median {middle:.4g} in the last finished round, {low:.4g} to {high:.4g}" in capsys.readouterr().out
    assert run("export", "last", "--to", "csv", "--out", "tables") == EXIT_OK
    with (directory / "tables" / "Metric.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["metric"] for row in rows} == {"margin"}
    assert [float(row["value"]) for row in rows] == [step.metrics["margin"] for step in steps]
    assert run("export", "last", "--to", "parquet", "--out", "parquet") == EXIT_OK
    table = import_module("pyarrow.parquet").read_table(directory / "parquet" / "Metric.parquet")
    assert table["value"].to_pylist() == [step.metrics["margin"] for step in steps]


def test_resumed_run_equals_an_uninterrupted_one(directory: Path) -> None:
    own = ("--task", "own_peaks.py", "--devices", "cpu:0")
    assert run(*SHORT, *own, "--rounds", "1") == EXIT_OK
    assert run("--no-tui", "--resume", "last", *own, "--rounds", "2") == EXIT_OK
    resumed = tensors(directory)
    whole = directory / "whole"
    whole.mkdir()
    assert run(*SHORT, *own, "--rounds", "2", "--telemetry-dir", str(whole / "telemetry")) == EXIT_OK
    uninterrupted = tensors(whole)
    assert resumed.keys() == uninterrupted.keys()
    assert all(torch.equal(value, uninterrupted[name]) for name, value in resumed.items())


@pytest.mark.slow
def test_two_lanes_equal_one_lane(directory: Path) -> None:
    """Dropout and prints included: the second lane is another process, which imports the file itself."""
    found = []
    for devices in (("cpu:0",), ("cpu:0", "cpu:1")):
        place = directory / "-".join(devices).replace(":", "")
        place.mkdir()
        options = ("--task", "own_peaks.py", "--rounds", "1", "--telemetry-dir", str(place / "telemetry"))
        assert run(*SHORT, *options, "--devices", *devices) == EXIT_OK
        found.append(tensors(place))
        printed = [event.text for event in recorded(only_run(place)) if isinstance(event, ev.Logged)]
        assert printed.count("training on 24 samples") == 2 * 4 * 2
    one, two = found
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_nothing_is_imported_that_is_not_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SHORT, "--task", "own_peaks.py", "--rounds", "1", "--devices", "cpu:0") == EXIT_OK
    (directory / "own_peaks.py").write_text("raise AssertionError('imported')\n")
    capsys.readouterr()
    for command in (["runs"], ["show", "last"], ["replay", "last", "--no-tui"], ["checkpoints", "last"]):
        assert run(*command) == EXIT_OK, command
    for command in (["--no-tui", "--resume", "last"], ["evaluate", "--checkpoint", "last"]):
        assert run(*command) == EXIT_USAGE
        text = capsys.readouterr().err
        assert "trains the task peaks of own_peaks.py; name it again: --task own_peaks.py" in text
    assert run("whatif", "last") == EXIT_USAGE
    assert "the task peaks of this run is not built in; name it with --task FILE.py" in capsys.readouterr().err


def test_changed_source_is_refused_unless_accepted(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--task", "own_peaks.py", "--devices", "cpu:0")
    assert run(*SHORT, *own, "--rounds", "1") == EXIT_OK
    (directory / "shared_layers.py").write_text(LAYERS.replace("0.25", "0.5"))
    capsys.readouterr()
    resume = ("--no-tui", "--resume", "last", *own, "--rounds", "2")
    assert run(*resume) == EXIT_USAGE
    assert "differs from that of the checkpoint: shared_layers.py changed" in capsys.readouterr().err
    assert run(*resume, "--accept-changed-task") == EXIT_OK
    assert run(*SHORT[:1], "--resume", "last", "--task", "digits", "--rounds", "3") == EXIT_USAGE


def test_commands_keep_standard_output_for_their_results(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--task", "own_peaks.py")
    assert run(*SHORT, *own, "--rounds", "1", "--devices", "cpu:0") == EXIT_OK
    capsys.readouterr()
    options = ("--checkpoint", "last", "--episodes", "2", "--policies", "static", "--devices", "cpu:0", "--json")
    assert run("evaluate", *options, *own) == EXIT_OK
    output = capsys.readouterr()
    assert json.loads(output.out)["policies"][0]["policy"] == "static"
    assert "training on 24 samples" in output.err
    assert run("whatif", "last", "--devices", "cpu:0", "--json", *own) == EXIT_OK
    output = capsys.readouterr()
    assert json.loads(output.out)["exact"]
    assert "training on 24 samples" in output.err


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("return esper.Splits(", "return list("), "data of task peaks"),
        (("import torch\n", "import torch\n1 / 0\n"), "ZeroDivisionError"),
    ],
)
def test_faults_of_the_users_code_end_with_one_sentence(
    directory: Path, change: tuple[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "own_peaks.py").write_text(TASK.replace(*change, 1))
    assert run(*SHORT, "--task", "own_peaks.py", "--devices", "cpu:0") == EXIT_USAGE
    text = capsys.readouterr().err
    assert sentence in text
    assert "Traceback" not in text
    assert not (directory / "telemetry").exists()


def test_check_reports_slots_memory_and_time(directory: Path) -> None:
    text = str(esper.check("own_peaks.py"))
    assert "slot body: body.2, layout BC, 8 channels; blueprints: norm, linear_lowrank, mlp" in text
    assert "83 parameters, 83 of them trained" in text
    assert "s per epoch" in text


FAMILY = """
import torch
from torch import nn

import esper


def host(width):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


def data(directory):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(96, 6, generator=draw)
    split = (x, x[:, :3].argmax(1))
    return esper.Splits(train=split, validation=split, test=split)


def keep(splits, samples, generator):
    chosen = torch.randperm(len(splits.train[0]), generator=generator)[:samples]
    x, y = splits.train
    return esper.Splits(train=(x[chosen], y[chosen]), validation=splits.validation, test=splits.test)


def narrow():
    return host(4)


def wide():
    return host(16)


def structure(name, model):
    return esper.Task(
        name=name, model=model, slots={"body": "1"}, data=data,
        optimizer=esper.SGD(0.05), seed_optimizer=esper.SGD(0.1), batch_size=24,
    )


task = esper.Family(
    "sizes",
    structures=[structure("narrow", narrow), structure("wide", wide)],
    settings={"rent": esper.Setting([0.001, 0.01]), "samples": esper.Setting([96, 48], data=keep)},
)
"""


def test_own_family_trains_and_resumes(directory: Path) -> None:
    (directory / "own_peaks.py").write_text(FAMILY)
    family = ("--task", "own_peaks.py", "--devices", "cpu:0")
    first = (*SHORT, *family, "--envs", "4", "--ppo.envs-per-host", "1", "--rounds")
    assert run(*first, "3", "--telemetry-dir", "whole") == EXIT_OK
    assert run(*first, "1", "--telemetry-dir", "parts") == EXIT_OK
    resumed = next((directory / "parts").glob("sizes-*"))
    assert run("--no-tui", "--resume", str(resumed), *family, "--rounds", "3") == EXIT_OK
    whole = next((directory / "whole").glob("sizes-*"))
    assert computed(recorded(resumed)) == computed(recorded(whole))
    started = [event for event in recorded(whole) if isinstance(event, ev.EpisodeStarted)]
    assert {event.structure for event in started} == {"narrow", "wide"}
    assert {tuple(event.settings) for event in started} == {("rent", "samples")}
    assert {event.settings["rent"] for event in started} == {0.001, 0.01}
