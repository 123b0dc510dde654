"""Rewards: components add up, shaping telescopes, and every parameter is charged once."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.configuration.config import HorizonName, PPOConfig, RewardConfig, RewardName
from esper.common.domain import Stage
from esper.training.ppo.rewards import RewardFunction, rent_cost
from tests.networks.seeds.hosts import grow, network

share = st.floats(0, 1)
episode = st.lists(st.tuples(share, st.floats(-0.5, 0.5), st.floats(0, 0.01)), min_size=1, max_size=25)


def play(
    mode: str, steps: Sequence[tuple[float, float | None, float]], gamma: float, horizon: HorizonName = "episode"
) -> list[dict[str, float]]:
    learning = PPOConfig(gamma=gamma, horizon=horizon)
    reward = RewardFunction(mode, RewardConfig(dependence=0.5), learning, len(steps))  # pyright: ignore[reportArgumentType]
    reward.begin(0.1)
    return [reward.step(*step, is_op=index % 2 == 0) for index, step in enumerate(steps)]


@given(episode, st.floats(0.5, 1))
def test_shaping_adds_nothing_to_the_return_of_ended_episode(
    steps: list[tuple[float, float, float]], gamma: float
) -> None:
    parts = play("shaped", steps, gamma, "episode")
    discounted = sum(gamma**t * part["dependence"] for t, part in enumerate(parts))
    assert math.isclose(discounted, 0.0, abs_tol=1e-9)


@given(episode, st.floats(0.5, 1))
def test_shaping_telescopes_to_the_last_potential(steps: list[tuple[float, float, float]], gamma: float) -> None:
    parts = play("shaped", steps, gamma, "continuing")
    discounted = sum(gamma**t * part["dependence"] for t, part in enumerate(parts))
    assert math.isclose(discounted, 0.5 * gamma ** len(steps) * steps[-1][1], abs_tol=1e-9)


@given(episode)
def test_simplified_return_is_gain_minus_rent_and_op_costs(
    steps: list[tuple[float, float, float]],
) -> None:
    total = sum(sum(part.values()) for part in play("simplified", steps, gamma=0.9))
    charges = sum(step[2] for step in steps) + RewardConfig().op * ((len(steps) + 1) // 2)
    assert math.isclose(total, steps[-1][0] - 0.1 - charges, abs_tol=1e-9)


@given(episode)
def test_waiting_has_no_op_cost(steps: list[tuple[float, float, float]]) -> None:
    assert [part["op"] for part in play("simplified", steps, 0.9)] == [
        0.0 if index % 2 else -RewardConfig().op for index in range(len(steps))
    ]


@given(episode)
def test_sparse_pays_the_simplified_return_at_the_end(
    steps: list[tuple[float, float, float]],
) -> None:
    sparse = [sum(part.values()) for part in play("sparse", steps, gamma=0.9)]
    assert all(value == 0.0 for value in sparse[:-1])
    assert math.isclose(sparse[-1], sum(sum(p.values()) for p in play("simplified", steps, gamma=0.9)), abs_tol=1e-9)


@given(episode, st.sampled_from(["shaped", "simplified", "sparse"]), st.data())
def test_rest_of_the_return_is_the_known_part_plus_what_is_still_to_come(
    steps: list[tuple[float, float, float]], mode: RewardName, data: st.DataObject
) -> None:
    """Without discount, the unknown part is the final accuracy minus the charges to come, whatever came before."""
    at = data.draw(st.integers(0, len(steps) - 1))
    reward = RewardFunction(mode, RewardConfig(dependence=0.5), PPOConfig(gamma=1.0, horizon="episode"), len(steps))
    reward.begin(0.1)
    for step in steps[:at]:
        reward.step(*step, is_op=True)
    known = reward.known_return
    rest = sum(sum(reward.step(*step, is_op=False).values()) for step in steps[at:])
    assert math.isclose(rest - known, steps[-1][0] - sum(step[2] for step in steps[at:]), abs_tol=1e-9)


@given(episode)
def test_shaped_without_dependences_equals_simplified(
    steps: list[tuple[float, float, float]],
) -> None:
    unmeasured = [(accuracy, None, charge) for accuracy, _, charge in steps]
    assert play("shaped", unmeasured, 0.9) == play("simplified", steps, 0.9)


@given(episode, st.sampled_from(["shaped", "simplified", "sparse"]))
def test_reward_modes_differ_in_shaping_and_timing(steps: list[tuple[float, float, float]], mode: str) -> None:
    """The sums of accuracy and rent over an episode do not depend on the mode."""
    parts = play(mode, steps, 0.9)
    assert math.isclose(sum(part["score"] for part in parts), steps[-1][0] - 0.1, abs_tol=1e-9)
    assert math.isclose(sum(part["rent"] for part in parts), -sum(step[2] for step in steps), abs_tol=1e-9)


def test_rent_is_the_log_of_grown_parameters() -> None:
    weights = RewardConfig(rent=0.01, rent_floor=100)
    assert rent_cost(3.0, 500, weights) == pytest.approx(0.01 * math.log(3.0))
    assert rent_cost(1.0, 500, weights) == 0.0


@pytest.mark.parametrize(
    "stage", [Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.PROBATIONARY, Stage.FOSSILIZED]
)
def test_grown_parameters_are_charged_once_at_every_stage(stage: Stage) -> None:
    net = network()
    grow(net.slots[0], stage, "conv_light")
    grow(net.slots[2], Stage.FOSSILIZED, "conv_small")
    grown = (9 * 4 * 4 + 2 * 4) + (16 * 16 + 2 * 16)
    weights = RewardConfig(rent=0.01, rent_floor=1)
    charged = rent_cost(net.parameter_ratio, net.host_parameter_count, weights)
    assert charged == pytest.approx(0.01 * math.log1p(grown / net.host_parameter_count))


def test_removed_seed_is_not_charged() -> None:
    net = network()
    grow(net.slots[1], Stage.PROBATIONARY)
    net.slots[1].remove_seed("cull")
    assert rent_cost(net.parameter_ratio, net.host_parameter_count, RewardConfig()) == 0.0


def test_tiny_host_is_charged_at_the_floor() -> None:
    assert rent_cost(3.0, 50, RewardConfig(rent=0.01, rent_floor=100)) == pytest.approx(0.01 * math.log(2.0))


def test_reward_continues_from_a_snapshot() -> None:
    steps = [(0.3, 0.1, 0.001), (0.5, 0.2, 0.002), (0.4, 0.0, 0.003)]
    reward = RewardFunction("sparse", RewardConfig(), PPOConfig(), 3)
    reward.begin(0.1)
    reward.step(*steps[0], is_op=True)
    resumed = RewardFunction("sparse", RewardConfig(), PPOConfig(), 3)
    resumed.load_state_dict(reward.state_dict())
    after = [[one.step(*step, is_op=False) for step in steps[1:]] for one in (resumed, reward)]
    assert after[0] == after[1]
    assert after[0][-1]["op"] == -RewardConfig().op
