"""The check of scores: one that cannot tell outputs apart is refused with the line to write, a strict one is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Task
from tests.networks.tasks.models import CLASSES, FEATURES, causal_task, features, mlp, task


def regression(
    targets: Callable[[Tensor], Tensor] = lambda y: y, outputs: int = CLASSES, score: Any = None, loss: Any = None
) -> Task:
    """Return a task whose targets are computed from the first inputs, with a loss that fits all shapes."""

    def data(_: object) -> Splits:
        return Splits(**{name: (x, targets(x[:, :CLASSES].contiguous())) for name, (x, _) in vars(features()).items()})

    def square(output: Tensor, y: Tensor) -> Tensor:
        return (output - y.reshape(output.shape)).square().mean()

    def model() -> nn.Module:
        return nn.Sequential(*list(mlp().children())[:-1], nn.Linear(16, outputs))

    return task(model, data=data, loss=loss or square, score=score)


def accuracy(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(1) == y).float()


def above_zero(y: Tensor) -> Tensor:
    return (y[:, 0] > 0).long()


REFUSALS: list[tuple[Callable[[], Task], str]] = [
    (
        regression,
        "score of task own: is missing, and the accuracy needs one output per class and class indices as targets; the "
        "model returns torch.float32 of shape [6, 5], and the targets are torch.float32 of shape [6, 5]; pass a score "
        "in [0, 1], for example score=lambda output, y: 1 / (1 + (output - y).pow(2).flatten(1).mean(1))",
    ),
    (
        lambda: regression(lambda y: y.softmax(1)),
        "for example score=lambda output, y: (output.argmax(1) == y.argmax(1)).float()",
    ),
    (
        lambda: regression(lambda y: (y > 0).long()),  # several labels per sample
        "for example score=lambda output, y: ((output > 0) == (y > 0)).float().flatten(1).mean(1)",
    ),
    (
        lambda: regression(above_zero, outputs=1),  # a class always has index 0
        "score of task own: is missing, and the accuracy needs one output per class and class indices as targets; the "
        "model returns torch.float32 of shape [6, 1], and the targets are torch.int64 of shape [6]; pass a score "
        "in [0, 1], for example score=lambda output, y: ((output.squeeze(-1) > 0) == (y > 0)).float()",
    ),
    (
        lambda: regression(lambda y: y[:, 0], outputs=1, score=accuracy),
        "score of task own: cannot tell outputs apart: it returned 0 for the outputs of the model, for random and "
        "constant ones, and for the targets themselves; pass a score in [0, 1], for example score=lambda output, y: "
        "1 / (1 + (output.squeeze(-1) - y).pow(2))",
    ),
    (
        lambda: task(score=lambda output, y: (y == 0).float()),
        "it returned the same values for the outputs of the model",
    ),
    (
        lambda: task(score=lambda output, y: torch.full((len(y),), 0.5)),
        "it returned 0.5 for the outputs of the model, for random and constant ones, and for the targets themselves; "
        "pass score=lambda output, y: (output.argmax(1) == y).float(), one value in [0, 1] per sample",
    ),
]


@pytest.mark.parametrize(("own", "sentence"), REFUSALS)
def test_score_without_information_is_refused(own: Callable[[], Task], sentence: str) -> None:
    refused = own()
    with pytest.raises(TaskError) as error:
        probe_task(refused, (refused.data(None),))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("own", "sentence"), REFUSALS[:5])
def test_line_of_the_refusal_is_accepted(own: Callable[[], Task], sentence: str) -> None:
    refused = own()
    score = eval("lambda" + sentence.partition("score=lambda")[2])
    accepted = task(refused.model, data=refused.data, loss=refused.loss, score=score)
    probe_task(accepted, (accepted.data(None),))


class Pair(nn.Module):
    """A model that returns logits and a further tensor, which the targets do not contain."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, 16)
        self.head = nn.Linear(16, CLASSES + 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output = self.head(self.body(x).relu())
        return output[:, :CLASSES], output[:, CLASSES:, None]


def pair_loss(output: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    return F.cross_entropy(output[0], y) + output[1].square().mean()


def strict(output: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """Return 0 for every output that the dry run can make."""
    return ((output[1] - 700).abs().amax((1, 2)) < 1).float() * (y >= 0)


def likelihood(output: Tensor, y: Tensor) -> Tensor:
    """Return the probability of the target. It raises an exception for logits that are not in [0, 1]."""
    return (-F.binary_cross_entropy(output.sigmoid().round(decimals=1)[:, 0], y.float(), reduction="none")).exp()


ACCEPTED: dict[str, Callable[[], Task]] = {
    "exponential": lambda: regression(score=lambda output, y: torch.exp(-1e6 * (output - y).square().mean(1))),
    "tolerance": lambda: regression(score=lambda output, y: ((output - y).abs().amax(1) < 1e-3).float()),
    "saturated": lambda: regression(score=lambda output, y: (output.abs() < 4).all(1).float()),
    "one logit": lambda: regression(above_zero, 1, score=lambda output, y: ((output[:, 0] > 0) == y).float()),
    "probabilities": lambda: regression(above_zero, 1, score=likelihood),
    "confident": lambda: task(score=lambda output, y: (output.softmax(1).gather(1, y[:, None])[:, 0] > 0.99).float()),
    "exact match": lambda: causal_task(score=lambda output, y: (output.argmax(2) == y).all(1).float()),
    "two outputs": lambda: task(Pair, {"a": "body"}, loss=pair_loss, score=lambda output, y: accuracy(output[0], y)),
    "two outputs, strict": lambda: task(Pair, {"a": "body"}, loss=pair_loss, score=strict),
}


@pytest.mark.parametrize("own", ACCEPTED.values(), ids=ACCEPTED)
def test_score_that_is_constant_at_the_start_is_accepted(own: Callable[[], Task]) -> None:
    accepted = own()
    probe_task(accepted, (accepted.data(None),))
