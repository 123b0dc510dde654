"""Factory of the policy that the configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from esper.common.configuration.config import Config, ConfigError
from esper.common.seeding import make_generator
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.common.user_code.references import describe_exception, user_errors
from esper.networks.seeds.site import SlotSite
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.training.engine.trained_policy import TrainedPolicy, initial_policy, read_trained_policy
from esper.training.lanes.devices import resolve_policy_device
from esper.training.policy.agent import Agent
from esper.training.policy.baselines import PLANT_INTERVAL_STEPS, PeriodicAgent, RandomAgent, StaticAgent
from esper.training.policy.heuristic import HeuristicAgent
from esper.training.policy.loading import PRETRAINED, is_own_policy, load_policy
from esper.training.policy.plan import parse_plan
from esper.training.policy.plan_agent import PlanAgent
from esper.training.ppo.agent import PPOAgent


def build_agent(
    config: Config,
    sites: Sequence[SlotSite],
    blueprints: Sequence[str],
    ranks: RankGroup = SINGLE_RANK,
    *,
    resumes: bool = False,
) -> Agent:
    """Return the policy that `--policy` names.

    Args:
        resumes: The run resumes from a checkpoint of its own, which has the weights of the policy. Other checkpoints,
            of `--policy` or `--init-policy`, are not read again: they may be gone.

    Raises:
        CheckpointError: The policy, or the one to begin with, is a checkpoint that has none.
        ReadError: The run of the policy to begin with does not exist.
        ConfigError: `--policy-device` was not found, or the user's policy cannot be loaded.
    """
    match config.policy:
        case "ppo":
            agent = build_ppo(config, sites, blueprints, ranks)
            agent.freezes_observations = bool(config.init_policy)
            if not resumes and (initial := initial_policy(config)):
                load_trained(agent, initial)
                agent.returns.forget()
            return agent
        case "heuristic":
            return HeuristicAgent(blueprints)
        case "periodic":
            return PeriodicAgent(blueprints, PLANT_INTERVAL_STEPS)
        case "random":
            return RandomAgent(blueprints, ranks.env_range(config.envs).start)
        case "static":
            return StaticAgent()
        case "full":
            return PeriodicAgent(blueprints, period=1)
        case "plan":
            return PlanAgent(parse_plan(config.plan, config.steps), sites, blueprints)
        case reference if is_own_policy(reference):
            return _build_own(config, sites, blueprints, ranks)
        case reference if resumes and reference != PRETRAINED:
            return build_ppo(config, sites, blueprints, ranks, stochastic_heads=False)
        case reference:
            policy = read_trained_policy(reference, Path(config.telemetry_dir))
            return build_trained(policy, config, sites, blueprints, ranks)


def _build_own(config: Config, sites: Sequence[SlotSite], blueprints: Sequence[str], ranks: RankGroup) -> Agent:
    """Return a policy of the user. Raises ConfigError if its code fails, or if it is not an `Agent`."""
    build = load_policy(config.policy)
    where = f"--policy {config.policy}"
    try:
        agent = build(
            sites=sites,
            blueprints=blueprints,
            envs=len(ranks.env_range(config.envs)),
            steps=config.steps,
            generator=make_generator(config.seed, "policy"),
        )
    except user_errors() as error:
        raise ConfigError(f"{where}: {describe_exception(error)}") from error
    methods = [name for name in vars(Agent) if not name.startswith("_")]
    if missing := [name for name in methods if not callable(getattr(agent, name, None))]:
        raise ConfigError(
            f"{where}: {type(agent).__name__} lacks the methods {', '.join(missing)}; derive it from "
            "esper.NonLearningAgent, which has all but act"
        )
    return agent


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
        stochastic_heads: Sample every head; see `PPOAgent`.
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


def build_trained(
    policy: TrainedPolicy,
    config: Config,
    sites: Sequence[SlotSite],
    blueprints: Sequence[str],
    ranks: RankGroup = SINGLE_RANK,
) -> PPOAgent:
    """Return a trained PPO policy, which acts on any task and does not learn.

    Raises:
        CheckpointError: The policy does not fit this version.
    """
    acting = msgspec.structs.replace(config, ppo=policy.ppo)
    agent = build_ppo(acting, sites, blueprints, ranks, stochastic_heads=False)
    load_trained(agent, policy)
    return agent


def load_trained(agent: PPOAgent, policy: TrainedPolicy) -> None:
    """Load the network and the normalisers of a trained policy.

    Raises:
        CheckpointError: The policy does not fit this version.
    """
    try:
        agent.load_policy(policy.tensors)
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{policy.name} does not fit this version of esper-sanctum: {error}") from error
