import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.growth.blueprints import BLUEPRINTS
from esper.growth.lifecycle import GateConfig
from esper.growth.network import GrowingNetwork
from esper.tasks import TASK_NAMES, TaskError, digits, get_task
from esper.tasks.settings import TASK_SETTINGS


def test_task_names_match_registry_without_torch() -> None:
    assert [get_task(name).name for name in TASK_NAMES] == list(TASK_NAMES)
    assert set(TASK_SETTINGS) == set(TASK_NAMES)
    code = "import sys, esper.tasks; assert 'torch' not in sys.modules and esper.tasks.TASK_NAMES"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_get_task_unknown_name_suggests_nearest() -> None:
    with pytest.raises(TaskError, match="unknown task 'digits_impared': did you mean digits_impaired"):
        get_task("digits_impared")


@pytest.mark.parametrize("name", TASK_NAMES)
def test_task_host_fits_its_data(name: str) -> None:
    task = get_task(name)
    net = GrowingNetwork(task.build_host(), ("early", "mid", "late"), GateConfig()).eval()
    assert net(torch.zeros(2, *task.input_shape), [0.0] * 3).shape == (2, task.classes)
    assert set(task.blueprints) <= set(BLUEPRINTS)
    assert task.samples_per_epoch % task.batch_size == 0


def test_task_hosts_have_documented_sizes() -> None:
    sizes = {
        name: sum(parameter.numel() for parameter in get_task(name).build_host().parameters()) for name in TASK_NAMES
    }
    assert sizes["cifar10"] == 6418
    assert sizes["cifar_impaired"] == 77
    assert sizes["digits_impaired"] == (4 + 32 + 128) + 2 * (4 + 8 + 16) + 16 * 10 + 10


@pytest.mark.parametrize("name", ["digits_impaired", "synthetic"])
def test_splits_are_deterministic_disjoint_and_standardised(name: str) -> None:
    task = get_task(name)
    first, second = task.load(None), task.load(None)
    parts = ("train", "validation", "test")
    seen: set[bytes] = set()
    for part in parts:
        x, y = getattr(first, f"{part}_x"), getattr(first, f"{part}_y")
        assert torch.equal(x, getattr(second, f"{part}_x"))
        assert torch.equal(y, getattr(second, f"{part}_y"))
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert x.shape == (len(y), *task.input_shape)
        assert set(y.tolist()) == set(range(task.classes))
        pictures = {picture.numpy().tobytes() for picture in x}
        assert not seen & pictures
        seen |= pictures
    assert task.samples_per_epoch <= len(first.train_y)
    assert first.train_x.mean().abs() < 1e-4
    assert first.train_x.std() == pytest.approx(1.0, abs=1e-3)


def test_digits_are_complete_and_stratified() -> None:
    splits = digits.load()
    sizes = [len(y) for y in (splits.train_y, splits.validation_y, splits.test_y)]
    assert sizes == [1079, 359, 359]
    for y in (splits.validation_y, splits.test_y):
        assert torch.bincount(y).max() - torch.bincount(y).min() <= 3


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_load_damaged_digits_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    whole = Path(digits.__file__).parent / "data" / "digits.npz"
    if damage == "truncated":
        (data / "digits.npz").write_bytes(whole.read_bytes()[:20_000])
    elif damage == "foreign":
        np.savez(data / "digits.npz", other=np.zeros(3))
        assert zipfile.is_zipfile(data / "digits.npz")
    monkeypatch.setattr(digits, "files", lambda package: tmp_path)
    with pytest.raises(TaskError, match="force-reinstall"):
        digits.load()
