"""Gain of knowing the context over the best constant plan: of the best plan for each context, and of predictors.

Every plan plays every context in two orders: other initial weights and another data order, the same context. The best
plan is chosen by the returns of one order and scored by those of the other, because a maximum flatters the returns that
chose it.

Contexts can form groups, such as those of one task. Then all groups have the same weight, whatever their number of
contexts.

Shapes: O orders (two), C contexts, P plans, F features, G groups, R resamples, N rows: one for each context and order.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from esper.common.intervals import IntervalEstimate, t_quantile

Array: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]

RESAMPLES = 2000
"""Number of resamples of a bootstrap interval."""
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Ridge penalties to choose from."""
WIDTHS = (0.5, 2.0, 8.0)
"""Factors of the squared distance in the kernel `rbf` to choose from."""


class Groups(NamedTuple):
    """Groups of contexts."""

    index_C: Indices
    """Index of the group of each context."""
    count_G: Indices
    """Number of contexts of each group."""

    @classmethod
    def of(cls, label_C: Indices | None, contexts: int) -> Groups:
        """Return the groups of contexts with the same label; None: a single group."""
        labels = np.zeros(contexts, dtype=np.int64) if label_C is None else label_C
        _, index_C, count_G = np.unique(labels, return_inverse=True, return_counts=True)
        return cls(index_C, count_G)

    @property
    def weights(self) -> Array:
        """Weight of each context, [C]."""
        return 1 / (len(self.count_G) * self.count_G[self.index_C])

    def means(self, value_CP: Array) -> Array:
        """Return the mean of each group, [G, P]."""
        sums_GP = np.zeros((len(self.count_G), value_CP.shape[1]))
        np.add.at(sums_GP, self.index_C, value_CP)
        return sums_GP / self.count_G[:, None]

    def means_of_others(self, value_CP: Array) -> Array:
        """Return for each context the mean of the other contexts of its group, [C, P]; its own value without others."""
        count_C1 = self.count_G[self.index_C][:, None]
        others_CP = (count_C1 * self.means(value_CP)[self.index_C] - value_CP) / np.maximum(count_C1 - 1, 1)
        return np.where(count_C1 > 1, others_CP, value_CP)


def headroom(return_OCP: Array, label_C: Indices | None = None) -> IntervalEstimate:
    """Return the gain of the best plan for each context over the best plan for all contexts.

    Both plans are chosen on one order and scored on the other; the gain is the mean of both directions. The interval is
    the percentile interval of a bootstrap over the contexts of each group (Efron, 1979), with the plans chosen anew in
    each resample.

    Args:
        return_OCP: Net returns.
        label_C: Label of the group of each context; None: a single group.
    """
    groups = Groups.of(label_C, return_OCP.shape[1])
    generator = np.random.default_rng(0)
    drawn_RC = np.zeros((RESAMPLES, len(groups.index_C)))
    for group, count in enumerate(groups.count_G):
        drawn_RC[:, groups.index_C == group] = generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    low, high = np.percentile(_headrooms(return_OCP, drawn_RC * groups.weights), (2.5, 97.5))
    (mean,) = _headrooms(return_OCP, groups.weights[None])
    return IntervalEstimate(mean=float(mean), low=float(low), high=float(high))


def _headrooms(return_OCP: Array, weight_RC: Array) -> Array:
    """Return the gain for each weighting of the contexts, [R]."""
    gain_R = np.zeros(len(weight_RC))
    for chosen_CP, scored_CP in (return_OCP, return_OCP[::-1]):
        best_C = np.take_along_axis(scored_CP, chosen_CP.argmax(axis=1)[:, None], axis=1)[:, 0]
        constant_R = (weight_RC @ chosen_CP).argmax(axis=1)
        scored_RP = weight_RC @ scored_CP
        gain_R += weight_RC @ best_C - scored_RP[np.arange(len(weight_RC)), constant_R]
    return gain_R / 2


