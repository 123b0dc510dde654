"""Training of one network with the recipe of the task `fashion_mnist`, in a plain loop of PyTorch.

Shapes: N samples, B samples of a batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.networks.tasks import load_task
from esper.networks.tasks.optimizers import SGD
from esper.networks.tasks.splits import Splits


def count_parameters(network: nn.Module) -> int:
    """Return the number of parameters of a network."""
    return sum(parameter.numel() for parameter in network.parameters())


TASK = load_task("fashion_mnist")
HOST_PARAMETERS = count_parameters(TASK.model())


def load_data() -> Splits:
    """Return the data of the task, in the memory format of its networks."""
    return TASK.data(None).to(torch.device("cpu"))


class Training:
    """A network in training, and its state after the step with the best validation score.

    Args:
        seed: Random seed of the order of the data.

    Attributes:
        best_score: Best accuracy on the validation split so far; 0 before the first step.
        best_state: Weights and buffers of the network after that step.
    """

    def __init__(self, network: nn.Module, data: Splits, seed: int) -> None:
        self.network = network.to(memory_format=torch.channels_last)
        self._data = data
        self._generator = torch.Generator().manual_seed(seed)
        self.reset_optimizer()
        self.forget_best()

    def reset_optimizer(self) -> None:
        """Begin with a new optimizer, which has all present parameters and no momentum."""
        recipe = TASK.optimizer
        assert isinstance(recipe, SGD)
        self._rate = recipe.learning_rate
        self._optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=self._rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=True,
        )

    def forget_best(self) -> None:
        """Forget the best state, which is one of another architecture."""
        self.best_score = 0.0
        self.best_state: dict[str, Any] = {}

    def step(self, rate_factor: float) -> float:
        """Train one step of the task, validate, and return the validation score.

        Args:
            rate_factor: Factor of the learning rate.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * rate_factor
        x_N, y_N = self._data.train
        assert isinstance(x_N, Tensor)
        assert isinstance(y_N, Tensor)
        self.network.train()
        order_N = torch.randperm(len(y_N), generator=self._generator)[: TASK.samples_per_epoch]
        for index_B in order_N.split(TASK.batch_size):
            self._optimizer.zero_grad()
            F.cross_entropy(self.network(x_N[index_B]), y_N[index_B]).backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), TASK.clip or torch.inf)
            self._optimizer.step()
        score = accuracy(self.network, self._data, "validation")
        if score > self.best_score:
            self.best_score = score
            self.best_state = {name: value.clone() for name, value in self.network.state_dict().items()}
        return score

    def test_best(self) -> float:
        """Return the test accuracy of the best state, which the network then has."""
        self.network.load_state_dict(self.best_state)
        return accuracy(self.network, self._data, "test")


@torch.no_grad()
def accuracy(network: nn.Module, data: Splits, split: str) -> float:
    """Return the accuracy of a network on a split, a fraction."""
    x_N, y_N = getattr(data, split)
    network.eval()
    batches = zip(x_N.split(TASK.validation_batch), y_N.split(TASK.validation_batch), strict=True)
    return sum(int((network(x_B).argmax(1) == y_B).sum()) for x_B, y_B in batches) / len(y_N)
