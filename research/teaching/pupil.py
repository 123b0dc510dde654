"""Pupil: the policy network, trained from lessons.

The outcome of every alternative of a lesson is known, so nothing has to be sampled (expert iteration; Anthony et al.,
2017). For alternative p of a lesson:

    π(p)   probability that the network takes all decisions of the alternative
    w(p)   π(p) / Σ π, over all alternatives of the lesson
    q(p)   improved policy: softmax of the returns, averaged over the orders, divided by a temperature that falls

Two losses teach q:

    imitation, −Σ q·log π            Its minimum is the mean of q over the contexts that look the same.
    improvement, KL(w ‖ q) − log Σπ  The first term maximises the expected return under w, with an entropy bonus. The
                                     second one maximises Σ π, which is at most 1.

Training begins with imitation and ends with improvement. With improvement alone, the network would prefer the
alternatives with few decisions, because their π is high before any training. The temperature falls, because most
alternatives grow: if they lose little, many of them together would outweigh the single one that does not grow.

Shapes: N episodes, G lessons in one order each, O orders, P alternatives, T steps, F features, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from research.teaching.exercises import Exercise, split_lesson
from research.teaching.lessons import Lesson, pad_lesson
from torch import Tensor

from esper.common.configuration.config import PPOConfig
from esper.training.engine.trained_policy import TrainedPolicy
from esper.training.policy.masks import ActionMasks
from esper.training.policy.network import PolicyNetwork
from esper.training.policy.observation import ObservationShape
from esper.training.ppo.normaliser import ObservationNormaliser, RunningMeanStd


@dataclass(frozen=True, kw_only=True)
class TeachingConfig:
    """Hyperparameters of the teaching."""

    epochs: int = 50
    """Number of passes over all lessons."""
    lessons: int = 8
    """Number of lessons of a minibatch, in one order each."""
    learning_rate: float = 1e-3
    """Learning rate of Adam; it falls linearly to a tenth."""
    temperature: float = 0.02
    """Difference of net return that makes an alternative e times as probable in the improved policy, at first."""
    last_temperature: float = 0.005
    """Temperature in the last update. It falls exponentially."""
    imitation: float = 0.4
    """Fraction of the training in which the weight of the imitation falls from 1 to 0; 0: no imitation."""
    rents: tuple[float, float] = (0.0005, 0.008)
    """Range of the weights of the rent, drawn log-uniformly for each lesson of a minibatch."""
    value_coef: float = 0.25
    """Weight of the value loss."""
    max_grad_norm: float = 1.0
    """Maximum norm of the gradient; a larger one is scaled down."""


class Evaluated(NamedTuple):
    """Probabilities and values that the network gives to the alternatives of some lessons."""

    log_prob_N: Tensor
    """log π of each alternative."""
    weight_N: Tensor
    """w of each alternative."""
    total_G: Tensor
    """log Σ π of each lesson."""
    value_NT: Tensor
    """Value of each step, normalised as by `Pupil.returns`."""


class Batch(NamedTuple):
    """Episodes of some lessons, in one order each."""

    obs_NTF: Tensor
    """Normalised observations."""
    blueprint_NTS: Tensor
    masks: ActionMasks
    actions_NTH: Tensor
    valid_NT: Tensor
    group_N: Tensor
    """Index of the lesson of each episode."""
    return_N: Tensor
    """Net return of the alternative, averaged over the orders."""
    unknown_NT: Tensor
    """Return from each step on minus its known part, which is the target of the critic."""


class Pupil:
    """A policy network that learns from lessons.

    Args:
        lessons: One or more lessons, of any tasks. A minibatch has lessons of one number of steps.
        config: Hyperparameters of the teaching.
        ppo: Configuration that the policy is stored with; the network has its size.
        seed: Random seed of the initial weights, the rents and the order of the lessons.
        rents: Range of the weights of the rent for which each lesson has good alternatives; None: that of the
            configuration for all.

    Attributes:
        exercises: All lessons, by order.
        config: Hyperparameters of the teaching.
        network: The policy network.
        observations: Normaliser of the observations.
        returns: Mean and standard deviation of the targets of the critic.
    """

    def __init__(
        self,
        lessons: Sequence[Lesson],
        config: TeachingConfig,
        ppo: PPOConfig,
        seed: int,
        rents: Sequence[tuple[float, float]] | None = None,
    ) -> None:
        slots = max(lesson.blueprint_OPTS.shape[-1] for lesson in lessons)
        blueprints = max(lesson.masks.blueprint_ESB.shape[-1] for lesson in lessons)
        shape = ObservationShape(slots, blueprints)
        self.config = config
        self._ppo = ppo
        self._generator = torch.Generator().manual_seed(seed)
        self.exercises = [
            exercise
            for lesson, own in zip(lessons, rents or [config.rents] * len(lessons), strict=True)
            for exercise in split_lesson(pad_lesson(lesson, *shape), own)
        ]
        self.network = PolicyNetwork(shape, ppo.hidden)
        self.network.initialise(self._generator)
        self.observations = ObservationNormaliser(shape)
        self.returns = RunningMeanStd(1)
        self._optimizer = torch.optim.Adam(self.network.parameters(), config.learning_rate, eps=1e-5)
        self._fit_normalisers()

    def learn(self) -> Iterator[dict[str, float]]:
        """Train the network. Yield the means of each pass over the lessons, keyed by name.

        Yields:
            The losses `imitation`, `divergence` and `value`; `inside`, the mean of log Σ π; and the net returns
            `expected`, under w, and `best`, of the best alternative.
        """
        config = self.config
        for epoch in range(config.epochs):
            found: list[dict[str, float]] = []
            batches = self._minibatches()
            for index, chosen in enumerate(batches):
                progress = (epoch + index / len(batches)) / config.epochs
                self._optimizer.param_groups[0]["lr"] = config.learning_rate * (1 - 0.9 * progress)
                imitation = max(0.0, 1 - progress / config.imitation) if config.imitation else 0.0
                temperature = config.temperature * (config.last_temperature / config.temperature) ** progress
                found.append(self._step(self.batch(chosen), imitation, temperature))
            yield {name: math.fsum(stats[name] for stats in found) / len(found) for name in found[0]}

    def policy(self, name: str) -> TrainedPolicy:
        """Return a copy of the current policy, with a name."""
        parts = {"network.": self.network, "observations.": self.observations, "returns.": self.returns}
        tensors = {
            prefix + key: value.clone() for prefix, part in parts.items() for key, value in part.state_dict().items()
        }
        return TrainedPolicy(name, self._ppo, tensors)

    def batch(self, chosen: Sequence[Exercise], rents: Sequence[float] | None = None) -> Batch:
        """Return a batch of exercises.

        Args:
            chosen: Exercises with one number of steps.
            rents: Weight of the rent for each; None: drawn.
        """
        rents = rents or [self._draw_rent(exercise) for exercise in chosen]
        pairs = list(zip(chosen, rents, strict=True))
        masks = zip(*(exercise.masks for exercise in chosen), strict=True)
        return Batch(
            self.observations.normalise(torch.cat([exercise.observations(rent) for exercise, rent in pairs])),
            torch.cat([exercise.blueprint_PTS for exercise in chosen]),
            ActionMasks(*map(torch.cat, masks)),
            torch.cat([exercise.actions_PTH for exercise in chosen]),
            torch.cat([exercise.valid_PT for exercise in chosen]),
            torch.cat([torch.full((len(exercise.valid_PT),), index) for index, exercise in enumerate(chosen)]),
            torch.cat([exercise.returns(rent) for exercise, rent in pairs]).float(),
            torch.cat([exercise.unknown_returns(rent) for exercise, rent in pairs]).float(),
        )

    def evaluate(self, batch: Batch) -> Evaluated:
        """Return the probabilities and values of the alternatives of a batch."""
        network, groups = self.network, int(batch.group_N[-1]) + 1
        features, _ = network.encode(batch.obs_NTF, batch.blueprint_NTS, network.initial_state(len(batch.obs_NTF)))
        legal_NTHA = batch.masks.given(batch.actions_NTH[..., 0], batch.actions_NTH[..., 1])
        evaluation = network.evaluate(features, batch.actions_NTH, legal_NTHA)
        taken_NTH = evaluation.has_choice_H & batch.valid_NT.unsqueeze(-1)
        log_prob_N = torch.where(taken_NTH, evaluation.log_prob_H, 0.0).sum(dim=(1, 2))
        total_G = _log_sum_exp(log_prob_N, batch.group_N, groups)
        return Evaluated(log_prob_N, (log_prob_N - total_G[batch.group_N]).exp(), total_G, evaluation.value)

    def _step(self, batch: Batch, imitation: float, temperature: float) -> dict[str, float]:
        """Update the network once, and return the statistics of the batch.

        Args:
            imitation: Weight of the imitation, 0 to 1.
            temperature: Difference of net return that makes an alternative e times as probable.
        """
        config = self.config
        found = self.evaluate(batch)
        groups = len(found.total_G)
        scaled_N = batch.return_N / temperature
        log_q_N = scaled_N - _log_sum_exp(scaled_N, batch.group_N, groups)[batch.group_N]
        q_N = log_q_N.exp()
        imitated = -(q_N * found.log_prob_N).sum() / groups
        log_w_N = found.log_prob_N - found.total_G[batch.group_N]
        divergence = (found.weight_N * (log_w_N - log_q_N)).sum() / groups
        improved = divergence - found.total_G.mean()
        target_NT = (batch.unknown_NT - self.returns.mean) / self.returns.std
        weight_N = 0.5 * (found.weight_N.detach() + q_N)
        error_NT = torch.where(batch.valid_NT, (found.value_NT - target_NT).square(), 0.0)
        value = (weight_N.unsqueeze(1) * error_NT).sum() / groups / batch.valid_NT.shape[1]
        loss = imitation * imitated + (1 - imitation) * improved + config.value_coef * value
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), config.max_grad_norm)
        cast("Any", self._optimizer).step()
        with torch.no_grad():
            expected = (found.weight_N * batch.return_N).sum() / groups
            best = torch.stack([batch.return_N[batch.group_N == group].max() for group in range(groups)]).mean()
        stats = {"imitation": imitated, "divergence": divergence, "inside": found.total_G.mean(), "value": value}
        stats |= {"expected": expected, "best": best}
        return {name: float(value.detach()) for name, value in stats.items()}

    def _minibatches(self) -> list[list[Exercise]]:
        """Return all exercises as minibatches of one number of steps, in random order."""
        by_steps: dict[int, list[Exercise]] = {}
        for exercise in self.exercises:
            by_steps.setdefault(exercise.valid_PT.shape[1], []).append(exercise)
        batches: list[list[Exercise]] = []
        for items in by_steps.values():
            shuffled = [items[index] for index in self._permutation(len(items))]
            size = self.config.lessons
            batches += [shuffled[first : first + size] for first in range(0, len(shuffled), size)]
        return [batches[index] for index in self._permutation(len(batches))]

    def _permutation(self, count: int) -> list[int]:
        return cast("Any", torch.randperm(count, generator=self._generator)).tolist()

    def _draw_rent(self, exercise: Exercise) -> float:
        low, high = map(math.log, exercise.rents)
        return math.exp(low + (high - low) * float(torch.rand((), generator=self._generator)))

    def _fit_normalisers(self) -> None:
        """Set the statistics of observations and returns to those of the exercises at random rents."""
        for index in self._permutation(len(self.exercises)):
            exercise = self.exercises[index]
            rent = self._draw_rent(exercise)
            self.observations.update(exercise.observations(rent)[exercise.valid_PT])
            self.returns.update(exercise.unknown_returns(rent)[exercise.valid_PT].float().unsqueeze(-1))


def _log_sum_exp(values_N: Tensor, group_N: Tensor, groups: int) -> Tensor:
    """Return the logarithm of the sum of the exponentials of each group, [G].

    Args:
        group_N: Index of the group of each value.
        groups: Number of groups, G. Each has a value.
    """
    highest_G = values_N.new_full((groups,), -math.inf).scatter_reduce(0, group_N, values_N.detach(), "amax")
    sums_G = values_N.new_zeros(groups).index_add(0, group_N, (values_N - highest_G[group_N]).exp())
    return highest_G + sums_G.log()