def best_plan(return_CP: Array, label_C: Indices | None = None) -> int:
    """Return the index of the plan with the highest mean return over the contexts, [C, P]."""
    return int((Groups.of(label_C, len(return_CP)).weights @ return_CP).argmax())


def group_gain(return_OCP: Array, label_C: Indices | None, kind_C: Indices) -> IntervalEstimate:
    """Return the gain over the best plan for all of the best plan for the contexts of each kind.

    The plan of a context is chosen by the other contexts of its kind, and scored on both orders.

    Args:
        return_OCP: Net returns.
        label_C: Label of the group of each context, which sets its weight; None: a single group.
        kind_C: Kind of each context.
    """
    mean_CP = return_OCP.mean(axis=0)
    chosen_C = Groups.of(kind_C, len(mean_CP)).means_of_others(mean_CP).argmax(axis=1)
    return _gain(np.stack((chosen_C, chosen_C)), return_OCP, label_C)


def left_out_return(return_OCP: Array, label_C: Indices | None = None) -> float:
    """Return the mean net return of the plan that is the best one of the other contexts, each left out in turn."""
    groups, mean_CP = Groups.of(label_C, return_OCP.shape[1]), return_OCP.mean(axis=0)
    mean_GP = groups.means(mean_CP)
    changed_CP = (groups.means_of_others(mean_CP) - mean_GP[groups.index_C]) / len(groups.count_G)
    constant_C = (mean_GP.mean(axis=0) + changed_CP).argmax(axis=1)
    return float(groups.weights @ mean_CP[np.arange(len(mean_CP)), constant_C])


def predicted_gain(
    feature_OCF: Array, return_OCP: Array, kernel: str, label_C: Indices | None = None
) -> IntervalEstimate:
    """Return the gain over the best plan for all of a predictor that chooses the plan of each context.

    Kernel ridge regression predicts the difference of each plan's return from the mean of all plans, from features of
    the context (Hastie et al., 2009, section 5.8). It is fitted to all other contexts, which have the same weight in
    any group. It reads the features of one order; the plan that it chooses is scored on both. The penalty and the width
    of the kernel have the smallest error in the other contexts, each of them left out in turn.

    Args:
        feature_OCF: Features of each context, as they were measured in each order.
        return_OCP: Net returns.
        kernel: `linear` or `rbf`.
        label_C: Label of the group of each context; None: a single group.
    """
    difference_OCP = return_OCP - return_OCP.mean(axis=2, keepdims=True)
    predicted_OCP = _predict_left_out(feature_OCF, difference_OCP, kernel)
    return _gain(predicted_OCP.argmax(axis=2), return_OCP, label_C)


def _gain(chosen_OC: Indices, return_OCP: Array, label_C: Indices | None) -> IntervalEstimate:
    """Return the gain of choices, scored on both orders, over the best plan for all contexts, as in `headroom`.

    The choice of the best plan includes the context itself, on the other order. A plan of the other contexts alone
    would make the gain larger, where few contexts decide between two plans. The interval is Student's t interval over
    contexts, for the mean of the groups' means.
    """
    groups, rows_C = Groups.of(label_C, return_OCP.shape[1]), np.arange(return_OCP.shape[1])
    constants = [best_plan(chosen_CP, label_C) for chosen_CP in return_OCP[::-1]]
    constant_C = np.mean([scored_CP[:, plan] for scored_CP, plan in zip(return_OCP, constants, strict=True)], axis=0)
    gain_C = return_OCP.mean(axis=0)[rows_C, chosen_OC].mean(axis=0) - constant_C
    mean_G = groups.means(gain_C[:, None])[:, 0]
    squares_G = groups.means(((gain_C - mean_G[groups.index_C]) ** 2)[:, None])[:, 0]
    variance_G = squares_G / np.maximum(groups.count_G - 1, 1)  # of the mean of each group
    half = t_quantile(len(gain_C) - len(mean_G) + 1) * math.sqrt(variance_G.sum()) / len(mean_G)
    mean = float(mean_G.mean())
    return IntervalEstimate(mean=mean, low=mean - half, high=mean + half)


