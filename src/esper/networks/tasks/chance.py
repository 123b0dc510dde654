"""Chance: loss and score of a constant output, measured on the validation split.

Shapes: B samples, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.networks.seeds.outputs import Nested, map_tensors
from esper.networks.tasks.losses import CrossEntropy, loss_of, score_of
from esper.networks.tasks.task import Chance, Task


def measure_chance(task: Task, output: Nested, targets: Nested) -> Chance:
    """Return loss and score of the best of a few constant outputs.

    Args:
        output: Output of a host for a batch of the validation split.
    """
    loss, score = loss_of(task), score_of(task)
    found = [
        Chance(loss=float(loss.mean(constant, targets)), score=float(score(constant, targets).mean()))
        for constant in _constant_outputs(output, targets, is_classified=isinstance(loss, CrossEntropy))
    ]
    return min(found, key=lambda chance: chance.loss)


def _constant_outputs(output: Nested, targets: Nested, *, is_classified: bool) -> list[Nested]:
    """Return outputs that are the same for all samples: the mean output, the mean target, the class frequencies."""

    def mean_row(tensor: Tensor) -> Tensor:
        return tensor.float().mean(0, keepdim=True).expand(tensor.shape) if tensor.is_floating_point() else tensor

    found = [map_tensors(mean_row, output)]
    if isinstance(output, Tensor) and isinstance(targets, Tensor):
        if targets.is_floating_point() and targets.shape == output.shape:
            found.append(mean_row(targets))
        if is_classified and output.shape[:-1] == targets.shape:
            frequencies_K = torch.bincount(targets[targets >= 0], minlength=output.shape[-1]).float() + 1e-6
            found.append((frequencies_K / frequencies_K.sum()).log().expand(output.shape))
    return found
