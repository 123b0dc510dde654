"""The gain of knowing the context, not flattered by the choice of plans."""

from __future__ import annotations

import numpy as np
import pytest

from esper.common.intervals import t_interval
from research import context_gain

CONTEXTS = 16
HIDDEN_C = np.arange(CONTEXTS) % 2
"""Context in which plan 0 is better (0) or plan 1 (1); plan 2 is nearly as good everywhere."""
TRUE_CP = np.stack((0.1 * (HIDDEN_C == 0), 0.1 * (HIDDEN_C == 1), np.full(CONTEXTS, 0.06)), axis=1)
RETURN_OCP = np.stack((TRUE_CP, TRUE_CP))


def test_headroom_is_the_mean_gain_of_the_best_plan_for_each_context() -> None:
    found = context_gain.headroom(RETURN_OCP)
    assert found.mean == pytest.approx(0.04)
    assert found.low == pytest.approx(0.04, abs=0.02)
    assert found.low <= found.mean <= found.high


def test_headroom_of_noise_is_not_positive() -> None:
    """The maximum over plans of the scores themselves would be far above 0."""
    noise = np.random.default_rng(1).normal(size=(2, 200, 10))
    assert abs(context_gain.headroom(noise).mean) < 0.15
    flattered = noise.max(axis=2).mean() - noise.mean(axis=1).max(axis=1).mean()
    assert flattered > 1


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_a_predictor_gains_what_its_features_reveal(kernel: str) -> None:
    generator = np.random.default_rng(2)
    telling = np.stack([HIDDEN_C + generator.normal(scale=0.05, size=CONTEXTS) for _ in range(2)])[..., None]
    noisy = RETURN_OCP + generator.normal(scale=0.01, size=RETURN_OCP.shape)
    assert context_gain.predicted_gain(telling, noisy, kernel).mean == pytest.approx(0.04, abs=0.01)
    silent = generator.normal(size=(2, CONTEXTS, 1))
    assert context_gain.predicted_gain(silent, noisy, kernel).mean < 0.02
    assert context_gain.predicted_gain(np.ones((2, CONTEXTS, 1)), noisy, kernel).mean < 0.005


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_predictions_are_those_of_a_fit_without_the_context(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each context is predicted by a fit to the others, whose penalty has the smallest error among the others."""
    monkeypatch.setattr(context_gain, "WIDTHS", (0.5,))
    contexts, plans = 7, 3
    generator = np.random.default_rng(3)
    feature_OCF = generator.normal(size=(2, contexts, 4))
    return_OCP = feature_OCF[..., :plans] + generator.normal(scale=0.3, size=(2, contexts, plans))
    (gram_NN,) = context_gain._grams(context_gain._rows(feature_OCF), kernel)
    return_NP = context_gain._rows(return_OCP)

    def error(out: list[int], penalty: float) -> np.ndarray:
        """Return the errors of a fit without some contexts, in the last of them."""
        rows = [row for row in range(2 * contexts) if row // 2 not in out]
        tested = [2 * out[-1], 2 * out[-1] + 1]
        system = np.ones((len(rows) + 1, len(rows) + 1))
        system[:-1, :-1] = gram_NN[np.ix_(rows, rows)] + penalty * np.eye(len(rows))
        system[-1, -1] = 0
        weights = np.linalg.solve(system, np.vstack((return_NP[rows], np.zeros((1, plans)))))
        return gram_NN[np.ix_(tested, rows)] @ weights[:-1] + weights[-1] - return_NP[tested]

    found_OCP = context_gain._predict_left_out(feature_OCF, return_OCP, kernel)
    chosen: list[float] = []
    for context in range(contexts):
        others = [other for other in range(contexts) if other != context]
        totals = [
            sum((error([context, other], penalty) ** 2).sum() for other in others) for penalty in context_gain.PENALTIES
        ]
        chosen.append(context_gain.PENALTIES[int(np.argmin(totals))])
        expected = return_NP[[2 * context, 2 * context + 1]] + error([context], chosen[-1])
        np.testing.assert_allclose(found_OCP[:, context], expected, atol=1e-9)


def test_groups_have_the_same_weight() -> None:
    """Plan 0 is the best in 12 of 16 contexts, but plan 1 gains more in the small group."""
    label_C = (np.arange(CONTEXTS) >= 12).astype(int)
    return_CP = np.where(label_C[:, None] == 0, [0.1, 0.0], [0.0, 0.2])
    return_OCP = np.stack((return_CP, return_CP))
    assert context_gain.best_plan(return_CP) == 0
    assert context_gain.best_plan(return_CP, label_C) == 1
    assert context_gain.headroom(return_OCP, label_C).mean == pytest.approx(0.05)
    assert context_gain.left_out_return(return_OCP, label_C) == pytest.approx(0.1)
    for found in (
        context_gain.group_gain(return_OCP, label_C, label_C),
        context_gain.predicted_gain(np.stack((label_C, label_C))[..., None].astype(float), return_OCP, "rbf", label_C),
    ):
        assert (found.mean, found.low, found.high) == pytest.approx((0.05, 0.05, 0.05))
    shuffled = np.random.default_rng(4).permutation(CONTEXTS)
    assert context_gain.headroom(return_OCP[:, shuffled], label_C[shuffled]).mean == pytest.approx(0.05)


def test_interval_of_one_group_is_that_of_student() -> None:
    generator = np.random.default_rng(5)
    return_OCP = RETURN_OCP + generator.normal(scale=0.05, size=RETURN_OCP.shape)
    found = context_gain.group_gain(return_OCP, None, HIDDEN_C)
    constants = [int(chosen_CP.mean(axis=0).argmax()) for chosen_CP in return_OCP[::-1]]
    mean_CP = return_OCP.mean(axis=0)
    gains: list[float] = []
    for context, kind in enumerate(HIDDEN_C):
        others = [other for other in range(CONTEXTS) if other != context and HIDDEN_C[other] == kind]
        chosen = mean_CP[others].mean(axis=0).argmax()
        constant = np.mean([return_OCP[order, context, constants[order]] for order in range(2)])
        gains.append(float(mean_CP[context, chosen] - constant))
    expected = t_interval(gains)
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
