import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.networks.tasks import TASK_NAMES, TaskError, load_task
from esper.networks.tasks.builtin import digits
from esper.networks.tasks.builtin.conv_task import BLUEPRINTS, CLASSES
from esper.networks.tasks.probe import probe_task


def test_task_names_match_registry_without_torch() -> None:
    assert [load_task(name).name for name in TASK_NAMES] == list(TASK_NAMES)
    code = "import sys, esper.networks.tasks as tasks; tasks.own_values('momentum'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_get_task_unknown_name_suggests_nearest() -> None:
    with pytest.raises(TaskError, match="unknown task 'digits_impared'; did you mean digits_impaired"):
        load_task("digits_impared")


@pytest.mark.parametrize("name", ["digits_impaired", "digits", "synthetic"])
def test_probe_of_a_built_in_task_finds_three_slots(name: str) -> None:
    task = load_task(name)
    profile = probe_task(task, (task.data(None),))
    assert [site.name for site in profile.sites] == ["early", "mid", "late"]
    assert profile.blueprints == BLUEPRINTS
    assert profile.shares_prefix
    assert profile.channels_last
    assert task.samples_per_epoch is not None
    assert task.samples_per_epoch % task.batch_size == 0


def test_task_hosts_have_documented_sizes() -> None:
    sizes = {name: sum(parameter.numel() for parameter in load_task(name).model().parameters()) for name in TASK_NAMES}
    assert sizes["cifar10"] == 6418
    assert sizes["cifar_impaired"] == 77
    assert sizes["fashion_mnist"] == 6274
    assert sizes["digits_impaired"] == (4 + 32 + 128) + 2 * (4 + 8 + 16) + 16 * 10 + 10


@pytest.mark.parametrize("name", ["digits_impaired", "synthetic"])
def test_splits_are_deterministic_disjoint_and_standardised(name: str) -> None:
    task = load_task(name)
    first, second = task.data(None), task.data(None)
    parts = ("train", "validation", "test")
    seen: set[bytes] = set()
    for part in parts:
        x, y = getattr(first, part)
        other_x, other_y = getattr(second, part)
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert len(x) == len(y)
        assert set(y.tolist()) == set(range(CLASSES))
        pictures = {picture.numpy().tobytes() for picture in x}
        assert not seen & pictures
        seen |= pictures
    assert task.samples_per_epoch is not None
    assert task.samples_per_epoch <= len(first.train[1])
    assert first.train[0].mean().abs() < 1e-4
    assert first.train[0].std() == pytest.approx(1.0, abs=1e-3)


def test_digits_are_complete_and_stratified() -> None:
    splits = digits.load()
    sizes = [len(y) for _, y in (splits.train, splits.validation, splits.test)]
    assert sizes == [1079, 359, 359]
    for _, y in (splits.validation, splits.test):
        assert torch.bincount(y).max() - torch.bincount(y).min() <= 3


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_load_damaged_digits_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    whole = Path(digits.__file__).parents[1] / "data" / "digits.npz"
    if damage == "truncated":
        (data / "digits.npz").write_bytes(whole.read_bytes()[:20_000])
    elif damage == "foreign":
        np.savez(data / "digits.npz", other=np.zeros(3))
        assert zipfile.is_zipfile(data / "digits.npz")
    monkeypatch.setattr(digits, "files", lambda package: tmp_path)
    with pytest.raises(TaskError, match="install esper-sanctum again"):
        digits.load()
