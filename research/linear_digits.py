"""How many digits does a linear classifier recognise? Multinomial logistic regression on the data of `digits_impaired`.

    python -m research.linear_digits                 # ten random seeds, 20 seconds on one core

It has 650 parameters: 64 pixels and a bias for each of ten classes. The training and test splits are those of the task.
A random seed sets the initial weights and the data order.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

from esper.common.intervals import t_interval
from esper.common.score_scale import PERCENT
from esper.networks.tasks.builtin.digits import load
from esper.networks.tasks.splits import Split

EPOCHS = (40, 400)
"""Numbers of epochs after which the score is taken: that of an episode of the default task, and ten times as many."""
BATCH_SIZE, LEARNING_RATE = 64, 0.05


def main() -> None:
    """Print the test accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="number of random seeds (default: 10)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # more only cost time with 64 inputs
    splits = load()
    runs = [train(splits.train, splits.test, seed) for seed in range(options.seeds)]
    for epochs, results in zip(EPOCHS, zip(*runs, strict=True), strict=True):
        losses, scores = zip(*results, strict=True)
        print(
            f"{epochs} epochs: test accuracy {PERCENT.interval(t_interval(scores).clip(0, 1))}, "
            f"n = {len(scores)} random seeds; training loss {max(losses):.4f} or less"
        )


def train(train_split: Split, test_split: Split, seed: int) -> list[tuple[float, float]]:
    """Train one classifier. Return training loss and test accuracy after each number of epochs."""
    (x, y), (test_x, test_y) = (as_rows(split) for split in (train_split, test_split))
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    results: list[tuple[float, float]] = []
    for epoch in range(1, max(EPOCHS) + 1):
        for index_B in torch.randperm(len(x)).split(BATCH_SIZE):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index_B]), y[index_B]).backward()
            optimizer.step()
        if epoch in EPOCHS:
            with torch.no_grad():
                score = (model(test_x).argmax(1) == test_y).float().mean()
                results.append((F.cross_entropy(model(x), y).item(), score.item()))
    return results


def as_rows(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures as rows of pixels [N, 64], and labels [N]."""
    pictures, labels = split
    assert isinstance(pictures, torch.Tensor)
    assert isinstance(labels, torch.Tensor)
    return pictures.flatten(1), labels


if __name__ == "__main__":
    main()
