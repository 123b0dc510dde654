"""Builds the policy that the configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from esper.config import Config
from esper.lanes.devices import resolve_policy_device
from esper.policy.agent import Agent
from esper.policy.baselines import PERIOD, Periodic, Random, Static
from esper.policy.heuristic import Heuristic
from esper.ppo.agent import PPOAgent
from esper.ranks import ALONE, Ranks
from esper.seeding import generator as seeded


def build_agent(config: Config, slots: int, blueprints: Sequence[str], ranks: Ranks = ALONE) -> Agent:
    """Return the policy that `--policy` names.

    Raises:
        ConfigError: `--policy-device` was not found.
    """
    match config.policy:
        case "ppo":
            return build_ppo(config, slots, blueprints, ranks)
        case "heuristic":
            return Heuristic(blueprints)
        case "periodic":
            return Periodic(blueprints, PERIOD)
        case "random":
            return Random(len(blueprints))
        case "static":
            return Static()
        case "full":
            return Periodic(blueprints, period=1)
        case unknown:
            assert_never(unknown)


def build_ppo(
    config: Config, slots: int, blueprints: Sequence[str], ranks: Ranks = ALONE, *, explores: bool = True
) -> PPOAgent:
    """Return an untrained PPO agent.

    Args:
        config: Configuration of the run.
        slots: Number of slots of an env.
        blueprints: Names of the blueprints.
        ranks: Ranks that share the envs, and learn together.
        explores: Draw all choices from their probabilities; see `PPOAgent`.

    Raises:
        ConfigError: `--policy-device` was not found.
    """
    return PPOAgent(
        envs=config.envs,
        steps=config.steps,
        slots=slots,
        blueprints=blueprints,
        config=config.ppo,
        rounds=config.rounds,
        generator=seeded(config.seed, "policy"),
        explores=explores,
        ranks=ranks,
        device=resolve_policy_device(config.policy_device),
    )
