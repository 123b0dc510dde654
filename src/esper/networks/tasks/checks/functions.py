"""Checks of a task's loss, score, metrics and augmentation, of the targets in its data, and of its last batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.common.score_scale import ScoreScale
from esper.common.seeding import make_generator
from esper.common.user_code.references import describe_exception, describe_type, user_errors
from esper.networks.seeds.network import call_model, count_samples
from esper.networks.seeds.outputs import Nested
from esper.networks.tasks.checks.scores import check_default_score, check_sensitivity
from esper.networks.tasks.hosts import build_host
from esper.networks.tasks.losses import (
    IGNORED_TARGET,
    CollectedScore,
    CrossEntropy,
    Score,
    as_score,
    loss_of,
    score_of,
)
from esper.networks.tasks.per_sample import PerSample
from esper.networks.tasks.splits import Split, Splits, examples, take
from esper.networks.tasks.task import Task
from esper.networks.tasks.user_calls import UserCalls, describe_value

_SEED = 0
_SMALL_BATCH = 4
"""Number of samples from which on a last batch is not checked, because other dry runs are as small."""


@torch.no_grad()
def check_functions(task: Task, model: nn.Module, splits: Splits, batch: Split) -> None:
    """Call the loss, the score and the metrics of a task, and check their results and the targets of all splits.

    Raises:
        TaskError: A function raises an exception or returns a wrong result, or the targets are wrong.
    """
    user = UserCalls(task)
    x, y = batch
    output = user.call_model(model.eval(), x)
    _check_classes(user, task, splits, output)
    loss = cast("object", user.call_twice("loss", loss_of(task).mean, output, y))
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        raise user.error("loss", f"returned {describe_value(loss)}; return floats [B] or their mean")
    check_default_score(task, output, y)
    score = _call_score(user, "score", score_of(task), output, y)
    _check_range(user, task.score_scale, score)
    check_sensitivity(task, output, y, score)
    for name, metric in task.metrics.items():
        _call_score(user, f"metrics[{name!r}]", as_score(metric), output, y)


def check_augment(task: Task, model: nn.Module, splits: Splits) -> None:
    """Augment one batch, if the task does, and compute the loss and the score of the result, as in training.

    The result may have other shapes and types than the batch, if model, loss and score accept them.

    Raises:
        TaskError: The augmentation raises an exception, or its result cannot be trained on.
    """
    augment, user = task.augment, UserCalls(task)
    if augment is None or isinstance(augment, PerSample):  # the other checks had transformed samples
        return
    size = min(task.batch_size, task.count_epoch_samples(count_samples(splits.train[0])))
    x, y = take(splits.train, torch.arange(size))

    def augment_batch(x: Nested, y: Nested) -> Any:
        return augment(x, y, make_generator(_SEED, "augmentation"))

    result = user.call_twice("augment", augment_batch, x, y)
    if not isinstance(result, tuple | list) or len(cast("Sequence[Any]", result)) != 2:
        found = describe_type(cast("object", result))
        raise user.error("augment", f"returned {found}; return a pair, inputs and targets")
    inputs, targets = cast("Sequence[Any]", result)
    try:
        _measure(task, model.eval(), inputs, targets)
    except user_errors() as error:
        problem = f"its result cannot be trained on: {describe_exception(error)}"
        raise user.error("augment", problem) from error


def check_last_batch(task: Task, splits: Splits) -> None:
    """Run the model in training mode on a small last batch. Batch norm, for example, may need two samples.

    Raises:
        TaskError: Model, loss or score raise an exception.
    """
    samples = task.count_epoch_samples(count_samples(splits.train[0]))
    last = samples % task.batch_size or task.batch_size
    if last >= _SMALL_BATCH:
        return
    host = build_host(task, _SEED, 0, 0)
    host.set_mode(is_training=True)
    try:
        _measure(task, host.model, *take(splits.train, torch.arange(last)))
    except user_errors() as error:
        sizes = f"{samples} samples in batches of {task.batch_size} leave {last} for the last one"
        problem = f"{sizes}, which fails: {describe_exception(error)}; change batch_size or samples_per_epoch"
        raise UserCalls(task).error("batch_size", problem) from error


@torch.no_grad()
def _measure(task: Task, model: nn.Module, inputs: Nested, targets: Nested) -> None:
    output = call_model(model, inputs)
    loss_of(task).mean(output, targets)
    score_of(task)(output, targets)


def _call_score(user: UserCalls, field: str, score: Score, output: Nested, targets: Nested) -> Tensor:
    """Return the values of a score or metric after checking that they are one float for each sample, or one number."""
    values = cast("object", user.call_twice(field, score, output, targets))
    if isinstance(score, CollectedScore):
        return cast("Tensor", values)  # a scalar: `CollectedScore` refuses other values
    samples = count_samples(targets)
    if not isinstance(values, Tensor) or values.shape != (samples,) or not values.is_floating_point():
        advice = "return one float each, [B], or pass esper.over_split(function) for one value of all samples"
        raise user.error(field, f"returned {describe_value(values)} for {samples} samples; {advice}")
    return values


def _check_range(user: UserCalls, scale: ScoreScale, values: Tensor) -> None:
    """Check that values of the score lie in its range, and that the reward has a best value to compare them with."""
    if scale.best_possible is None:
        limit = "highest" if scale.best == "high" else "lowest"
        problem = f"its {limit} value is the best one and has no limit, so it cannot be rewarded"
        raise user.error("score", f"{problem}; pass range= with this limit, or a score that has one")
    low, high = scale.limits
    if not bool(((values >= low) & (values <= high)).all()):
        found = f"{values.min():.3g}" if values.dim() == 0 else f"{values.min():.3g} to {values.max():.3g}"
        advice = "" if scale.is_plain and values.dim() else "; pass its range= and best= to esper.over_split"
        raise user.error("score", f"returned {found}; scores must lie in [{low:g}, {high:g}]{advice}")


def _check_classes(user: UserCalls, task: Task, splits: Splits, output: Nested) -> None:
    """Check the labels of all splits, if the loss is the cross-entropy."""
    if not isinstance(loss_of(task), CrossEntropy) or not isinstance(output, Tensor):
        return
    for name, split in vars(splits).items():
        _, labels = examples(split)
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype is torch.bool:
            needed = "must be class indices, integers; for other targets, pass a loss and a score"
            raise user.error("data", f"the targets of the split {name!r} {needed}")
        if labels.dim() + 1 != output.dim():
            shapes = f"{list(labels.shape[1:])} per sample, and the output has {list(output.shape[1:])}"
            raise user.error("data", f"the targets of the split {name!r} have shape {shapes}")
        axis = -1 if output.shape[1:-1] == labels.shape[1:] else 1
        is_counted = labels != IGNORED_TARGET
        if not bool(is_counted.reshape(len(labels), -1).any(1).all()):
            problem = f"the split {name!r} has samples whose targets are all {IGNORED_TARGET}; leave them out"
            raise user.error("data", problem)
        counted = labels[is_counted]
        if not 0 <= int(counted.min()) <= int(counted.max()) < output.shape[axis]:
            found = f"{int(counted.min())} to {int(counted.max())}, and the model has {output.shape[axis]} outputs"
            raise user.error("data", f"the targets of the split {name!r} are {found}")
