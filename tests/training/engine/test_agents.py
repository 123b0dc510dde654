"""Tests of the agent factory: it builds the policy that the configuration names."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from esper.common.configuration.config import Config, ConfigError, PolicyName
from esper.training.engine.agent_factory import build_agent
from esper.training.ppo.agent import PPOAgent
from tests.training.engine.populations import digits_profile

BLUEPRINTS = ("conv_light", "conv_heavy")


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_build_agent_returns_a_policy_that_learns_for_ppo_only(policy: PolicyName) -> None:
    plan = "1:conv_light@early" if policy == "plan" else ""
    agent = build_agent(Config(policy=policy, plan=plan, envs=2), digits_profile().sites, BLUEPRINTS)
    assert isinstance(agent, PPOAgent) == (policy in ("ppo", "pretrained"))
    assert (isinstance(agent, PPOAgent) and agent._stochastic_heads) == (policy == "ppo")


def test_build_agent_refuses_an_unlisted_policy() -> None:
    config = msgspec.structs.replace(Config(), policy="unlisted")
    with pytest.raises(ConfigError, match="unknown policy 'unlisted'"):
        build_agent(config, digits_profile().sites, BLUEPRINTS)
