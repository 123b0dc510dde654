"""The check of pairs: a loss or a score that broadcasts outputs against targets is refused, others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Task
from tests.networks.tasks.models import CLASSES, FEATURES, features, task


def column_task(
    loss: Any, score: Any = None, targets: Callable[[Tensor], Tensor] = lambda y: y, outputs: int = 1, **options: Any
) -> Task:
    """Return a task whose outputs are [B, 1], with the first input as the target, [B], changed by a function."""

    def data(_: Path | None = None) -> Splits:
        return Splits(**{name: (x, targets(x[:, 0])) for name, (x, _) in vars(features()).items()})

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, outputs))

    return task(model, {"a": "1"}, data, loss=loss, score=score or closeness, **options)


def squared(output: Tensor, y: Tensor) -> Tensor:
    return (output - y.reshape(output.shape)).pow(2).flatten(1).mean(1)


def closeness(output: Tensor, y: Tensor) -> Tensor:
    return 1 / (1 + squared(output, y))


def is_above(y: Tensor) -> Tensor:
    return (y > 0).float()


def hits_of_column(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(1) == y).float().mean(1)


def cross_entropy_of_column(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y.squeeze(1))


def ranked(output: Tensor, y: Tensor) -> Tensor:
    """Return a loss of all pairs of samples, whose value for one sample is that of a tie."""
    return F.softplus((output - output.T) * (y - y[:, None]).sign()).mean()


def balanced(output: Tensor, y: Tensor) -> Tensor:
    losses = F.binary_cross_entropy_with_logits(output.squeeze(-1), y, reduction="none")
    return (losses * y).sum() / y.sum().clamp(min=1) + (losses * (1 - y)).sum() / (1 - y).sum().clamp(min=1)


def of_means(output: Tensor, y: Tensor) -> Tensor:
    """Return a loss of the batch as a whole, whatever the pairs of outputs and targets are."""
    return (output.mean() - y.mean()).pow(2) + 1


def distance(output: Tensor, y: Tensor) -> Tensor:
    """Return the energy distance between the outputs and the targets of a batch."""
    x, z = output, y[:, None]
    return 2 * (x - z.T).abs().mean() - (x - x.T).abs().mean() - (z - z.T).abs().mean() + 1


def contrastive(output: Tensor, y: Tensor) -> Tensor:
    """Return the loss of finding the own target among those of the batch."""
    return F.cross_entropy(-(output - y[None]).abs(), torch.arange(len(y)))


class Named(nn.Module):
    """A model that returns its output [B, 1] and its features by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x).relu()
        return {"value": self.head(features), "features": features}


def named_task() -> Task:
    """Return a task with targets by name, [B], whose loss adds a term without targets."""

    def data(_: Path | None = None) -> Splits:
        return Splits(**{name: (x, {"value": x[:, 0]}) for name, (x, _) in vars(features()).items()})

    def loss(output: dict[str, Tensor], y: dict[str, Tensor]) -> Tensor:
        return (output["value"] - y["value"]).abs().mean() + output["features"].square().mean()

    def score(output: dict[str, Tensor], y: dict[str, Tensor]) -> Tensor:
        return closeness(output["value"], y["value"])

    return task(Named, {"a": "body"}, data, loss=loss, score=score)


