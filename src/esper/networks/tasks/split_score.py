"""Scores and metrics of a whole split, such as the area under the ROC curve or an RMSE. Needs no torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from esper.common.score_scale import ScoreScale
from esper.common.user_code.references import describe_type


@dataclass(frozen=True)
class SplitScore:
    """A score or metric of all outputs and targets of a split. `over_split` makes it."""

    function: Callable[[Any, Any], Any]
    """Function of all outputs and all targets that returns one number."""
    scale: ScoreScale


def over_split(
    function: Callable[[Any, Any], Any],
    *,
    best: str | None = None,
    range: tuple[float | None, float | None] = (0.0, 1.0),
) -> SplitScore:
    """Return a score or metric that is computed from all outputs and targets of a split at once.

    For quantities that are no mean over samples: AUC, F1, R², RMSE, perplexity. The outputs of all batches are kept
    until the end of the split, those of training batches too.

    Args:
        function: Function of all outputs and all targets, on the device of the data, that returns one number: a scalar
            tensor or a float. Or a metric of torchmetrics, an object with `update`, `compute` and `reset`.
        best: The better end of the range, "high" or "low". None: the metric says it with `higher_is_better`; "high"
            for a function.
        range: Lowest and highest possible value; None for no limit. The better end of a score needs a limit, because
            the reward is the skill: 0 for the score of a constant output, 1 for this limit. Values in (0, 1) are shown
            in percent.

    Returns:
        A value for `score` and `metrics` of a task.

    Raises:
        ValueError: An argument is not valid.
    """
    if is_metric(function):
        known = getattr(function, "higher_is_better", None)
        best = best or {True: "high", False: "low"}.get(cast("Any", known))
        if best is None:
            raise ValueError(f"over_split: {describe_type(function)} does not say which values are better; pass best=")
        function = _compute_with(function)
    elif not callable(function):
        raise ValueError(f"over_split needs a function of all outputs and targets, not {describe_type(function)}")
    best = best or "high"
    if best not in ("high", "low"):
        raise ValueError(f'over_split: best must be "high" or "low", not {best!r}')
    low, high = range
    if low is not None and high is not None and not low < high:
        raise ValueError(f"over_split: range must be (lowest, highest), got ({low}, {high})")
    return SplitScore(function, ScoreScale(best, low, high))


def is_metric(function: object) -> bool:
    """Return True for an object with the methods of a metric of torchmetrics."""
    return all(callable(getattr(function, name, None)) for name in ("update", "compute", "reset"))


def _compute_with(metric: Any) -> Callable[[Any, Any], Any]:
    def compute(outputs: Any, targets: Any) -> Any:
        own = copy.deepcopy(metric)  # several threads compute it at once
        own.reset()
        own.to(targets.device)
        own.update(outputs, targets)
        return own.compute()

    return compute