def _predict_left_out(feature_OCF: Array, return_OCP: Array, kernel: str) -> Array:
    """Return the predicted returns of each context, [O, C, P], each from the other contexts alone.

    The errors of rows that are left out follow from one inverse for all of them (Rasmussen and Williams, 2006,
    section 5.4.2). Each context is left out alone, and together with each other one for the choice of the penalty.
    """
    orders, contexts, plans = return_OCP.shape
    return_COP = return_OCP.swapaxes(0, 1)
    best_C, predicted_COP = np.full(contexts, math.inf), np.zeros_like(return_COP)
    for gram_NN, penalty in itertools.product(_grams(_rows(feature_OCF), kernel), PENALTIES):
        inverse_NN = _bordered_inverse(gram_NN + penalty * np.eye(len(gram_NN)))
        dual_COP = (inverse_NN @ _rows(return_OCP)).reshape(contexts, orders, plans)
        block_CCOO = inverse_NN.reshape(contexts, orders, contexts, orders).swapaxes(1, 2)
        own_COO = block_CCOO[np.arange(contexts), np.arange(contexts)]
        error_C = np.array([_error_of_others(context, block_CCOO, own_COO, dual_COP) for context in range(contexts)])
        is_better_C = error_C < best_C
        best_C = np.minimum(best_C, error_C)
        missed_COP = np.linalg.solve(own_COO, dual_COP)
        predicted_COP = np.where(is_better_C[:, None, None], return_COP - missed_COP, predicted_COP)
    return predicted_COP.swapaxes(0, 1)


def _error_of_others(context: int, block_CCOO: Array, own_COO: Array, dual_COP: Array) -> float:
    """Return the sum of the squared errors of all contexts but one, each left out together with that one."""
    share_COO = block_CCOO[:, context] @ np.linalg.inv(own_COO[context])
    left_COO = own_COO - share_COO @ block_CCOO[context]
    left_COO[context] = np.eye(left_COO.shape[-1])
    missed_COP = np.linalg.solve(left_COO, dual_COP - share_COO @ dual_COP[context])
    missed_COP[context] = 0
    return float((missed_COP**2).sum())


def _bordered_inverse(penalised_NN: Array) -> Array:
    """Return the inverse for a regression with an intercept, which has no penalty, without the intercept's own row."""
    rows = len(penalised_NN)
    bordered = np.ones((rows + 1, rows + 1))
    bordered[:rows, :rows] = penalised_NN
    bordered[rows, rows] = 0
    return np.asarray(np.linalg.inv(bordered)[:rows, :rows], dtype=np.float64)


def _grams(feature_NF: Array, kernel: str) -> list[Array]:
    """Return kernels of all pairs of rows, of features scaled to unit variance and by their number."""
    spread_F = feature_NF.std(axis=0)
    varies_F = spread_F > 1e-9 * np.maximum(1, np.abs(feature_NF).max(axis=0))
    kept_NF = feature_NF[:, varies_F]
    kept_NF = (kept_NF - kept_NF.mean(axis=0)) / (spread_F[varies_F] * math.sqrt(max(1, kept_NF.shape[1])))
    product_NN = kept_NF @ kept_NF.T
    if kernel == "linear":
        return [product_NN]
    square_N = np.diag(product_NN)
    distance_NN = square_N[:, None] + square_N - 2 * product_NN
    return [np.exp(-width * distance_NN) for width in WIDTHS]


def _rows(value_OCF: Array) -> Array:
    """Return values as rows, [N, F]: the orders of each context one after another."""
    return value_OCF.swapaxes(0, 1).reshape(-1, value_OCF.shape[2])
