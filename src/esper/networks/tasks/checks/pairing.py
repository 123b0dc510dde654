"""Check of loss, score and metrics for broadcasting: an output [B, 1] minus targets [B] gives [B, B].

Such a function pairs the output of each sample with the targets of all samples, and a model cannot learn from it.

Shapes: B samples of a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from esper.common.user_code.references import user_errors
from esper.networks.seeds.network import count_samples
from esper.networks.seeds.outputs import Nested, are_equal, list_tensors, map_tensors
from esper.networks.tasks.losses import as_score, loss_of, score_of
from esper.networks.tasks.splits import Split, take
from esper.networks.tasks.task import SampleFunction, Task
from esper.networks.tasks.user_calls import UserCalls, describe_value

_TOLERANCE = 1e-5
"""Maximum relative difference between values that count as equal."""


@torch.no_grad()
def check_pairing(task: Task, model: nn.Module, batch: Split) -> None:
    """Refuse a loss, a score or a metric that pairs the output of each sample with the targets of all samples.

    A value that depends on the other samples of the batch for another reason is accepted, as that of a weighted mean
    or of a contrastive loss.

    Args:
        model: Model in evaluation mode, with perturbed weights: outputs that are equal would hide the pairs.

    Raises:
        TaskError: The message has the shapes of output and targets, and the value of samples alone and in the batch.
    """
    user, (x, targets) = UserCalls(task), batch
    output = user.call_model(model, x)
    tensors = list_tensors([output, targets])
    is_by_sample = all(tensor.dim() and len(tensor) == count_samples(targets) for tensor in tensors)
    can_broadcast = len({tensor.shape for tensor in tensors}) > 1 or any(1 in tensor.shape[1:] for tensor in tensors)
    if not (is_by_sample and can_broadcast) or are_equal(output, _rolled(output)):
        return
    functions: dict[str, SampleFunction] = {"loss": loss_of(task).mean, "score": score_of(task)}
    functions |= {f"metrics[{name!r}]": as_score(metric) for name, metric in task.metrics.items()}
    for field, function in functions.items():
        together = user.call(field, partial(function, output, targets)).double()
        if values := _values_of_pairs(function, output, targets, together):
            found = f"{values[0]:.3g} for samples alone, and {values[1]:.3g} for the same samples in a batch"
            shapes = f"the output is {_describe_shapes(output)}, and the targets are {_describe_shapes(targets)}"
            problem = (
                f"pairs each output with the targets of all samples (broadcasting), and returned {found}; {shapes}"
            )
            raise user.error(field, f"{problem}; {_advise(output, targets)}")


def _values_of_pairs(
    function: SampleFunction, output: Nested, targets: Nested, together: Tensor
) -> tuple[float, float] | None:
    """Return the mean values of samples alone and in the batch if the function pairs outputs with all targets.

    Then one output with the targets of all samples has the value that its sample has in the batch, or all outputs with
    one target have it. If the function returns a mean, their mean has, or that of their squares for a root of a mean.

    Args:
        together: Values of the function for the batch, [B], or their mean.
    """
    rows = torch.arange(count_samples(targets))[:, None]

    def each(call: Callable[[Tensor], Tensor], power: int = 1) -> Tensor:
        """Return the value of each sample; their mean if the function returns a mean; NaN if it raises an exception."""
        try:
            with warnings.catch_warnings(action="ignore"):  # PyTorch warns of the shapes, which are not the user's
                values = torch.stack([call(row).double().reshape(()) ** power for row in rows])
        except user_errors():  # for example of a function that does not accept fewer outputs than targets
            return torch.full_like(together, torch.nan)
        return values if together.dim() else values.mean()

    alone = each(lambda row: function(take(output, row), take(targets, row)))
    if _are_close(alone, together):
        return None
    for power in (1,) if together.dim() else (1, 2):
        of_outputs = each(lambda row: function(take(output, row), targets), power)
        of_targets = each(lambda row: function(output, take(targets, row)), power)
        if _are_close(of_outputs, together**power) or _are_close(of_targets, together**power):
            return float(alone.mean()), float(together.mean())
    return None


def _are_close(values: Tensor, others: Tensor) -> bool:
    return bool(((values - others).abs().max() <= _TOLERANCE * others.abs().max()).item())


def _rolled(output: Nested) -> Nested:
    return map_tensors(lambda tensor: tensor.roll(1, 0), output)


def _describe_shapes(value: Nested) -> str:
    shapes = " and ".join(str(list(tensor.shape)) for tensor in list_tensors(value))
    return describe_value(value) + ("" if isinstance(value, Tensor) else f" with the shapes {shapes}")


def _advise(output: Any, targets: Any) -> str:
    are_tensors = isinstance(output, Tensor) and isinstance(targets, Tensor)
    if are_tensors and output.shape != targets.shape and output.numel() == targets.numel():
        return "use y.reshape(output.shape) in place of y"
    return "give both sides of each operation the same shape"
