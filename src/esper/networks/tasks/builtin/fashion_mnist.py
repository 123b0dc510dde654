"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 70,000 pictures of clothes, in the four IDX files of its authors.

The files are read from `--data-dir`, or else from the user's cache or from Debian's package `dataset-fashion-mnist`.
`downloads.py` downloads them.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.common.configuration.config import TaskError
from esper.networks.tasks.builtin.conv_task import conv_task
from esper.networks.tasks.builtin.downloads import default_dir, download_command

if TYPE_CHECKING:
    from torch import Tensor

    from esper.networks.tasks.splits import Splits

DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")
"""Directory of Debian's package `dataset-fashion-mnist`."""
TORCHVISION_DIR = Path("FashionMNIST", "raw")
"""Directory of the files below the one that torchvision receives."""
DIGESTS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""SHA-256 of the content of each file. The compressed files differ between sources."""
HELD_OUT_FRACTION = 1 / 12
"""Fraction of the training files that is the validation split, and of those at their end, which no split contains: they
chose the host, its optimizer and the length of an epoch. The order of the files is random."""
HOST: dict[str, Any] = {"in_channels": 1, "widths": (8, 16, 32), "kernel_size": 3, "pools": 2, "pool_before": "norm"}
"""Arguments of `ConvHost`."""
_GZIP_MAGIC = b"\x1f\x8b"


def load(data_dir: Path | None = None) -> Splits:
    """Read Fashion-MNIST: 50,000 pictures for training, 5,000 for validation, 10,000 for test.

    Raises:
        TaskError: A file is missing, or is not the one of the data set; the message says how to get it.
    """
    from esper.networks.tasks.splits import standardise_splits

    pictures, labels, test_pictures, test_labels = (_read(name, data_dir) for name in DIGESTS)
    held_out = round(HELD_OUT_FRACTION * len(labels))
    end = len(labels) - held_out
    train, validation = slice(end - held_out), slice(end - held_out, end)
    return standardise_splits(
        (pictures[train, None], labels[train]),
        (pictures[validation, None], labels[validation]),
        (test_pictures[:, None], test_labels),
    )


def _read(name: str, data_dir: Path | None) -> Tensor:
    """Return the array of an IDX file, uint8."""
    import torch

    download = download_command("fashion_mnist", data_dir or default_dir("fashion_mnist"))
    path = _find(name, [data_dir] if data_dir else [default_dir("fashion_mnist"), DEBIAN_DIR])
    if path is None:
        place = data_dir or f"the user's cache and in {DEBIAN_DIR}"
        raise TaskError(f"Fashion-MNIST: {name} and {name}.gz not found in {place}; run {download}")
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP_MAGIC):
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"cannot read {path}: {error}; delete it and run {download}") from error
    if hashlib.sha256(content).hexdigest() != DIGESTS[name]:
        raise TaskError(f"{path} is damaged, or is no file of Fashion-MNIST; delete it and run {download}")
    axes = content[3]
    shape = struct.unpack_from(f">{axes}I", content, 4)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * axes).reshape(shape)


def _find(name: str, directories: Sequence[Path]) -> Path | None:
    """Return the first file of this name, plain or compressed; None if there is none."""
    folders = [folder for directory in directories for folder in (directory, directory / TORCHVISION_DIR)]
    paths = [folder / f"{name}{suffix}" for folder in folders for suffix in ("", ".gz")]
    return next((path for path in paths if path.is_file()), None)


FASHION_MNIST_TASK = conv_task(
    name="fashion_mnist",
    data=load,
    host=HOST,
    host_learning_rate=0.4,
    seed_learning_rate=0.4,
    samples_per_epoch=8192,
    float32_defaults=True,
    weight_decay=1e-4,
)
