"""Rewards: the components sum, the shaping telescopes, every parameter is charged once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.config import RewardConfig
from esper.ppo.rewards import Reward, potential, rent

share = st.floats(0, 1)
episode = st.lists(st.tuples(share, st.floats(-0.5, 0.5), st.floats(0, 0.01)), min_size=1, max_size=25)


def play(mode: str, steps: list[tuple[float, float, float]], gamma: float) -> list[dict[str, float]]:
    reward = Reward(mode, RewardConfig(contribution=0.5), gamma, len(steps))  # pyright: ignore[reportArgumentType]
    reward.begin(0.1)
    return [reward.step(*step) for step in steps]


@given(episode)
def test_shaping_telescopes_to_the_last_potential(steps: list[tuple[float, float, float]]) -> None:
    shaped = sum(part["contribution"] for part in play("shaped", steps, gamma=1.0))
    assert math.isclose(shaped, 0.5 * steps[-1][1], abs_tol=1e-9)


@given(episode, st.floats(0.5, 1))
def test_discounted_shaping_telescopes_too(steps: list[tuple[float, float, float]], gamma: float) -> None:
    parts = play("shaped", steps, gamma)
    discounted = sum(gamma**t * part["contribution"] for t, part in enumerate(parts))
    assert math.isclose(discounted, 0.5 * gamma ** len(steps) * steps[-1][1], abs_tol=1e-9)


@given(episode)
def test_simplified_sums_to_the_gain_in_accuracy_less_the_rent(steps: list[tuple[float, float, float]]) -> None:
    total = sum(sum(part.values()) for part in play("simplified", steps, gamma=0.9))
    assert math.isclose(total, steps[-1][0] - 0.1 - sum(step[2] for step in steps), abs_tol=1e-9)


@given(episode)
def test_sparse_pays_the_simplified_return_at_the_end_and_nothing_before(
    steps: list[tuple[float, float, float]],
) -> None:
    sparse = [sum(part.values()) for part in play("sparse", steps, gamma=0.9)]
    assert all(value == 0.0 for value in sparse[:-1])
    assert math.isclose(sparse[-1], sum(sum(p.values()) for p in play("simplified", steps, gamma=0.9)), abs_tol=1e-9)


def test_what_was_not_measured_adds_nothing_to_the_potential() -> None:
    assert potential([0.25, None, -0.125]) == 0.125


def test_rent_is_the_log_of_what_was_grown() -> None:
    weights = RewardConfig(rent=0.01, rent_floor=100)
    assert rent(3.0, 500, weights) == pytest.approx(0.01 * math.log(3.0))
    assert rent(1.0, 500, weights) == 0.0


def test_a_tiny_host_is_charged_as_if_it_had_the_floor() -> None:
    assert rent(3.0, 50, RewardConfig(rent=0.01, rent_floor=100)) == pytest.approx(0.01 * math.log(2.0))


def test_an_episode_continues_from_a_snapshot() -> None:
    steps = [(0.3, 0.1, 0.001), (0.5, 0.2, 0.002), (0.4, 0.0, 0.003)]
    reward = Reward("sparse", RewardConfig(), 0.9, 3)
    reward.begin(0.1)
    reward.step(*steps[0])
    resumed = Reward("sparse", RewardConfig(), 0.9, 3)
    resumed.restore(reward.snapshot())
    assert [resumed.step(*step) for step in steps[1:]] == [reward.step(*step) for step in steps[1:]]
