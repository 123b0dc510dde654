"""Cost of data that are read when they are needed: time against tensors, and memory of a large mapped array.

    python -m benchmarks.lazy_data [--memory]

Epochs of four envs on one CPU lane are timed in turns: with tensors, and with the same samples in a memory-mapped array
and in a data set that returns one item at a time. Then a run of one epoch on a sparse file of 4 MiB and on one of 4 GiB
reports the largest memory of the process that trains and of its reader. `--memory` measures only that. Takes four
minutes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import esper
from esper.common.configuration.config import Config
from esper.networks.tasks.prepare import prepare_task
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action

SAMPLES, ENVS, EPOCHS, WARM = 4096, 4, 12, 2
BIG_FILE = "LAZY_DATA_FILE"
"""Environment variable with the path of the sparse file."""


class Items(Dataset[Any]):
    """Returns one item at a time."""

    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self.x[index], self.y[index]


class Pictures(nn.Module):
    """A small convolutional network for uint8 pictures."""

    def __init__(self, channels: int = 3, width: int = 32, stride: int = 1) -> None:
        super().__init__()
        layers = [nn.Conv2d(channels, width, 3, stride=stride), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers, nn.Conv2d(width, width, 3), nn.ReLU())
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.float() / 255 + 0.1).mean((2, 3)))


def make_task(name: str, data: Any, model: Any = Pictures) -> esper.Task:
    """Return a task with an optimizer and a slot."""
    rates: Any = {"optimizer": esper.SGD(0.05), "seed_optimizer": esper.SGD(0.05)}
    return esper.Task(name=name, model=model, slots={"body": "body"}, data=data, validation_batch=512, **rates)


def big_data(_: Path | None) -> esper.Splits:
    """Return pictures of 4 KiB in a sparse file."""
    path = os.environ[BIG_FILE]
    x: Any = np.memmap(path, np.uint8, "r").reshape(-1, 1, 64, 64)
    y = torch.arange(len(x)) % 10
    return esper.Splits(train=(x, y), validation=(x[:512], y[:512]), test=(x[:64], y[:64]))


big = make_task("big", big_data, lambda: Pictures(1, 4, 8))


def measure_speed(directory: Path) -> None:
    """Print the epochs per second with each source, relative to tensors."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (SAMPLES, 3, 32, 32), generator=draw, dtype=torch.uint8)
    y = torch.randint(0, 10, (SAMPLES,), generator=draw)
    np.save(directory / "x.npy", x.numpy())
    mapped: Any = np.load(directory / "x.npy", mmap_mode="r")
    sources: dict[str, Any] = {"tensors": (x, y), "memory-mapped": (mapped, y), "one item at a time": Items(mapped, y)}
    pools: dict[str, EnvPool] = {}
    config = Config(envs=ENVS, steps=EPOCHS, policy="static", amp="off")
    for name, source in sources.items():
        task = make_task("speed", lambda _, source=source: esper.Splits(train=source, validation=source, test=source))
        prepared = prepare_task(config, task)
        pools[name] = EnvPool(prepared.task, prepared.profile, prepared.data, ["cpu:0"], prepared.config)
        pools[name].reset(0)
    seconds: dict[str, list[float]] = {name: [] for name in pools}
    for step in range(EPOCHS):
        for name, pool in pools.items():
            start = time.perf_counter()
            pool.step([Action(0)] * ENVS, step)
            seconds[name].append(time.perf_counter() - start)
    for name, pool in pools.items():
        ratios = [one / other for one, other in zip(seconds["tensors"], seconds[name], strict=True)][WARM:]
        print(
            f"{name}: {statistics.median(seconds[name][WARM:]):.2f} s per epoch of {ENVS} envs, "
            f"{statistics.median(ratios):.0%} of the speed of tensors ({min(ratios):.0%} to {max(ratios):.0%})"
        )
        pool.close()


def measure_memory(path: Path, size: int) -> None:
    """Train an epoch on a sparse file of `size` bytes, and print the largest memory of each process."""
    with path.open("wb") as file:
        file.truncate(size)
    options = ["--no-tui", "--envs", "1", "--steps", "1", "--rounds", "1", "--policy", "static", "--devices", "cpu:0"]
    place = ["--task", f"{__file__}:big", "--telemetry-dir", str(path.parent / "telemetry")]
    command = [sys.executable, "-m", "esper", *options, *place]
    peaks: dict[int, int] = {}
    with subprocess.Popen(command, env={**os.environ, BIG_FILE: str(path)}, stdout=subprocess.DEVNULL) as run:
        while run.poll() is None:
            try:
                for process in (main := psutil.Process(run.pid), *main.children(recursive=True)):
                    peaks[process.pid] = max(peaks.get(process.pid, 0), process.memory_info().rss)
            except psutil.Error:
                pass
            time.sleep(0.05)
    path.unlink()
    print(f"{size >> 20:,} MiB: {', '.join(f'{peak >> 20:,} MiB' for peak in peaks.values())}")


if __name__ == "__main__":
    from benchmarks import lazy_data  # the readers must find its classes by their module

    with tempfile.TemporaryDirectory() as temporary:
        if "--memory" not in sys.argv:
            lazy_data.measure_speed(Path(temporary))
        for mebibytes in (4, 4096):
            lazy_data.measure_memory(Path(temporary) / "pictures", mebibytes << 20)
