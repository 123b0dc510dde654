"""Headroom of a task family: how much a policy can gain over the best constant plan by knowing the context.

Every plan plays every context in two orders: other initial weights and another data order, the same context. The best
plan is chosen by the returns of one order and scored by those of the other, because a maximum flatters the returns that
chose it.

Shapes: O orders (two), C contexts, P plans, F features, N rows: one for each context and order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from esper.evaluation.intervals import IntervalEstimate, t_interval

Array: TypeAlias = NDArray[np.float64]

RESAMPLES = 2000
"""Number of resamples of a bootstrap interval."""
FOLDS = 8
"""Number of parts of the contexts for the choice of the ridge penalty."""
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Ridge penalties to choose from."""


def headroom(return_OCP: Array, seed: int = 0) -> IntervalEstimate:
    """Return the gain of the best plan for each context over the best plan for all contexts.

    Both plans are chosen on one order and scored on the other; the gain is the mean of both directions. The interval is
    the percentile interval of a bootstrap over contexts (Efron, 1979), with the plans chosen anew in each resample.

    Args:
        return_OCP: Net returns.
        seed: Random seed of the resamples.
    """
    contexts = return_OCP.shape[1]
    generator = np.random.default_rng(seed)
    drawn = generator.integers(contexts, size=(RESAMPLES, contexts))
    resampled = [_mean_headroom(return_OCP[:, chosen]) for chosen in drawn]
    low, high = np.percentile(resampled, (2.5, 97.5))
    return IntervalEstimate(mean=_mean_headroom(return_OCP), low=float(low), high=float(high))


def _mean_headroom(return_OCP: Array) -> float:
    gains: list[float] = []
    for chosen_CP, scored_CP in (return_OCP, return_OCP[::-1]):
        rows = np.arange(len(chosen_CP))
        best = scored_CP[rows, chosen_CP.argmax(axis=1)].mean()
        gains.append(float(best - scored_CP[:, best_plan(chosen_CP)].mean()))
    return sum(gains) / 2


def best_plan(return_CP: Array) -> int:
    """Return the index of the plan with the highest mean return over the contexts, [C, P]."""
    return int(return_CP.mean(axis=0).argmax())


def predicted_gain(
    feature_OCF: Array, return_OCP: Array, kernel: str, plans: Sequence[int] | None = None
) -> IntervalEstimate:
    """Return the gain over the best plan for all of a predictor that chooses the plan of each context.

    Kernel ridge regression predicts the return of each plan from features of the context (Hastie et al., 2009, section
    5.8), fitted to all other contexts. It reads the features of one order; the plan that it chooses is scored on both.
    Its penalty is chosen by cross-validation within the other contexts. The best plan for all is that of the
    other contexts, too. The interval is Student's t interval over contexts.

    Args:
        feature_OCF: Features of each context, as they were measured in each order.
        return_OCP: Net returns.
        kernel: `linear` or `rbf`.
        plans: Indices of the plans that the predictor can choose from; None: all.
    """
    contexts = return_OCP.shape[1]
    choices = list(range(return_OCP.shape[2]) if plans is None else plans)
    gains: list[float] = []
    for context in range(contexts):
        others = [other for other in range(contexts) if other != context]
        fitted = _fit(feature_OCF[:, others], return_OCP[:, others], kernel)
        constant = best_plan(return_OCP[:, others].mean(axis=0))
        for order in (0, 1):
            predicted_P = fitted(feature_OCF[order, [context]])[0]
            chosen = choices[int(predicted_P[choices].argmax())]
            difference_O = return_OCP[:, context, chosen] - return_OCP[:, context, constant]
            gains.append(float(difference_O.mean()))
    gain_C = np.asarray(gains).reshape(contexts, 2).mean(axis=1)
    return t_interval(gain_C.tolist())


class _Ridge:
    """Kernel ridge regression of the returns of all plans, with features scaled to unit variance."""

    def __init__(self, feature_NF: Array, return_NP: Array, kernel: str, penalty: float) -> None:
        self._center, spread = feature_NF.mean(axis=0), feature_NF.std(axis=0)
        self._scale = np.where(spread > 0, spread, 1.0) * math.sqrt(feature_NF.shape[1])
        self._mean_P = return_NP.mean(axis=0)
        self._kernel = kernel
        self._known_NF = self._scaled(feature_NF)
        gram = self._similarity(self._known_NF)
        self._weights_NP: Array = np.linalg.solve(gram + penalty * np.eye(len(gram)), return_NP - self._mean_P)

    def __call__(self, feature_NF: Array) -> Array:
        return self._similarity(self._scaled(feature_NF)) @ self._weights_NP + self._mean_P

    def _scaled(self, feature_NF: Array) -> Array:
        return (feature_NF - self._center) / self._scale

    def _similarity(self, feature_NF: Array) -> Array:
        products: Any = feature_NF @ self._known_NF.T
        if self._kernel == "linear":
            return products
        squares = (feature_NF**2).sum(axis=1)[:, None] + (self._known_NF**2).sum(axis=1) - 2 * products
        return np.exp(-squares / 2)


def _fit(feature_OCF: Array, return_OCP: Array, kernel: str) -> _Ridge:
    """Fit a ridge regression with the penalty that has the smallest error on contexts that were left out."""
    contexts = feature_OCF.shape[1]

    def rows(values: Array, chosen: Any) -> Array:
        return values[:, chosen].reshape(-1, values.shape[2])

    def error(penalty: float) -> float:
        total = 0.0
        for fold in range(FOLDS):
            left_out = np.array([context % FOLDS == fold for context in range(contexts)])
            ridge = _Ridge(rows(feature_OCF, ~left_out), rows(return_OCP, ~left_out), kernel, penalty)
            misses = ridge(rows(feature_OCF, left_out)) - rows(return_OCP, left_out)
            total += float((misses**2).sum())
        return total

    everything = np.ones(contexts, dtype=bool)
    return _Ridge(rows(feature_OCF, everything), rows(return_OCP, everything), kernel, min(PENALTIES, key=error))
