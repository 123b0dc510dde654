"""Losses and scores, and how they are accumulated over the batches of an epoch.

Shapes: B samples of a batch, N samples of an epoch, K classes, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.common.user_code.references import describe_type
from esper.networks.seeds.network import count_samples
from esper.networks.seeds.outputs import Nested, concatenate, list_tensors, map_tensors
from esper.networks.tasks.split_score import SplitScore
from esper.networks.tasks.task import SampleFunction, Task

IGNORED_TARGET = -100
"""Target of a position that does not count, as in `F.cross_entropy`. Every sample needs a target that counts."""


_JACKKNIFE_GROUPS = 20
"""Number of groups of samples from which the spread of the score of a split is estimated."""


class Loss:
    """A loss, from a function that returns one value per sample or their mean.

    Called with output and targets, it returns the mean loss of a batch, a scalar, and raises TypeError if the function
    does not return a tensor. `Task(loss=…)` also accepts the function as it is.

    Args:
        function: Function of the model's output and the targets of a batch that returns floats [B], or a scalar that is
            their mean.
    """

    def __init__(self, function: Callable[[Any, Any], Tensor]) -> None:
        self._function = function

    def __call__(self, output: Any, targets: Any) -> Tensor:
        """Return the mean loss of a batch."""
        return self.mean(output, targets)

    def mean(self, output: Any, targets: Any) -> Tensor:
        """Return the mean loss of a batch, the scalar that is minimised.

        Raises:
            TypeError: The function does not return a tensor.
        """
        values = cast("object", self._function(output, targets))
        if not isinstance(values, Tensor):
            raise TypeError(f"the loss returned {describe_type(values)}; return a tensor, floats [B] or their mean")
        return values.mean()

    def total(self, output: Any, targets: Any) -> Tensor:
        """Return the loss of a batch, summed over its samples, a scalar."""
        return self.mean(output, targets) * count_samples(targets)

    def record(self, output: Any, mean: Tensor) -> Tensor:  # noqa: ARG002 (a subclass reads it)
        """Return the values of a batch that `epoch_mean` needs, without a gradient.

        Args:
            mean: Result of `mean`.
        """
        return mean.detach()

    def epoch_mean(self, records: Sequence[Tensor], targets: Sequence[Any]) -> Tensor:
        """Return the mean loss of an epoch, a scalar.

        Args:
            records: Result of `record` for each batch.
        """
        means, sizes = torch.stack(list(records)).float(), [count_samples(y) for y in targets]
        # All batches but the last have the same size. Numbers of Python need no copy to the device.
        return (means[:-1].sum() * sizes[0] + means[-1] * sizes[-1]) / sum(sizes)


def _mean_cross_entropy(output: Any, targets: Any) -> Tensor:
    """Return the mean over the targets that count; 0 if none does, where PyTorch's mean is NaN."""
    logits = _classes_second(output, targets)
    if output.dim() == 2:  # every target counts
        return F.cross_entropy(logits, targets)
    counted = (targets != IGNORED_TARGET).sum().clamp(min=1)
    return F.cross_entropy(logits, targets, reduction="sum") / counted


def _classes_second(logits: Tensor, targets: Tensor) -> Tensor:
    """Return logits with the axis of the classes moved to index 1, where PyTorch expects it.

    Raises:
        ValueError: The classes can be both the last axis and the second one.
    """
    if logits.dim() == 2 or logits.shape[:-1] != targets.shape:
        return logits
    if logits.shape[:1] + logits.shape[2:] == targets.shape:
        raise ValueError(
            f"the axis of the classes is ambiguous in logits {list(logits.shape)}, because there are as many positions "
            "as classes; write a loss and a score for this layout"
        )
    return logits.movedim(-1, 1)


class CrossEntropy(Loss):
    """The cross-entropy, averaged over samples and positions; positions with a target of −100 do not count.

    Outputs are logits [B, K], [B, T, K] or [B, K, …]; targets are class indices without the axis K. If T equals K, the
    layout is ambiguous, which is an error. The loss of an epoch with logits [B, K] is computed from the logits of all
    its samples at once, in float32.
    """

    def __init__(self) -> None:
        super().__init__(_mean_cross_entropy)

    def total(self, output: Any, targets: Any) -> Tensor:
        """Return the loss of a batch, summed over its samples, a scalar."""
        if output.dim() == 2:
            return F.cross_entropy(output, targets, reduction="sum")
        return super().total(output, targets)

    def record(self, output: Any, mean: Tensor) -> Tensor:
        """Return the logits for two axes, else the mean."""
        return output.detach() if output.dim() == 2 else mean.detach()

    def epoch_mean(self, records: Sequence[Tensor], targets: Sequence[Any]) -> Tensor:
        """Return the mean loss of an epoch, a scalar."""
        if records[0].dim() == 2:
            return F.cross_entropy(torch.cat(list(records)).float(), torch.cat(list(targets)))
        return super().epoch_mean(records, targets)


cross_entropy = CrossEntropy()
"""The cross-entropy, a `Loss`: the default of `Task.loss`, in nats.

Called with float logits [B, K], [B, T, K] or [B, K, …] and int64 class indices without the axis K, it returns the mean
over samples and positions, a scalar; positions with the target −100 do not count. If T equals K, the layout is
ambiguous, and it raises ValueError.
"""


