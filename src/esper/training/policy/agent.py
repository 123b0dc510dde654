"""The protocol that every policy implements, the view of an env that it reads, and the report of an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from esper.common.score_scale import PERCENT, ScoreScale
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.networks.seeds.slot import Slot
from esper.training.policy.actions import ChosenAction

ALL_ENVS = "all"
"""Key, in a state that is keyed by env index, of what belongs to no env and is the same on all ranks."""


class Agent(Protocol):
    """Decides for a population of envs, one round at a time, and learns from the round if it can.

    A policy of a user is a function or class that returns an agent. Each process calls it once, with the keyword
    arguments `sites` (a `SlotSite` for each slot), `blueprints` (names that it can select), `envs` and `steps` (counts)
    and `generator` (of torch, on the CPU). `NonLearningAgent`, a base class, has all methods but `act`. An exception in
    a method is a fault of the run.

    Shapes: E envs of this process, T steps, H heads. Tensors that a method receives are on the CPU.
    """

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin a round, after every env was reset.

        Args:
            uniforms_ETH: Uniform random numbers in [0, 1), float32, the only randomness that decisions of the round may
                use.
        """
        ...

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Return a decision for each of some envs. The decision for an inactive env is ignored.

        In each step, this is called for the first half of the envs, then for the second half; once for all if there is
        one env, or if envs share a loss scale.

        Args:
            step: Index of the step, from 0.
            views: One view per env, of consecutive envs.

        Returns:
            One decision per view, in their order.
        """
        ...

    def record_rewards(
        self, step: int, views: Sequence[EnvStatus], rewards: Sequence[float | None], terminated: Sequence[bool]
    ) -> None:
        """Receive the results of the decisions for some envs.

        Args:
            step: Index of the step, from 0.
            views: One view per env, after the step.
            rewards: Reward of each env; None if it was inactive.
            terminated: True for each env whose episode ended early in this step.
        """
        ...

    def learn(self, views: Sequence[EnvStatus], round_index: int, generator: torch.Generator) -> UpdateStats | None:
        """Learn from the round. Return None if this policy does not learn.

        Args:
            views: One view per env of this process, after the last step.
            round_index: Index of the round, from 0.
            generator: Generator on the CPU for the order of minibatches, seeded for the round.
        """
        ...

    def state_tensors(self, ranks: RankGroup = SINGLE_RANK) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint keeps, by name.

        Args:
            ranks: Ranks whose envs are included. With several ranks, all of them must call this together.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the rest of the state that a checkpoint keeps, keyed by env index, as JSON-compatible values."""
        ...

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Resume from a checkpoint.

        Args:
            state: Result of `state_dict`.
            tensors: Result of `state_tensors`.
            uniforms_ETH: Random numbers of the round in progress.
        """
        ...


@dataclass(kw_only=True, slots=True)
class EnvStatus:
    """State of one env before a decision, identical for PPO and all baselines. Written by the engine, read by policies.

    Attributes:
        env: Index of the env, from 0.
        slots: Slots of the live network, in the order of the forward pass; read-only. Each has `site` (a `SlotSite`),
            `stage`, `blueprint`, `alpha`, `age` in epochs and `dependence` (what the score would lose without the
            seed), and says which ops are legal: `can_germinate`, `can_advance`, `can_set_alpha`, `can_cull` and
            `can_fossilize`.
        step: Number of completed steps of the episode.
        steps: Number of steps of an episode.
        chance_loss: Loss of a constant output: the scale of losses.
        chance_score: Score of a constant output.
        score_name: Name of the task's score, for messages.
        score_scale: Range and better end of the scores.
        losses: Validation losses: before the first step, then after each step.
        scores: Validation scores at the same times: fractions, unless the task's score is one of a whole split.
        train_loss: Training loss of the last step; None before the first.
        train_score: Training score of the last step; None before the first.
        grad_norm: Gradient norm of the host in the last step; None before the first, and if it is frozen.
        parameter_ratio: Parameters of host and seeds over those of the bare host.
        rent: Rent of the last step, in units of the score.
        rent_weight: Rent of a step, in units of the score, for each natural logarithm of 1 + grown / host parameters.
        host_parameters: Number of parameters of the bare host.
        kernel_size: Largest kernel size of the host's convolutions; 1 without any.
        train_samples: Number of different training samples.
        last_op: `Op` of the last step.
        last_moved: True if the last op changed the stage of a seed; False if it changed only its alpha, or nothing.
        known_return: Part of the return from here on that does not depend on what happens, in units of the score.
    """

    env: int
    slots: Sequence[Slot]
    step: int = 0
    steps: int
    chance_loss: float
    chance_score: float
    score_name: str = "accuracy"
    score_scale: ScoreScale = PERCENT
    losses: list[float] = field(default_factory=list[float])
    scores: list[float] = field(default_factory=list[float])
    train_loss: float | None = None
    train_score: float | None = None
    grad_norm: float | None = None
    parameter_ratio: float = 1.0
    rent: float = 0.0
    rent_weight: float = 0.0
    host_parameters: int = 1
    kernel_size: int = 1
    train_samples: int = 1
    last_op: int = 0
    last_moved: bool = False
    known_return: float = 0.0

    def share(self, gain: float) -> float:
        """Return a gain in score, such as the dependence on a seed, in units of the reward; see `ScoreScale.share`."""
        return self.score_scale.share(gain, self.chance_score)


@dataclass(frozen=True, kw_only=True)
class UpdateStats:
    """Statistics of one policy update, means over its minibatches.

    Attributes:
        kl: Mean KL divergence of the last epoch.
        explained_variance: None if the returns do not vary.
        within_step_explained_variance: The same across envs, within each step; None if no step has returns that vary.
        stopped_early: True if the KL limit ended the update before its last epoch.
        head_grad_norms: Keyed by head; None for a head without a gradient.
        head_entropies: Keyed by head, as fractions of their maxima; None for a head that never had a choice.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    clip_fraction: float
    explained_variance: float | None
    within_step_explained_variance: float | None
    grad_norm: float
    learning_rate: float
    minibatches: int
    stopped_early: bool
    head_grad_norms: dict[str, float | None]
    head_entropies: dict[str, float | None]


def rows_of(views: Sequence[EnvStatus], first_env: int) -> slice:
    """Return the rows of consecutive envs in a tensor with one row per env of this process.

    Args:
        first_env: Index of the first env of this process.
    """
    first = views[0].env - first_env
    return slice(first, first + len(views))


def strip_prefix(prefix: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose name starts with `prefix`, keyed by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
