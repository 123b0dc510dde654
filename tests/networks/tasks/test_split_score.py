"""Scores of a whole split: their values, the spread of their parts, and requests that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.networks.tasks.losses import as_score
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.split_score import SplitScore, over_split
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Chance, Task
from tests.networks.tasks.models import FEATURES, features, task


def rmse(output: Tensor, y: Tensor) -> Tensor:
    return (output.squeeze(1) - y).pow(2).mean().sqrt()


def area_under_curve(output: Tensor, y: Tensor) -> Tensor:
    """Return the fraction of pairs of one sample of each class that are in the right order; a tie is half."""
    positive, negative = output[y == 1, None], output[None, y == 0]
    return ((positive > negative).float() + (positive == negative).float() / 2).mean()


class MeanSquaredError(nn.Module):
    """A metric with the methods of those of torchmetrics."""

    higher_is_better: bool | None = False

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(())
        self.count = 0

    def update(self, output: Tensor, y: Tensor) -> None:
        self.total = self.total + (output.squeeze(1) - y).pow(2).sum()
        self.count += len(y)

    def compute(self) -> Tensor:
        return self.total / self.count

    def reset(self) -> None:
        self.total, self.count = torch.zeros(()), 0


def regression(score: Any, **options: Any) -> Task:
    def data(_: object = None) -> Splits:
        return Splits(**{name: (x, 3 * x[:, 0]) for name, (x, _) in vars(features()).items()})

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1))

    return task(model, {"a": "1"}, data, loss=lambda output, y: (output.squeeze(1) - y).pow(2), score=score, **options)


RMSE = over_split(rmse, best="low", range=(0, None))


def test_value_is_that_of_all_batches() -> None:
    score = as_score(RMSE)
    outputs, y = torch.randn(50, 1), torch.randn(50)
    records, targets = score.record_all(zip(outputs.split(20), y.split(20), strict=True))
    assert torch.equal(score.samples(records, targets), rmse(outputs, y).reshape(1))


def test_parts_of_a_mean_are_the_means_of_its_groups() -> None:
    """The jackknife's pseudo-values of a mean are the means of the groups that it leaves out."""
    values = torch.randn(200, dtype=torch.float64).float()
    parts = as_score(over_split(lambda output, _: output.mean(), range=(None, 1))).parts([values], [values])
    torch.testing.assert_close(parts, torch.stack([values[group::20].mean() for group in range(20)]), rtol=0, atol=1e-5)


def test_outputs_may_have_several_parts_and_scalars() -> None:
    """Of a model that returns its loss beside its outputs, for example."""
    outputs, y, loss = torch.randn(50, 1), torch.randn(50), torch.zeros(())
    score = as_score(over_split(lambda output, y: rmse(output["values"], y), best="low", range=(0, None)))
    batches = ({"values": values, "loss": loss} for values in outputs.split(20))
    parts = score.parts(*score.record_all(zip(batches, y.split(20), strict=True)))
    torch.testing.assert_close(parts.mean(), rmse(outputs, y))


def test_spread_of_the_parts_is_the_standard_error() -> None:
    """Of the RMSE of normal errors with variance 1, which is √(1 / 2 N)."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(20):
        errors = torch.randn(400, 1, generator=generator)
        parts = as_score(RMSE).parts([errors], [torch.zeros(400)])
        torch.testing.assert_close(parts.mean(), rmse(errors, torch.zeros(400)))
        found.append(float(parts.std() / math.sqrt(len(parts))))
    assert sum(found) / len(found) == pytest.approx(math.sqrt(1 / 800), rel=0.1)


def test_metric_object_is_computed_anew_each_time() -> None:
    score = as_score(over_split(MeanSquaredError(), range=(0, None)))
    assert isinstance(RMSE, SplitScore)
    for _ in range(2):
        assert float(score(torch.tensor([[3.0], [0.0]]), torch.tensor([1.0, 0.0]))) == 2.0


def test_metrics_of_torchmetrics_are_used_as_they_are() -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    metric = over_split(classification.BinaryAUROC())
    output, y = torch.rand(40, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 2
    assert metric.scale.is_plain
    torch.testing.assert_close(as_score(metric)(output, y), area_under_curve(output, y))


def test_dry_run_measures_chance_in_the_unit_of_the_score() -> None:
    of_rmse = regression(RMSE)
    profile = probe_task(of_rmse, (of_rmse.data(None),))
    _, y = of_rmse.data(None).validation
    assert profile.chance.score == pytest.approx(float(y.std()), rel=0.1)


@pytest.mark.parametrize(
    ("score", "problem"),
    [
        (over_split(lambda output, y: output - y[:, None]), r"tensor of shape \[\d+, 1\]; return one number"),
        (over_split(lambda *_: "0.5"), "returned a str; return one number"),
        (
            over_split(rmse),
            r"returned \d.*; scores must lie in \[0, 1\]; pass its range= and best= to esper.over",
        ),
        (over_split(rmse, best="low", range=(None, 9)), "lowest value is the best one and has no limit"),
        (over_split(lambda output, _: output.mean() * 0, range=(None, 1)), "cannot tell outputs apart"),
        (over_split(lambda output, y: (output - y).pow(2).mean().sqrt(), best="low", range=(0, None)), "broadcasting"),
        (rmse, "return one float each, .*or pass esper.over_split"),
    ],
)
def test_wrong_score_is_refused_in_the_dry_run(score: Any, problem: str) -> None:
    wrong = regression(score)
    with pytest.raises(TaskError, match=problem):
        probe_task(wrong, (wrong.data(None),))


def test_chance_that_is_as_good_as_the_best_score_is_refused() -> None:
    perfect = regression(RMSE, chance=Chance(loss=1.0, score=0.0))
    with pytest.raises(TaskError, match="constant output, 0, is as good as the best one in range=; pass another"):
        probe_task(perfect, (perfect.data(None),))


def undirected() -> MeanSquaredError:
    metric = MeanSquaredError()
    metric.higher_is_better = None
    return metric


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: over_split(0.5), "needs a function of all outputs and targets, not a float"),  # pyright: ignore
        (lambda: over_split(rmse, best="small"), 'best must be "high" or "low", not \'small\''),
        (lambda: over_split(rmse, range=(1, 0)), r"range must be \(lowest, highest\), got \(1, 0\)"),
        (lambda: over_split(undirected()), "does not say which values are better; pass best="),
        (lambda: regression(MeanSquaredError()), r"score is a metric of a whole split; pass esper.over_split\(Mean"),
        (lambda: replace(regression(RMSE), metrics={"mse": MeanSquaredError()}), "mse is a metric of a whole split"),
    ],
)
def test_wrong_request_is_refused_when_the_task_is_made(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
