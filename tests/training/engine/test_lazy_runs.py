"""Runs on data that are read when they are needed: the same bits as in memory, and faults in the user's data sets."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

import esper
from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import TENSORS_FILE, read_manifest
from esper.training.lanes import call_watch, lane
from tests.runs import LiveRun, computed, only, recorded, task_file, task_reference, wait_for_fault
from tests.training.engine.test_ranks import RankedRun, assert_alike

TASK = """
import dataclasses
import os
import pathlib
import time

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from torch.utils.data import Dataset, random_split
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import esper

HERE = pathlib.Path(__file__).parent
SIZES = {"train": 72, "validation": 40, "test": 24}


def tensors():
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (sum(SIZES.values()), 3, 8, 8), dtype=torch.uint8, generator=draw)
    y = (x[:, 0].float().mean((1, 2)) > 127).long()
    return dict(zip(SIZES, zip(x.split([*SIZES.values()]), y.split([*SIZES.values()]))))


def in_memory(directory):
    return esper.Splits(**tensors())


def mapped(directory):
    splits = {}
    for name, (x, y) in tensors().items():
        path = HERE / f"{name}.npy"
        if not path.exists():
            np.save(path, x.numpy())
        splits[name] = np.load(path, mmap_mode="r"), y
    return esper.Splits(**splits)


class Folder(Dataset):
    def __init__(self, directory, labels):
        self.pictures = ImageFolder(directory, v2.PILToTensor())
        self.labels = labels

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return self.pictures[index][0], self.labels[index]


def folder(directory):
    splits = {}
    for name, (x, y) in tensors().items():
        for index, picture in enumerate(x):
            path = HERE / name / "one_class" / f"{index:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            v2.functional.to_pil_image(picture).save(path)
        splits[name] = Folder(HERE / name, y)
    return esper.Splits(**splits)


class Arrow:
    def __init__(self, path):
        self.path, self.table = path, None

    def open(self):
        if self.table is None:
            self.table = pa.ipc.open_file(pa.memory_map(str(self.path))).read_all()
        return self.table

    def __len__(self):
        return len(self.open())

    def __getitems__(self, indices):
        rows = self.open().take(pa.array(indices)).to_pylist()
        return [(np.frombuffer(row["x"], np.uint8).reshape(3, 8, 8).copy(), row["y"]) for row in rows]


def arrow(directory):
    splits = {}
    for name, (x, y) in tensors().items():
        table = pa.table({"x": [picture.numpy().tobytes() for picture in x], "y": y.tolist()})
        with pa.ipc.new_file(str(HERE / f"{name}.arrow"), table.schema) as file:
            file.write_table(table)
        splits[name] = Arrow(HERE / f"{name}.arrow")
    return esper.Splits(**splits)


class Cropped(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y
        self.crop = v2.RandomCrop(8, padding=2)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.crop(self.x[index]) + np.random.randint(3, dtype=np.uint8), self.y[index]


def cropped(directory):
    splits = tensors()
    return esper.Splits(**{**splits, "train": random_split(Cropped(*splits["train"]), [72])[0]})


class Faulty(Cropped):
    def __getitem__(self, index):
        fault = (HERE / "fault").read_text() if (HERE / "fault").exists() else ""
        if fault == "raise":
            raise OSError("no such tape")
        if fault == "shape" and index % 9 == 0:
            return self.x[index][:, :5], self.y[index]
        if fault == "exit":
            os.kill(os.getpid(), 9)
        while fault == "hang" and (HERE / "fault").exists():
            time.sleep(0.01)
        return super().__getitem__(index)


def faulty(directory):
    splits = tensors()
    return esper.Splits(**{**splits, "train": Faulty(*splits["train"])})


class Net(nn.Module):
    def __init__(self, dropout=0.3):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.body(x.float() / 255).mean((2, 3)))


def task(data, **options):
    return esper.Task(
        name="same", model=Net, slots={"body": "body"}, data=data, optimizer=esper.SGD(0.05),
        seed_optimizer=esper.SGD(0.05), batch_size=32, validation_batch=16, **options,
    )


