"""Factory of the policy that the configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from esper.checkpoint.catalog import is_checkpoint
from esper.checkpoint.files import Checkpoint, read_checkpoint
from esper.checkpoint.manifest import CheckpointError
from esper.config import Config
from esper.growth.site import SlotSite
from esper.lanes.devices import resolve_policy_device
from esper.policy.agent import Agent, strip_prefix
from esper.policy.baselines import PLANT_INTERVAL_STEPS, PeriodicAgent, RandomAgent, StaticAgent
from esper.policy.heuristic import HeuristicAgent
from esper.policy.loading import load_policy
from esper.policy.plan import parse_plan
from esper.policy.plan_agent import PlanAgent
from esper.ppo.agent import PPOAgent
from esper.ranks import SINGLE_RANK, RankGroup
from esper.seeding import make_generator


def build_agent(
    config: Config, sites: Sequence[SlotSite], blueprints: Sequence[str], ranks: RankGroup = SINGLE_RANK
) -> Agent:
    """Return the policy that `--policy` names.

    Raises:
        CheckpointError: The policy is a checkpoint, and it has none.
        ConfigError: `--policy-device` was not found, or the user's policy cannot be loaded.
    """
    match config.policy:
        case "ppo":
            return build_ppo(config, sites, blueprints, ranks)
        case "heuristic":
            return HeuristicAgent(blueprints)
        case "periodic":
            return PeriodicAgent(blueprints, PLANT_INTERVAL_STEPS)
        case "random":
            return RandomAgent(blueprints)
        case "static":
            return StaticAgent()
        case "full":
            return PeriodicAgent(blueprints, period=1)
        case "plan":
            return PlanAgent(parse_plan(config.plan, config.steps), sites, blueprints)
        case reference if is_checkpoint(path := Path(reference)):
            return load_ppo(read_checkpoint(path), path, config, sites, blueprints, ranks)
        case _:
            return load_policy(config.policy)(
                sites=sites,
                blueprints=blueprints,
                envs=len(ranks.env_range(config.envs)),
                steps=config.steps,
                generator=make_generator(config.seed, "policy"),
            )


def build_ppo(
    config: Config,
    sites: Sequence[SlotSite],
    blueprints: Sequence[str],
    ranks: RankGroup = SINGLE_RANK,
    *,
    stochastic_heads: bool = True,
) -> PPOAgent:
    """Return an untrained PPO agent.

    Args:
        config: Configuration of the run.
        sites: Places of the slots of an env.
        blueprints: Names of the blueprints.
        ranks: Ranks that share the envs and learn together.
        stochastic_heads: Sample every head; see `PPOAgent`.

    Raises:
        ConfigError: `--policy-device` was not found.
    """
    return PPOAgent(
        envs=config.envs,
        steps=config.steps,
        sites=sites,
        blueprints=blueprints,
        config=config.ppo,
        rounds=config.rounds,
        generator=make_generator(config.seed, "policy"),
        stochastic_heads=stochastic_heads,
        ranks=ranks,
        device=resolve_policy_device(config.policy_device),
    )


def load_ppo(
    checkpoint: Checkpoint,
    path: Path,
    config: Config,
    sites: Sequence[SlotSite],
    blueprints: Sequence[str],
    ranks: RankGroup = SINGLE_RANK,
) -> PPOAgent:
    """Return the trained PPO policy of a checkpoint, which can act on any task. It does not learn.

    Args:
        checkpoint: Content of the checkpoint.
        path: Its path, for messages.
        config: Configuration of the run in which the policy acts.
        sites: Places of the slots of an env.
        blueprints: Names of the blueprints.
        ranks: Ranks that share the envs.

    Raises:
        CheckpointError: The checkpoint has no PPO policy.
        ConfigError: `--policy-device` was not found.
    """
    trained = checkpoint.config
    if trained.policy != "ppo":
        raise CheckpointError(
            f"{path} was made with --policy {trained.policy} and has no PPO policy; give a checkpoint made with "
            "--policy ppo"
        )
    acting = msgspec.structs.replace(config, ppo=trained.ppo)
    agent = build_ppo(acting, sites, blueprints, ranks, stochastic_heads=False)
    try:
        agent.load_policy(strip_prefix("agent.", checkpoint.tensors))
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit this version of esper-sanctum: {error}") from error
    return agent
