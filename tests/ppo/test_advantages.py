"""GAE against a scalar reference written from the definition."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.ppo.advantages import gae


def reference(
    rewards: list[float], values: list[float], bootstrap: float, terminal: list[bool], gamma: float, lam: float
) -> list[float]:
    """Σ_k (γλ)^k δ_{t+k}, cut after a terminal step: the sum itself, not the recursion."""
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
def test_equals_the_definition(case: tuple[list[float], list[float], float, list[bool], float, float]) -> None:
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


def test_lambda_one_is_the_discounted_return_less_the_value() -> None:
    rewards = torch.tensor([[1.0, 2.0, 4.0]])
    values = torch.tensor([[0.5, 0.25, 0.125]])
    advantages = gae(rewards, values, torch.tensor([8.0]), torch.zeros(1, 3, dtype=torch.bool), 0.5, 1.0)
    returns = torch.tensor([[1 + 0.5 * (2 + 0.5 * (4 + 0.5 * 8)), 2 + 0.5 * (4 + 0.5 * 8), 4 + 0.5 * 8]])
    assert torch.allclose(advantages, returns - values)
