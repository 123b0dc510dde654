"""The gain of knowing the context, not flattered by the choice of plans."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from research import context_gain

CONTEXTS = 16
HIDDEN_C = np.arange(CONTEXTS) % 2
"""Context in which plan 0 is better (0) or plan 1 (1); plan 2 is nearly as good everywhere."""
TRUE_CP = np.stack((0.1 * (HIDDEN_C == 0), 0.1 * (HIDDEN_C == 1), np.full(CONTEXTS, 0.06)), axis=1)
RETURN_OCP = np.stack((TRUE_CP, TRUE_CP))


@pytest.fixture(autouse=True)
def _few_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each penalty costs seconds."""
    monkeypatch.setattr(context_gain, "PENALTIES", (0.1, 10.0))


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


def test_a_predictor_chooses_from_the_given_plans_only() -> None:
    telling = np.stack([HIDDEN_C, HIDDEN_C])[..., None].astype(float)
    assert context_gain.predicted_gain(telling, RETURN_OCP, "linear", plans=[0]).mean == pytest.approx(-0.01)
