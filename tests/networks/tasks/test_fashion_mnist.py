"""Fashion-MNIST, read from small files in the original format that the test writes."""

import gzip
import hashlib
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets

from esper.networks.tasks import TaskError, load_task
from esper.networks.tasks.builtin import downloads, fashion_mnist

TRAIN, TEST = 120, 20
"""Pictures of the two splits; the real ones have 60,000 and 10,000."""
IMAGES = "train-images-idx3-ubyte"


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Contents of the four files, keyed by name."""
    rng = np.random.default_rng(0)
    found: dict[str, bytes] = {}
    for name, size in (("train", TRAIN), ("t10k", TEST)):
        found[f"{name}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (size, 28, 28), dtype=np.uint8))
        found[f"{name}-labels-idx1-ubyte"] = idx(rng.integers(0, 10, size, dtype=np.uint8))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    monkeypatch.setattr(fashion_mnist, "DIGESTS", digests)
    return found


def write(directory: Path, files: dict[str, bytes], *, compress: bool = True) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / (f"{name}.gz" if compress else name)
        path.write_bytes(gzip.compress(content) if compress else content)
    return directory


def test_load_splits_the_files_and_leaves_the_tuning_part_out(tmp_path: Path, files: dict[str, bytes]) -> None:
    splits = load_task("fashion_mnist").data(write(tmp_path, files))
    sizes = [x.shape for x, _ in (splits.train, splits.validation, splits.test)]
    assert sizes == [(100, 1, 28, 28), (10, 1, 28, 28), (TEST, 1, 28, 28)]
    labels = list(files["train-labels-idx1-ubyte"][8:])
    assert splits.train[1].tolist() == labels[:100]
    assert splits.validation[1].tolist() == labels[100:110]
    assert splits.test[1].tolist() == list(files["t10k-labels-idx1-ubyte"][8:])
    # Standardised pixels are an affine map of those of the file.
    pixels = torch.tensor(list(files[IMAGES][16 + 100 * 784 :][:784])).float()
    correlation = torch.corrcoef(torch.stack((pixels, splits.validation[0][0].flatten())))[0, 1]
    assert correlation == pytest.approx(1.0)
    assert splits.train[0].mean().abs() < 1e-4


@pytest.mark.parametrize("place", ["cache", "package", "torchvision"])
def test_load_finds_files_without_a_directory(
    tmp_path: Path, files: dict[str, bytes], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion_mnist, "default_dir", lambda name: tmp_path / "cache")
    monkeypatch.setattr(fashion_mnist, "DEBIAN_DIR", tmp_path / "package")
    directory = {"torchvision": tmp_path / "cache" / "FashionMNIST" / "raw"}.get(place, tmp_path / place)
    with pytest.raises(TaskError, match=r"not found in the user's cache and in .*package; run .* fashion_mnist "):
        fashion_mnist.load()
    write(directory, files, compress=place == "package")
    assert len(fashion_mnist.load().test[1]) == TEST
    with pytest.raises(TaskError, match="not found"):  # files elsewhere do not replace those of --data-dir
        fashion_mnist.load(tmp_path / "other")


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("damage", ["cut", "changed", "foreign", "empty"])
def test_load_refuses_a_wrong_file_by_name(
    tmp_path: Path, files: dict[str, bytes], damage: str, compress: bool
) -> None:
    write(tmp_path, files, compress=compress)
    path = tmp_path / (f"{IMAGES}.gz" if compress else IMAGES)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[-100:]
    elif damage == "changed":
        content[len(content) // 2] ^= 1
    elif damage == "foreign":  # the same format and shape, as MNIST has
        other = idx(np.zeros((TRAIN, 28, 28), np.uint8))
        content[:] = gzip.compress(other) if compress else other
    else:
        content.clear()
    path.write_bytes(content)
    with pytest.raises(TaskError) as refused:
        fashion_mnist.load(tmp_path)
    sentence = str(refused.value)
    assert str(path) in sentence
    assert f"delete it and run {fashion_mnist.download_command('fashion_mnist', tmp_path)}" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("name", downloads.DATA_SETS)
def test_download_command_gets_the_data_set(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Path, bool]] = []

    def data_set(directory: Path, *, download: bool) -> None:
        calls.append((directory, download))
        raise RuntimeError("no network")

    monkeypatch.setattr(torchvision.datasets, downloads.DATA_SETS[name].torchvision_class, data_set)
    monkeypatch.setattr(sys, "argv", ["downloads", name, str(tmp_path)])
    with pytest.raises(SystemExit, match=f"cannot download .* to {tmp_path}: no network"):
        downloads.main()
    assert calls == [(tmp_path, True)]