flip = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomErasing()])
memory, mmap, pictures, table = map(task, (in_memory, mapped, folder, arrow))
random, fault = task(cropped, augment=esper.PerSample(flip)), task(faulty)
sure = dataclasses.replace(random, model=lambda: Net(0.0))
tensor_flips = task(in_memory, augment=esper.PerSample(flip))
batch_augment = task(mapped, augment=lambda x, y, draw: (x.float() + torch.rand(x.shape, generator=draw), y))
memory_augment = task(in_memory, augment=batch_augment.augment)
settings = esper.Family(
    "varied", structures=[mmap], settings={"samples": esper.Setting([40, 20], data=lambda splits, *_: splits)}
)
"""
SIZE = ("--envs", "2", "--steps", "4", "--policy", "periodic", "--no-tui")
TWO_LANES = ("--devices", "cpu:0", "cpu:1")


def run(directory: Path, name: str, to: str, *arguments: str) -> Path:
    """Train a task, and return the directory of the run."""
    target = directory / to
    assert main([*arguments, "--task", task_reference(directory, name), "--telemetry-dir", str(target)]) == EXIT_OK
    return only(target)


def assert_equal(one: Path, other: Path) -> None:
    """Assert that two runs have the same results and final weights."""
    assert computed(recorded(one)) == computed(recorded(other))
    ends = [load_file(list_checkpoints(each)[-1] / TENSORS_FILE) for each in (one, other)]
    assert ends[0].keys() == ends[1].keys()
    assert [name for name, value in ends[0].items() if not torch.equal(value, ends[1][name])] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mmap", "memory"),
        pytest.param("pictures", "memory", marks=pytest.mark.slow),
        pytest.param("table", "memory", marks=pytest.mark.slow),
        pytest.param("batch_augment", "memory_augment", marks=pytest.mark.slow),
    ],
)
def test_run_on_a_source_has_the_bits_of_the_same_data_in_memory(directory: Path, name: str, expected: str) -> None:
    size = (*SIZE, "--rounds", "1")
    lazy = run(directory, name, "lazy", *size, *TWO_LANES)
    assert_equal(lazy, run(directory, expected, "memory", *size, "--devices", "cpu:0"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random", "tensor_flips"])
def test_run_with_random_samples_and_dropout_is_the_same_on_other_lanes_and_resumed(directory: Path, name: str) -> None:
    whole = run(directory, name, "whole", *SIZE, "--rounds", "2", *TWO_LANES)
    assert main([*SIZE, "--rounds", "1", "--task", task_reference(directory, name), "--devices", "cpu:0"]) == EXIT_OK
    resume = ("--no-tui", "--resume", "last", "--rounds", "2", "--devices", "cpu:0")
    assert main([*resume, "--task", task_reference(directory, name)]) == EXIT_OK
    assert_equal(whole, only(directory / "telemetry"))
    other = run(directory, name, "other", *SIZE, "--rounds", "2", "--seed", "8", *TWO_LANES)
    assert computed(recorded(whole)) != computed(recorded(other))


@pytest.mark.slow
def test_two_ranks_read_the_samples_of_one_process(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout: these ranks are threads, which share the global generators."""
    options = {"task": task_reference(directory, "sure"), "envs": 3, "policy": "static", "training": {}}
    alone = LiveRun.finished(directory / "alone", rounds=2, **options)
    ranked = RankedRun(monkeypatch, directory / "ranked", rounds=1, **options).start()
    assert ranked.finish() == "done"
    saved = list_checkpoints(ranked.first.run.directory)[-1]
    resumed = RankedRun(monkeypatch, directory / "ranked", saved, rounds=2, **options).start()
    assert resumed.finish() == "done"
    assert_alike(computed(recorded(resumed.first.run.directory)), computed(recorded(alone.run.directory)))