def accuracy(output: Any, targets: Any) -> Tensor:
    """Return the accuracy of each sample, [B]: the fraction of its positions whose most probable class is the target.

    It is the default of `Task.score`.

    Args:
        output: Logits [B, K], [B, T, K] or [B, K, …] of B samples, K classes and T positions, floats.
        targets: Class indices, int64, without the axis K; positions with −100 do not count.

    Returns:
        Fractions in [0, 1], float32.

    Raises:
        ValueError: The layout is ambiguous, because there are as many positions as classes.
    """
    hits = (_classes_second(output, targets).argmax(dim=1) == targets).float()
    if hits.dim() == 1:
        return hits
    counted = (targets != IGNORED_TARGET).flatten(1)
    return (hits.flatten(1) * counted).sum(1) / counted.sum(1).clamp(min=1)


def loss_of(task: Task) -> Loss:
    """Return the loss of a task."""
    if task.loss is None:
        return cross_entropy
    return task.loss if isinstance(task.loss, Loss) else Loss(task.loss)


class Score:
    """A score or metric of a split: the mean of a function's values for its samples.

    Args:
        function: Function of output and targets of a batch that returns one float per sample, [B].
    """

    def __init__(self, function: SampleFunction) -> None:
        self.function = function

    def __call__(self, output: Any, targets: Any) -> Tensor:
        """Return the value of each sample of a batch, [B]; of `over_split`, that of all its samples, a scalar."""
        return self.function(output, targets)

    def record(self, output: Any, targets: Any) -> Nested:
        """Return what `samples` needs of a batch, without a gradient: the value of each sample, [B]."""
        return self(output, targets)

    def record_all(self, batches: Iterable[tuple[Nested, Nested]]) -> tuple[list[Nested], list[Nested]]:
        """Return the records and the targets of batches, given their outputs and targets."""
        records: list[Nested] = []
        targets: list[Nested] = []
        for output, y in batches:
            records.append(self.record(output, y))
            targets.append(y)
        return records, targets

    def samples(self, records: Sequence[Nested], targets: Sequence[Any]) -> Tensor:  # noqa: ARG002 (a subclass reads it)
        """Return the value of each sample of a split, [N]; of `over_split`, the only value, [1].

        Args:
            records: Result of `record` for each batch.
            targets: Targets of each batch.
        """
        return torch.cat(list(records))

    def parts(self, records: Sequence[Nested], targets: Sequence[Any]) -> Tensor:
        """Return values of parts of a split, whose mean is that of the split and whose spread tells how exact it is.

        Returns:
            The value of each sample, [N].
        """
        return self.samples(records, targets)


class CollectedScore(Score):
    """A score or metric of all outputs and targets of a split at once: that of `esper.over_split`."""

    def __init__(self, split_score: SplitScore) -> None:
        self.split_score = split_score

    def __call__(self, output: Any, targets: Any) -> Tensor:
        """Return the value of all samples, a scalar.

        Raises:
            TypeError: The function does not return one number.
        """
        value = cast("object", self.split_score.function(output, targets))
        if isinstance(value, Tensor) and value.numel() == 1:
            return value.detach().float().reshape(())
        if not isinstance(value, Real):
            found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else describe_type(value)
            raise TypeError(f"the function of over_split returned {found}; return one number for all samples")
        return torch.tensor(float(value), device=list_tensors(targets)[0].device)

    def record(self, output: Any, targets: Any) -> Nested:  # noqa: ARG002 (the base class reads them)
        """Return the output."""
        return map_tensors(Tensor.detach, output)

    def samples(self, records: Sequence[Nested], targets: Sequence[Any]) -> Tensor:
        """Return the value of the split, [1]."""
        return self(concatenate(records), concatenate(targets)).reshape(1)

    def parts(self, records: Sequence[Nested], targets: Sequence[Any]) -> Tensor:
        """Return the pseudo-values of a jackknife that leaves out one group of samples at a time (Tukey, 1958).

        Returns:
            [G], shifted so that their mean is the value of the split.
        """
        outputs, all_targets = concatenate(records), concatenate(targets)
        groups = min(_JACKKNIFE_GROUPS, count_samples(all_targets))

        def without(group: int) -> Tensor:
            def kept(tensor: Tensor) -> Tensor:
                if not tensor.dim():  # a scalar beside the outputs of the samples
                    return tensor
                return tensor[torch.arange(len(tensor), device=tensor.device) % groups != group]

            return self(map_tensors(kept, outputs), map_tensors(kept, all_targets))

        values_G = torch.stack([without(group) for group in range(groups)])
        return self(outputs, all_targets) - (groups - 1) * (values_G - values_G.mean())


def score_of(task: Task) -> Score:
    """Return the score of a task."""
    return as_score(accuracy if task.score is None else task.score)


def as_score(function: SampleFunction | SplitScore) -> Score:
    """Return a score or metric as `Task` accepts it, with the methods that are called for each batch."""
    return CollectedScore(function) if isinstance(function, SplitScore) else Score(function)
