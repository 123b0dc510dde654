"""CIFAR-10, read from a small archive in the original format that the test writes."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from esper.networks.tasks import TaskError, load_task
from esper.networks.tasks.builtin import cifar

ROWS = 20
"""Pictures in each of the six batch files; the real ones hold 10,000."""


def write(path: Path, content: dict[str, object]) -> str:
    """Write one file of the archive; return its MD5."""
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)

    def batch(name: str) -> tuple[str, str]:
        pictures = rng.integers(0, 256, (ROWS, 3 * 32 * 32), dtype=np.uint8)
        labels = rng.integers(0, 10, ROWS).tolist()
        return name, write(folder / name, {"data": pictures, "labels": labels})

    monkeypatch.setattr(CIFAR10, "train_list", [batch(f"data_batch_{i}") for i in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [batch("test_batch")])
    names = write(folder / "batches.meta", {"label_names": [str(i) for i in range(10)]})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": names})
    return tmp_path


def test_load_reads_and_splits_the_archive(archive: Path) -> None:
    splits = load_task("cifar10").data(archive)
    assert splits.train[0].shape == (90, 3, 32, 32)
    assert splits.validation[0].shape == (10, 3, 32, 32)
    assert splits.test[0].shape == (20, 3, 32, 32)
    last = pickle.loads((archive / "cifar-10-batches-py" / "data_batch_5").read_bytes())
    assert splits.validation[1].tolist() == last["labels"][10:]
    assert splits.train[0].mean((0, 2, 3)).abs().max() < 1e-4
    # The same picture: the standardised pixels are an affine map of the file's, channel by channel.
    red = torch.from_numpy(last["data"][10]).view(3, 32, 32)[0].float()
    correlation = torch.corrcoef(torch.stack((red.flatten(), splits.validation[0][0, 0].flatten())))[0, 1]
    assert correlation == pytest.approx(1.0)


def test_load_missing_data_error_names_download_command(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=f'missing or damaged; run .* -m esper.networks.tasks.builtin.downloads cifar10 "{tmp_path}"'
    ):
        load_task("cifar_impaired").data(tmp_path)


def test_load_damaged_data_raises(archive: Path) -> None:
    batch = archive / "cifar-10-batches-py" / "data_batch_3"
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(TaskError, match="missing or damaged"):
        cifar.load(archive)