# Faults


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raise", "of the split 'train' cannot be read: OSError: no such tape ("),
        ("shape", "torch.uint8 of shape [3, 8, 8]; the items of a split need the same shape and type"),
        ("exit", "of the split 'train' was killed by signal 9"),
    ],
)
def test_fault_in_a_data_set_holds_the_run_which_resumes_to_the_bit(directory: Path, fault: str, sentence: str) -> None:
    options = {"task": task_reference(directory, "fault"), "policy": "periodic", "rounds": 2, "training": {}}
    whole = LiveRun.finished(directory / "whole", **options).run.directory
    live = LiveRun(directory / "faulty", interactive=True, **options).start_paused(6)
    (directory / "fault").write_text(fault)
    live.control.put(RequestKind.RESUME, "test")
    reason = wait_for_fault(live)
    assert sentence in reason
    assert "\n" not in reason
    live.abandon()
    (directory / "fault").unlink()
    saved = list_checkpoints(live.run.directory)[-1]
    resumed = LiveRun(directory / "faulty", resume=saved, **options).start()
    resumed.finish()
    assert_equal(resumed.run.directory, whole)


@pytest.mark.slow
def test_file_that_becomes_shorter_ends_a_reader_and_not_the_run(directory: Path) -> None:
    """Python cannot catch the signal of a mapped page that is gone."""
    options = {"task": task_reference(directory, "mmap"), "policy": "static", "rounds": 2, "training": {}}
    live = LiveRun(directory / "telemetry", interactive=True, **options).start_paused(6)
    shutil.copy(directory / "train.npy", directory / "kept.npy")
    os.truncate(directory / "train.npy", 128)
    live.control.put(RequestKind.RESUME, "test")
    assert f"of the split 'train' was killed by signal {int(signal.SIGBUS)}" in wait_for_fault(live)
    live.abandon()
    assert read_manifest(list_checkpoints(live.run.directory)[-1]).round == 1


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [("cpu:0",), ("cpu:0", "cpu:1")])
def test_item_that_is_never_read_is_reported_with_its_line_and_ends_with_a_stop(
    directory: Path, lanes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POLL_S", "OVERDUE_S", "LIMIT_S", "STOP_GRACE_S"):
        monkeypatch.setattr(call_watch, name, 0.02)
    monkeypatch.setattr(lane, "POLL_S", 0.02)
    options = {"task": task_reference(directory, "fault"), "policy": "static", "rounds": 9, "training": {}}
    live = LiveRun(directory / "telemetry", interactive=True, devices=lanes, **options).start_paused(2)
    children = psutil.Process().children(recursive=True)
    (directory / "fault").write_text("hang")
    live.control.put(RequestKind.RESUME, "test")
    line = TASK.splitlines().index("            time.sleep(0.01)") + 1
    while (call := live.wait_for(ev.CallOverdue)).function != "__getitem__":
        pass
    assert call.line in (line - 1, line)
    assert call.file == str(task_file(directory))
    live.control.put(RequestKind.STOP, "signal")
    live.finish()
    assert live.failure is not None
    assert "has been in __getitem__" in live.failure
    assert "and did not return when the run was stopped; --resume" in live.failure
    _, alive = psutil.wait_procs(children, 20)
    assert not alive


# Everything else that reads data


@pytest.mark.slow
def test_growth_simulation_and_harvest_work_on_random_samples(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = task_reference(directory, "random")
    assert "slot body" in str(esper.check(task))
    trained = run(directory, "random", "telemetry", *SIZE, "--rounds", "1", "--devices", "cpu:0")
    assert main(["whatif", str(trained), "--task", task]) == EXIT_OK
    assert "reproduced exactly, 4 of 4 steps" in capsys.readouterr().out
    assert main(["harvest", str(trained), "--to", "harvested", "--task", task]) == EXIT_OK
    assert (directory / "harvested" / "program.pt2").exists()
    assert (
        main(["evaluate", "--checkpoint", str(trained), "--task", task, "--episodes", "2", "--policies", "static"])
        == EXIT_OK
    )
    grow = ("--trials", "3", "--steps", "2", "--envs", "2", "--to", "grown", "--policy", "periodic", "--no-tui")
    assert main(["grow", "--task", task, *grow]) == EXIT_OK
    assert (directory / "grown" / "weights.safetensors").exists()


def test_setting_of_a_family_that_changes_such_data_is_refused(directory: Path) -> None:
    with pytest.raises(esper.TaskError, match="it changes the data, and they are read when they are needed; use tens"):
        esper.check(task_reference(directory, "settings"))
