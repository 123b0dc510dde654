"""The PPO agent: the value that it bootstraps at the end of an episode."""

import pytest
import torch

from esper.common.configuration.config import HorizonName, PPOConfig
from esper.common.domain import HEADS
from esper.networks.seeds.network import GrowingNetwork
from esper.training.policy.agent import EnvStatus
from esper.training.ppo.agent import PPOAgent
from tests.networks.seeds.hosts import network, site


def agent_with(horizon: HorizonName) -> PPOAgent:
    return PPOAgent(
        envs=2,
        steps=3,
        sites=[site(name, 4) for name in "abc"],
        blueprints=("norm", "conv_light"),
        config=PPOConfig(hidden=16, horizon=horizon),
        rounds=1,
        generator=torch.Generator().manual_seed(0),
    )


def view(env: int, net: GrowingNetwork, step: int) -> EnvStatus:
    return EnvStatus(
        env=env, slots=net.slots, steps=3, chance_loss=2.3, chance_score=0.1, step=step, losses=[2.0], scores=[0.3]
    )


def play(agent: PPOAgent) -> tuple[torch.Tensor, torch.Tensor]:
    """Act for an episode; return the LSTM state after the last step and the bootstrap values of the update."""
    nets = [network(), network()]
    agent.begin_round(torch.rand(2, 3, len(HEADS), generator=torch.Generator().manual_seed(1)))
    for step in range(3):
        views = [view(env, net, step) for env, net in enumerate(nets)]
        agent.act(step, views)
        agent.record_rewards(step, views, [0.1, 0.2], [False, False])
    state = agent.hidden[0].clone()
    return state, agent._bootstrap([view(env, net, 3) for env, net in enumerate(nets)])


def test_value_is_the_output_of_the_critic_plus_the_known_return() -> None:
    values: list[float] = []
    bootstraps: list[torch.Tensor] = []
    for known in (0.0, -0.75):
        agent, status = agent_with("continuing"), view(0, network(), 0)
        status.known_return = known
        agent.begin_round(torch.rand(2, 3, len(HEADS), generator=torch.Generator().manual_seed(1)))
        values.append(agent.act(0, [status, view(1, network(), 0)])[0].value or 0.0)
        assert agent.rollout.known_ET[:, 0].tolist() == [known, 0.0]
        bootstraps.append(agent._bootstrap([status, view(1, network(), 3)]))
    assert values[1] == pytest.approx(values[0] - 0.75)
    torch.testing.assert_close(bootstraps[1], bootstraps[0] - torch.tensor([0.75, 0.0]))


def test_ended_episode_has_no_bootstrap_value() -> None:
    _, bootstrap = play(agent_with("episode"))
    assert torch.equal(bootstrap, torch.zeros(2))


def test_interrupted_episode_bootstraps_from_its_last_state() -> None:
    agent = agent_with("continuing")
    state, bootstrap = play(agent)
    assert bootstrap.abs().min() > 0
    assert not torch.equal(state, torch.zeros_like(state))
    reset = agent_with("continuing")
    play(reset)
    reset.hidden = reset.network.initial_state(2)
    nets = [network(), network()]
    forgetful = reset._bootstrap([view(env, net, 3) for env, net in enumerate(nets)])
    assert not torch.allclose(bootstrap, forgetful)
