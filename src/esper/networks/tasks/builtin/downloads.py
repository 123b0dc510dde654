"""Data sets that torchvision downloads to the user's cache or to another directory.

`python -m esper.networks.tasks.builtin.downloads NAME [DIRECTORY]` downloads one; training never does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import platformdirs


class DataSet(NamedTuple):
    """A data set of torchvision."""

    title: str
    torchvision_class: str
    megabytes: int
    """Size of the download."""


DATA_SETS = {
    "cifar10": DataSet("CIFAR-10", "CIFAR10", 170),
    "fashion_mnist": DataSet("Fashion-MNIST", "FashionMNIST", 31),
}
"""Data sets by the name of their directory in the user's cache."""


def default_dir(name: str) -> Path:
    """Return the default directory of a data set, in the user's cache."""
    return Path(platformdirs.user_cache_dir("esper-sanctum")) / name


def download_command(name: str, directory: Path) -> str:
    """Return the command that downloads a data set to a directory."""
    return f'{sys.executable} -m esper.networks.tasks.builtin.downloads {name} "{directory}"'


def main() -> None:
    """Download a data set."""
    import torchvision.datasets  # pyright: ignore[reportMissingTypeStubs]

    parser = argparse.ArgumentParser(
        prog="python -m esper.networks.tasks.builtin.downloads", description="Download the data of a built-in task."
    )
    sizes = ", ".join(f"{name} ({data.megabytes} MB)" for name, data in DATA_SETS.items())
    parser.add_argument("name", choices=DATA_SETS, help=sizes)
    parser.add_argument("directory", nargs="?", type=Path, help="default: the user's cache directory")
    options = parser.parse_args()
    data, directory = DATA_SETS[options.name], options.directory or default_dir(options.name)
    try:
        getattr(torchvision.datasets, data.torchvision_class)(directory, download=True)
    except (OSError, RuntimeError) as error:
        sys.exit(f"cannot download {data.title} to {directory}: {error}")


if __name__ == "__main__":
    main()
