"""GAE compared with a scalar reference; the host effect, on numbers with known parts."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.training.ppo.advantages import (
    MAX_ABS_ADVANTAGE,
    gae,
    healthy_mask,
    normalise_advantages,
    subtract_host_effect,
)


def reference(
    rewards: list[float], values: list[float], bootstrap: float, terminal: list[bool], gamma: float, lam: float
) -> list[float]:
    """Compute Σ_k (γλ)^k δ_{t+k} up to a terminal step as a sum, without the recursion."""
    steps = len(rewards)
    following = [*values[1:], bootstrap]
    deltas = [rewards[t] + gamma * following[t] * (not terminal[t]) - values[t] for t in range(steps)]
    advantages = []
    for t in range(steps):
        total = 0.0
        for k in range(t, steps):
            total += (gamma * lam) ** (k - t) * deltas[k]
            if terminal[k]:
                break
        advantages.append(total)
    return advantages


numbers = st.floats(-5, 5)


@given(
    st.integers(1, 8).flatmap(
        lambda t: st.tuples(
            st.lists(numbers, min_size=t, max_size=t),
            st.lists(numbers, min_size=t, max_size=t),
            numbers,
            st.lists(st.booleans(), min_size=t, max_size=t),
            st.floats(0, 1),
            st.floats(0, 1),
        )
    )
)
def test_gae_equals_its_definition(case: tuple[list[float], list[float], float, list[bool], float, float]) -> None:
    rewards, values, bootstrap, terminal, gamma, lam = case
    advantages = gae(
        torch.tensor([rewards], dtype=torch.float64),
        torch.tensor([values], dtype=torch.float64),
        torch.tensor([bootstrap], dtype=torch.float64),
        torch.tensor([terminal]),
        gamma,
        lam,
    )
    assert torch.allclose(advantages[0], torch.tensor(reference(*case), dtype=torch.float64), atol=1e-9)


def with_luck(envs: int, steps: int, envs_per_host: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return advantages with a large host effect, the part of each env alone, and the valid steps."""
    generator = torch.Generator().manual_seed(seed)
    hosts = -(-envs // envs_per_host)
    luck = torch.randn(hosts, steps, generator=generator).repeat_interleave(envs_per_host, 0)[:envs]
    own = 0.1 * torch.randn(envs, steps, generator=generator)
    return luck + own, own, torch.rand(envs, steps, generator=generator) > 0.1


def test_host_effect_is_subtracted() -> None:
    advantage, own, _ = with_luck(64, 20, 4, seed=0)
    left = subtract_host_effect(advantage, torch.ones(64, 20, dtype=torch.bool), 4)
    assert left.var() < 0.02 * advantage.var()
    # A value minus the mean of three others of the same variance has a correlation of √¾ with the value.
    assert torch.corrcoef(torch.stack((left.flatten(), own.flatten())))[0, 1] > 0.8


def test_host_effect_keeps_unshared_noise() -> None:
    generator = torch.Generator().manual_seed(1)
    advantage = torch.randn(64, 20, generator=generator)
    left = subtract_host_effect(advantage, torch.ones(64, 20, dtype=torch.bool), 4)
    assert left.var() <= advantage.var()
    assert torch.corrcoef(torch.stack((left.flatten(), advantage.flatten())))[0, 1] > 0.98


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
def test_host_effect_of_a_single_env_is_zero(envs: int, steps: int, envs_per_host: int, seed: int) -> None:
    advantage, _, counts = with_luck(envs, steps, envs_per_host, seed)
    left = subtract_host_effect(advantage, counts, envs_per_host)
    assert torch.isfinite(left).all()
    assert torch.equal(left[~counts], advantage[~counts])
    for step, env in itertools.product(range(steps), range(envs)):
        others = [i for i in range(envs) if i // envs_per_host == env // envs_per_host and i != env]
        if not any(counts[i, step] for i in others):
            assert left[env, step] == advantage[env, step]


def test_breakdown_does_not_shrink_other_advantages() -> None:
    generator = torch.Generator().manual_seed(3)
    advantage, counts = 0.02 * torch.randn(16, 40, generator=generator), torch.ones(16, 40, dtype=torch.bool)
    terminal = torch.zeros_like(counts)
    alone = normalise_advantages(advantage[1:], healthy_mask(counts[1:], terminal[1:]), terminal[1:])
    assert torch.allclose(alone, (advantage[1:] - advantage[1:].mean()) / advantage[1:].std(unbiased=False), atol=1e-5)
    advantage[0, :20] = -(0.95 ** torch.arange(19, -1, -1))
    terminal[0, 19], counts[0, 20:] = True, False
    standard = normalise_advantages(advantage, healthy_mask(counts, terminal), terminal)
    assert torch.equal(standard[1:], alone)
    assert (standard[0, :20] / -MAX_ABS_ADVANTAGE).tolist() == pytest.approx(
        [0.95**k for k in range(19, -1, -1)], abs=0.01
    )


def test_all_breakdowns_are_compared_with_each_other() -> None:
    advantage, counts = torch.tensor([[1.0, 3.0], [5.0, 100.0]]), torch.tensor([[True, True], [True, False]])
    measured = healthy_mask(counts, torch.ones(2, 2, dtype=torch.bool))
    assert torch.equal(measured, counts)
    terminal = torch.tensor([[False, True], [True, False]])
    assert normalise_advantages(advantage, measured, terminal)[0, 1] == 0.0


def test_equal_decisions_have_no_advantage() -> None:
    advantage = 1 + 1e-8 * torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    everywhere = torch.ones(8, 6, dtype=torch.bool)
    assert normalise_advantages(advantage, everywhere, ~everywhere).abs().max() < 0.01
