"""The update of several ranks equals that of one process with all their envs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from esper.common.configuration.config import PPOConfig
from esper.common.domain import Op
from esper.common.system.ranks import RankGroup
from esper.training.policy.agent import UpdateStats
from esper.training.policy.network import PolicyNetwork
from esper.training.ppo.learner import PPOLearner
from esper.training.ppo.normaliser import RunningMeanStd
from esper.training.ppo.rollout import RolloutBuffer
from tests.ranks import together
from tests.training.ppo.test_learner import SHAPE, legal, play

STEPS = 6


def experience(envs: int, network: PolicyNetwork) -> tuple[RolloutBuffer, Tensor]:
    """Return a rollout in which only the first steps of the last env are valid."""
    generator = torch.Generator().manual_seed(5)
    rollout = RolloutBuffer(envs, STEPS, SHAPE)
    obs_ETF = torch.randn(envs, STEPS, SHAPE.size, generator=generator)
    play(network, rollout, legal(envs, *Op), obs_ETF, generator)
    rollout.reward_ET.normal_(generator=generator)
    rollout.valid_ET[-1, 2:] = False
    return rollout, obs_ETF


def learn(
    ranks: RankGroup, envs: int, config: PPOConfig, rounds: int = 2
) -> tuple[list[UpdateStats], dict[str, Tensor]]:
    """Run updates on this rank's envs; return their statistics, the network and the scale of the returns."""
    network = PolicyNetwork(SHAPE, config.hidden)
    network.initialise(torch.Generator().manual_seed(1))
    returns = RunningMeanStd(1)
    whole, obs_ETF = experience(envs, network)
    own = RolloutBuffer(len(ranks.env_range(envs)), STEPS, SHAPE)
    for name, value in own.tensors().items():
        value.copy_(ranks.local_rows(whole.tensors()[name]))
    learner = PPOLearner(network, returns, config, rounds, ranks)
    learned = [
        learner.update(
            own, ranks.local_rows(obs_ETF), ranks.local_rows(torch.zeros(envs)), index, torch.Generator().manual_seed(9)
        )
        for index in range(rounds)
    ]
    return learned, {**network.state_dict(), **returns.state_dict(prefix="returns.")}


@pytest.mark.parametrize(("world", "envs"), [(2, 5), (3, 4)])
def test_ranks_learn_like_one_process(world: int, envs: int) -> None:
    """The cases include ranks with different numbers of envs, and minibatches without an env of a rank."""
    config = PPOConfig(hidden=16, epochs=3, target_kl=10.0)
    (alone, expected), *_ = together(1, lambda ranks: learn(ranks, envs, config))
    found = together(world, lambda ranks: learn(ranks, envs, config))
    for learned, tensors in found:
        for name, value in tensors.items():
            assert torch.allclose(value, expected[name], rtol=1e-4, atol=1e-6), name
            assert torch.equal(value, found[0][1][name]), f"{name} differs from rank 0's"
        for got, reference in zip(learned, alone, strict=True):
            assert_close(got, reference)


def assert_close(got: UpdateStats, expected: UpdateStats) -> None:
    for name, value in dataclasses.asdict(expected).items():
        assert getattr(got, name) == pytest.approx(value, rel=1e-3, abs=1e-6), name


def test_ranks_stop_early_together() -> None:
    config = PPOConfig(hidden=16, learning_rate=0.1, target_kl=0.001, epochs=8)
    (alone, _), *_ = together(1, lambda ranks: learn(ranks, 6, config, rounds=1))
    assert alone[0].stopped_early
    for learned, _ in together(2, lambda ranks: learn(ranks, 6, config, rounds=1)):
        assert (learned[0].stopped_early, learned[0].minibatches) == (True, alone[0].minibatches)


def test_head_unused_on_all_ranks_reports_no_gradient() -> None:
    def used(ranks: RankGroup) -> dict[str, float | None]:
        config = PPOConfig(hidden=16)
        network = PolicyNetwork(SHAPE, config.hidden)
        network.initialise(torch.Generator().manual_seed(1))
        rollout = RolloutBuffer(3, STEPS, SHAPE)
        generator = torch.Generator().manual_seed(ranks.rank)
        obs_ETF = torch.randn(3, STEPS, SHAPE.size, generator=generator)
        play(network, rollout, legal(3, Op.WAIT, Op.FOSSILIZE), obs_ETF, generator)
        rollout.reward_ET.normal_(generator=generator)
        learner = PPOLearner(network, RunningMeanStd(1), config, 1, ranks)
        order = torch.Generator().manual_seed(9)
        return learner.update(rollout, obs_ETF, torch.zeros(3), 0, order).head_grad_norms

    for norms in together(2, used):
        assert norms["op"]
        assert norms["blueprint"] is None
