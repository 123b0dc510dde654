"""Does a run without growth train as well as the loop of torchvision's tutorials, on the same data set?

    python -m research.classic_loop --seeds 10

The data set crops, flips and normalises each digit at random when it is read. The loop shuffles it with a DataLoader.
A static run of one env reads it in reader processes. Recipe, numbers of epochs and validation are the same; initial
weights, order of the samples and random transforms differ.

Takes three minutes (10 seeds, 12 epochs, two cores).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import esper
from esper.common.configuration.config import Config
from esper.common.intervals import t_interval
from esper.networks.tasks.builtin.digits import load
from esper.networks.tasks.prepare import prepare_task
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action

EPOCHS, BATCH, LEARNING_RATE = 24, 64, 0.02


class Digits(Dataset[tuple[Tensor, int]]):
    """The digits of a split; those for training are cropped and flipped at random."""

    def __init__(self, split: str) -> None:
        self.pictures, self.labels = vars(load())[split]
        self.transform: Any = v2.Normalize([0.0], [1.0])
        if split == "train":
            self.transform = v2.Compose([v2.RandomCrop(8, padding=1), v2.RandomHorizontalFlip(0.2), self.transform])

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.pictures[index]), int(self.labels[index])


def model() -> nn.Module:
    """Return a small network with batch norm and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


def data(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (the digits are in the package)
    """Return the data sets as they are."""
    splits: dict[str, Any] = {split: Digits(split) for split in ("train", "validation", "test")}
    return esper.Splits(**splits)


task = esper.Task(
    name="classic",
    model=model,
    slots={"first": "2"},
    data=data,
    optimizer=esper.Optimizer(torch.optim.SGD, lr=LEARNING_RATE, momentum=0.9),
    seed_optimizer=esper.SGD(LEARNING_RATE),
    schedule=esper.constant,
    clip=None,
    batch_size=BATCH,
)


def classic_loop(seed: int) -> float:
    """Train as the tutorials do, and return the validation score."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9)
    loader: Any = DataLoader(Digits("train"), batch_size=BATCH, shuffle=True)
    for _ in range(EPOCHS):
        network.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
    network.eval()
    right = 0
    with torch.no_grad():
        validation: Any = DataLoader(Digits("validation"), batch_size=256)
        for x, y in validation:
            right += int((network(x).argmax(1) == y).sum())
    return right / len(Digits("validation"))


def static_run(seed: int) -> float:
    """Train one env without seeds, and return the validation score."""
    config = Config(seed=seed, envs=1, steps=EPOCHS, amp="off", policy="static")
    prepared = prepare_task(config, task)
    pool = EnvPool(prepared.task, prepared.profile, prepared.data, ["cpu:0"], prepared.config)
    try:
        pool.reset(0)
        epochs = [pool.step([Action(0)], step)[0] for step in range(EPOCHS)]
        assert epochs[-1] is not None
        return epochs[-1].measured.score
    finally:
        pool.close()


def main() -> None:
    """Train both ways with each seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    print("| training | validation score | seeds |")
    print("|---|---|---|")
    scores = {"classic loop": classic_loop, "static run": static_run}
    found = {name: [train(seed) for seed in range(options.seeds)] for name, train in scores.items()}
    found["static run − loop"] = list(np.subtract(found["static run"], found["classic loop"]))
    for name, values in found.items():
        interval = t_interval(values)
        print(f"| {name} | {interval.mean:.2%} [{interval.low:.2%}, {interval.high:.2%}] | {options.seeds} |")


if __name__ == "__main__":
    from research.classic_loop import main as imported  # the readers must find its classes by their module

    imported()
