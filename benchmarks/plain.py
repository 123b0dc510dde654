"""Plain PyTorch training loop, for comparison: `python benchmarks/plain.py [--task NAME]` prints epochs per second.

The loop uses PyTorch's default modules, memory layout, threads and optimizer; convolution, batch norm, ReLU and pooling
are in textbook order; one network is trained after another. `benchmarks/engine.py` measures this loop together with the
engine, because a rented machine that is temporarily slower is slower for both.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.networks.tasks import load_task
from esper.networks.tasks.builtin.conv_host import ConvBlock, ConvHost
from esper.networks.tasks.builtin.conv_task import CLASSES
from esper.networks.tasks.task import Task

WARM_UP_S, MEASURED_S = 2.0, 4.0


def build_network(task: Task) -> nn.Module:
    """Return a network that computes the same as the task's host, except that its pools follow the convolutions."""
    host = task.model()
    assert isinstance(host, ConvHost)
    blocks = [block for block in host.segments if isinstance(block, ConvBlock)]
    pools = sum(block.pool_before is not None for block in blocks)
    layers: list[nn.Module] = []
    for index, conv in enumerate(block.conv for block in blocks):
        plain_conv = nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size[0], padding="same", bias=False)
        layers += [plain_conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU()]
        if index < pools:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(CLASSES))


class Loop:
    """Trains and validates one network."""

    def __init__(self, task: Task) -> None:
        self._task = task
        splits = task.data(None)
        self._train_x, self._train_y = splits.train[0].contiguous(), splits.train[1]
        self._validation_x, self._validation_y = splits.validation[0].contiguous(), splits.validation[1]
        self._network = build_network(task)
        self._network(self._validation_x[:2])
        learning_rate = task.optimizer.learning_rate
        assert learning_rate is not None
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=learning_rate, momentum=0.9, nesterov=True)

    def run_epoch(self) -> float:
        """Train one epoch, and return the validation accuracy (0 to 1)."""
        task, model = self._task, self._network
        model.train()
        order_N = torch.randperm(len(self._train_y))[: task.samples_per_epoch]
        for index_B in order_N.split(task.batch_size):
            loss = F.cross_entropy(model(self._train_x[index_B]), self._train_y[index_B])
            self._optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self._optimizer.step()
        model.eval()
        with torch.no_grad():
            hits_N: Tensor = model(self._validation_x).argmax(dim=1) == self._validation_y
        return hits_N.float().mean().item()


def epochs_per_second(task: Task) -> float:
    """Measure the rate of epochs, after a warm-up."""
    loop = Loop(task)
    epochs, start = 0, 0.0
    for seconds in (WARM_UP_S, MEASURED_S):
        epochs, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            loop.run_epoch()
            epochs += 1
    return epochs / (time.perf_counter() - start)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits_impaired")
    print(f"{epochs_per_second(load_task(parser.parse_args().task)):.2f}")
