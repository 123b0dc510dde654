"""Check of the last batch of an epoch, which may be too small for the model."""

from __future__ import annotations

import torch

from esper.config import TaskError
from esper.growth.network import call_model, count_samples
from esper.tasks.hosts import build_host
from esper.tasks.losses import loss_of, score_of
from esper.tasks.splits import Splits, take
from esper.tasks.task import Task
from esper.user_code import describe_exception

_SEED = 0
_SMALL_BATCH = 4
"""Number of samples from which on a batch is not checked, because other dry runs are as small."""


def check_last_batch(task: Task, splits: Splits, where: str) -> None:
    """Run the model in training mode on a small last batch. Batch norm, for example, may need two samples.

    Args:
        where: Field `batch_size` and name of the task, for the message.

    Raises:
        TaskError: Model, loss or score raise an exception.
    """
    samples = task.count_epoch_samples(count_samples(splits.train[0]))
    last = samples % task.batch_size or task.batch_size
    if last >= _SMALL_BATCH:
        return
    host = build_host(task, _SEED, 0, 0)
    host.model.train()
    for module in host.frozen:
        module.training = False
    x, y = take(splits.train, torch.arange(last))
    try:
        with torch.no_grad():
            output = call_model(host.model, x)
            loss_of(task).mean(output, y)
            score_of(task)(output, y)
    except Exception as error:
        sizes = f"{samples} samples in batches of {task.batch_size} leave {last} for the last one"
        problem = f"{sizes}, which fails: {describe_exception(error)}"
        raise TaskError(f"{where}: {problem}; change batch_size or samples_per_epoch") from error