SHAPES = "the output is torch.float32 of shape [8, 1], and the targets are torch.float32 of shape [8]; "
ADVICE = "use y.reshape(output.shape) in place of y"
REFUSED: dict[str, tuple[Callable[[], Task], str]] = {
    "values": (lambda: column_task(lambda output, y: (output - y).pow(2).flatten(1).mean(1)), f"loss {SHAPES}{ADVICE}"),
    "matrix": (lambda: column_task(lambda output, y: (output - y).abs()), f"loss {SHAPES}{ADVICE}"),
    "mean": (lambda: column_task(F.mse_loss), f"loss {SHAPES}{ADVICE}"),
    "root": (lambda: column_task(lambda output, y: F.mse_loss(output, y).sqrt()), f"loss {SHAPES}{ADVICE}"),
    "relative": (lambda: column_task(lambda output, y: (output - y).pow(2).mean() / y.var()), f"loss {SHAPES}{ADVICE}"),
    "score": (
        lambda: column_task(squared, lambda output, y: 1 / (1 + (output - y).pow(2).mean(1) / 8)),
        f"score {SHAPES}{ADVICE}",
    ),
    "binary": (
        lambda: column_task(balanced, lambda output, y: ((output > 0) == (y > 0)).float().flatten(1).mean(1), is_above),
        f"score {SHAPES}{ADVICE}",
    ),
    "metric": (
        lambda: column_task(squared, metrics={"error": lambda output, y: (output - y).abs().mean(1)}),
        f"metrics['error'] {SHAPES}{ADVICE}",
    ),
    "one side squeezed": (
        lambda: column_task(lambda output, y: (output[:, 0] - y).pow(2).mean(1), targets=lambda y: y[:, None]),
        "loss the output is torch.float32 of shape [8, 1], and the targets are torch.float32 of shape [8, 1]; give "
        "both sides of each operation the same shape",
    ),
    "dicts": (
        named_task,
        "loss the output is a dict with the shapes [8, 1] and [8, 4], and the targets are a dict with the shapes [8]; "
        "give both sides of each operation the same shape",
    ),
    "classes in a column": (
        lambda: column_task(cross_entropy_of_column, hits_of_column, lambda y: (y[:, None] > 0).long(), CLASSES),
        "score the output is torch.float32 of shape [8, 5], and the targets are torch.int64 of shape [8, 1]; give both "
        "sides of each operation the same shape",
    ),
}


@pytest.mark.parametrize(("own", "sentence"), REFUSED.values(), ids=REFUSED)
def test_function_that_pairs_outputs_with_all_targets_is_refused(own: Callable[[], Task], sentence: str) -> None:
    refused = own()
    with pytest.raises(TaskError) as error:
        probe_task(refused, (refused.data(None),))
    text = str(error.value)
    field, _, shapes = sentence.partition(" ")
    assert text.startswith(
        f"{field} of task own: pairs each output with the targets of all samples (broadcasting), and"
    )
    assert " for samples alone, and " in text
    assert text.endswith(shapes)
    assert "\n" not in text


ACCEPTED: dict[str, Callable[[], Task]] = {
    "reshaped": lambda: column_task(squared),
    "squeezed": lambda: column_task(lambda output, y: F.mse_loss(output.squeeze(-1), y)),
    "root": lambda: column_task(lambda output, y: F.mse_loss(output[:, 0], y).sqrt()),
    "relative": lambda: column_task(lambda output, y: F.mse_loss(output[:, 0], y) / y.var()),
    "balanced classes": lambda: column_task(balanced, targets=is_above),
    "ranking": lambda: column_task(ranked),
    "means": lambda: column_task(of_means),
    "distribution": lambda: column_task(distance),
    "contrastive": lambda: column_task(contrastive),
    "own target only": lambda: column_task(lambda output, y: output.pow(2).mean() + 1),
    "whole batch in the score": lambda: column_task(
        squared, lambda output, y: (output[:, 0].argsort().argsort() == y.argsort().argsort()).float()
    ),
}


@pytest.mark.filterwarnings("error:Using a target size")  # of calls that the user's code does not make
@pytest.mark.parametrize("own", ACCEPTED.values(), ids=ACCEPTED)
def test_function_that_depends_on_the_batch_otherwise_is_accepted(own: Callable[[], Task]) -> None:
    accepted = own()
    probe_task(accepted, (accepted.data(None),))


def test_lines_of_the_documentation_are_accepted() -> None:
    page = (Path(__file__).parents[3] / "docs" / "your-own-network.md").read_text()
    code = next(part for part in page.split("```python\n") if part.startswith("def loss(")).partition("```")[0]
    names: dict[str, Any] = {}
    exec(code.partition("\nscore = lambda output, y: ((")[0], names)
    written = column_task(names["loss"], names["score"])
    probe_task(written, (written.data(None),))
