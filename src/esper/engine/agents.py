"""Who decides: one face for PPO, the heuristic and the baselines, and the one place that builds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from esper.config import Config
from esper.engine.devices import resolve_policy_device
from esper.engine.seeding import generator as seeded
from esper.policy.actions import Choice
from esper.policy.baselines import PERIOD, Periodic, Random, Static
from esper.policy.heuristic import Heuristic
from esper.policy.view import EnvView
from esper.ppo.agent import PPOAgent
from esper.ppo.learner import Learned
from esper.ranks import ALONE, Ranks


class Agent(Protocol):
    """Decides for a population of envs, a round at a time, and learns from it if it can."""

    def begin_round(self, uniform_ETH: Tensor) -> None:
        """Every env was reset. `uniform_ETH` in [0, 1) is all the randomness that the round's decisions may use."""
        ...

    def act(self, step: int, views: Sequence[EnvView]) -> list[Choice]:
        """Decide a step (from 0) for every env; what is decided for one that sits out is not asked."""
        ...

    def reward(self, step: int, rewards: Sequence[float | None], ended: Sequence[bool]) -> None:
        """What the decisions of a step (from 0) came to: for each env the reward, None if it sat out, and whether its
        episode ended with it before its time.
        """
        ...

    def learn(self, views: Sequence[EnvView], round_index: int, generator: torch.Generator) -> Learned | None:
        """Learn from the round; None if there is nothing that learns."""
        ...

    def tensors(self, ranks: Ranks = ALONE) -> dict[str, Tensor]:
        """Tensors that a checkpoint keeps, by name: of this rank's envs, or those of all, which all then must call."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """What else it keeps, by number of the env, as JSON can hold it."""
        ...

    def restore(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniform_ETH: Tensor) -> None:
        """Continue from a checkpoint, in the round whose numbers are `uniform_ETH`."""
        ...


def build_agent(config: Config, slots: int, blueprints: Sequence[str], ranks: Ranks = ALONE) -> Agent:
    """The agent that `--policy` names.

    Raises:
        ConfigError: `--policy-device` is not there.
    """
    if config.policy == "static":
        return Static()
    if config.policy == "random":
        return Random(len(blueprints))
    if config.policy == "heuristic":
        return Heuristic(blueprints)
    if config.policy == "periodic":
        return Periodic(blueprints, PERIOD)
    if config.policy == "full":
        return Periodic(blueprints, period=1)
    return build_ppo(config, slots, blueprints, ranks)


def build_ppo(
    config: Config, slots: int, blueprints: Sequence[str], ranks: Ranks = ALONE, *, explores: bool = True
) -> PPOAgent:
    """The agent that learns, before it has; raises as `build_agent`."""
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
