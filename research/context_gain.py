"""Gain of knowing the context over the best constant plan: of the best plan for each context, and of predictors.

Every plan plays every context in two orders: other initial weights and another data order, the same context. The best
plan is chosen by the returns of one order and scored by those of the other, because a maximum flatters the returns that
chose it.

Shapes: O orders (two), C contexts, P plans, F features, N rows: one for each context and order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.kernel_ridge import KernelRidge

from esper.intervals import IntervalEstimate, t_interval

Array: TypeAlias = NDArray[np.float64]
Predictor: TypeAlias = Callable[[Array], Array]
"""Function that predicts the return of each plan, [N, P], from features, [N, F]."""

RESAMPLES = 2000
"""Number of resamples of a bootstrap interval."""
FOLDS = 8
"""Number of parts of the contexts for the choice of the ridge penalty."""
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Ridge penalties to choose from."""


def headroom(return_OCP: Array) -> IntervalEstimate:
    """Return the gain of the best plan for each context over the best plan for all contexts.

    Both plans are chosen on one order and scored on the other; the gain is the mean of both directions. The interval is
    the percentile interval of a bootstrap over contexts (Efron, 1979), with the plans chosen anew in each resample.

    Args:
        return_OCP: Net returns.
    """
    contexts = return_OCP.shape[1]
    generator = np.random.default_rng(0)
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
        predict = _fit_best(feature_OCF[:, others], return_OCP[:, others], kernel)
        constant = best_plan(return_OCP[:, others].mean(axis=0))
        for predicted_P in predict(feature_OCF[:, context]):
            chosen = choices[int(predicted_P[choices].argmax())]
            difference_O = return_OCP[:, context, chosen] - return_OCP[:, context, constant]
            gains.append(float(difference_O.mean()))
    gain_C = np.asarray(gains).reshape(contexts, 2).mean(axis=1)
    return t_interval(gain_C.tolist())


def _fit_best(feature_OCF: Array, return_OCP: Array, kernel: str) -> Predictor:
    """Fit a predictor with the penalty that has the smallest error on contexts that were left out."""
    fold_C = np.arange(feature_OCF.shape[1]) % FOLDS

    def error(penalty: float) -> float:
        total = 0.0
        for fold in np.unique(fold_C):
            kept_C = fold_C != fold
            predict = _fit(_rows(feature_OCF[:, kept_C]), _rows(return_OCP[:, kept_C]), kernel, penalty)
            misses_NP = predict(_rows(feature_OCF[:, ~kept_C])) - _rows(return_OCP[:, ~kept_C])
            total += float((misses_NP**2).sum())
        return total

    return _fit(_rows(feature_OCF), _rows(return_OCP), kernel, min(PENALTIES, key=error))


def _fit(feature_NF: Array, return_NP: Array, kernel: str, penalty: float) -> Predictor:
    """Fit a kernel ridge regression of the returns of all plans, with features scaled to unit variance.

    `KernelRidge` has no intercept, so the returns are centred.
    """
    center_F, spread_F, mean_P = feature_NF.mean(axis=0), feature_NF.std(axis=0), return_NP.mean(axis=0)
    scale_F = np.where(spread_F > 0, spread_F, 1.0) * math.sqrt(len(spread_F))
    # pyright takes the type of alpha from its default, 1.
    ridge = KernelRidge(alpha=penalty, kernel=kernel, gamma=0.5)  # pyright: ignore[reportArgumentType]
    ridge.fit((feature_NF - center_F) / scale_F, return_NP - mean_P)
    return lambda feature_NF: ridge.predict((feature_NF - center_F) / scale_F) + mean_P


def _rows(values: Array) -> Array:
    """Return values by order and context as rows."""
    return values.reshape(-1, values.shape[2])
