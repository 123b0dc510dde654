"""Per-episode state of one env: observation view, reward, gates, and last good state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import msgspec
from torch import Tensor

from esper.common.configuration.config import Config
from esper.common.domain import Op
from esper.common.seeding import EpisodeKey
from esper.networks.seeds.lifecycle import GateResult, StageTransition
from esper.networks.seeds.network import count_samples
from esper.networks.seeds.slot import Slot
from esper.networks.tasks.family import RENT
from esper.training.envs.env import Env
from esper.training.envs.env_state import env_state_tensors, load_tensors
from esper.training.envs.governor import COLLAPSE_STEPS, Breakdown, LastGoodState, find_collapse, find_non_finite
from esper.training.lanes.pool import EnvEpoch, EnvPool
from esper.training.policy.actions import Action
from esper.training.policy.agent import EnvStatus, strip_prefix
from esper.training.ppo.rewards import RewardFunction, rent_cost

_VIEW_FIELDS = (
    "step",
    "losses",
    "scores",
    "train_loss",
    "train_score",
    "grad_norm",
    "parameter_ratio",
    "rent",
    "last_op",
    "last_moved",
)


class StepOutcome(NamedTuple):
    """Result of one step of one env."""

    reward_parts: dict[str, float]
    """Components of the reward."""
    breakdown: Breakdown | None = None
    """Reason for the rollback; None without one."""
    removed: Sequence[StageTransition] = ()
    """Transitions of the seeds that the rollback removed."""


class Episode:
    """The view of an env, its reward, and the totals reported at the end of the episode.

    Attributes:
        view: State of the env that policies may read.
        episode_return: Sum of the rewards so far.
        culled: Number of seeds culled so far.
    """

    def __init__(self, env: Env, config: Config) -> None:
        self.env = env
        self._base_weights = config.reward_weights
        self._steps = config.steps
        self._measured = config.counterfactual != "off"
        self.last_good = LastGoodState(env)
        self.reward = RewardFunction(config.reward, config.reward_weights, config.ppo, config.steps)
        self.begin(math.nan, math.nan)

    def begin(self, loss: float, score: float) -> None:
        """Start an episode with a fresh host, given its validation loss and score."""
        rent = self.env.context.settings.get(RENT, self._base_weights.rent)
        self._weights = msgspec.structs.replace(self._base_weights, rent=float(rent))
        self.view = EnvStatus(
            env=self.env.index,
            slots=self.env.network.slots,
            steps=self._steps,
            chance_loss=self.env.profile.chance.loss,
            chance_score=self.env.profile.chance.score,
            score_name=self.env.task.score_name,
            score_scale=self.env.task.score_scale,
            rent_weight=self._weights.rent,
            host_parameters=self.env.network.host_parameter_count,
            kernel_size=self.env.profile.kernel_size,
            train_samples=count_samples(self.env.splits.train[0]),
            losses=[loss],
            scores=[score],
        )
        self.reward.begin(self.rewarded(score))
        self.view.known_return = self.reward.known_return
        self.episode_return = 0.0
        self.culled = 0
        self.gate_refusals: dict[int, tuple[str, ...]] = {}
        """Gate and names of the failed checks, keyed by the index of each slot that a gate holds back."""
        self.inactive = False
        """True after a rollback: the env waits for the next round."""
        self.unhealthy_steps = 0
        """Number of consecutive unhealthy steps up to now; the last good state is from before them."""
        self.last_good.save()

    def record_step(self, action: Action, epoch: EnvEpoch) -> StepOutcome:
        """Record a step. An env that broke down is rolled back to its last good state, and its episode ends."""
        measured = epoch.measured
        view, network = self.view, self.env.network
        view.step += 1
        view.losses.append(measured.loss)
        view.scores.append(measured.score)
        view.train_loss, view.train_score = measured.train_loss, measured.train_score
        view.grad_norm = measured.grad_norm
        view.parameter_ratio = network.parameter_ratio
        view.rent = rent_cost(network.parameter_ratio, network.host_parameter_count, self._weights)
        view.last_op, view.last_moved = action.op, bool(epoch.moves)
        # One value that is not finite would reach the policy's weights through the rewards.
        dependences = (value for value, _ in measured.dependences.values() if math.isfinite(value))
        score = self.rewarded(measured.score if math.isfinite(measured.score) else view.chance_score)
        breakdown = find_non_finite(measured)
        symptom = breakdown or find_collapse(view)
        self.unhealthy_steps = self.unhealthy_steps + 1 if symptom else 0
        if self.unhealthy_steps == COLLAPSE_STEPS:
            breakdown = symptom
        potential = view.share(sum(dependences)) if self._measured else None
        is_op = action.op != Op.WAIT
        parts = self.reward.step(score, potential, view.rent, is_op=is_op, is_breakdown=breakdown is not None)
        self.episode_return += sum(parts.values())
        view.known_return = self.reward.known_return
        if not self.unhealthy_steps:
            self.last_good.save()
        if breakdown is None:
            return StepOutcome(parts)
        self.inactive = True
        removed = self.last_good.rollback()
        del view.losses[-self.unhealthy_steps :], view.scores[-self.unhealthy_steps :]
        self.unhealthy_steps = 0
        self.update_parameter_ratio()
        return StepOutcome(parts, breakdown, removed)

    def rewarded(self, score: float) -> float:
        """Return a score as it is rewarded, a fraction; see `ScoreScale.fraction`."""
        return self.view.score_scale.fraction(score, self.view.chance_score)

    def update_parameter_ratio(self) -> None:
        """Update the parameter ratio of the view after seeds may have been removed, by a rollback or a tick."""
        self.view.parameter_ratio = self.env.network.parameter_ratio

    def changed_gates(self) -> list[tuple[Slot, GateResult]]:
        """Return the slots whose next gate has changed, each with its result.

        A gate has changed if it now refuses, refuses for another reason, or passes again.
        """
        # An empty slot without an earlier refusal has none.
        relevant = (
            (slot, self._changed_gate(index, slot))
            for index, slot in enumerate(self.env.network.slots)
            if slot.blueprint is not None or index in self.gate_refusals
        )
        return [(slot, result) for slot, result in relevant if result]

    def _changed_gate(self, index: int, slot: Slot) -> GateResult | None:
        result = slot.check_next_gate()
        before = self.gate_refusals.pop(index, None)
        if result is None:
            return None
        if result.passed:
            return result if before and before[0] == result.gate else None
        now = self.gate_refusals[index] = (result.gate, *result.failed_checks)
        return result if now != before else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. Its keys are part of the checkpoint format."""
        return {
            "view": {name: copy(getattr(self.view, name)) for name in _VIEW_FIELDS},  # the lists keep growing
            "reward": self.reward.state_dict(),
            "episode_return": self.episode_return,
            "culled": self.culled,
            "inactive": self.inactive,
            "unhealthy_steps": self.unhealthy_steps,
            "gate_refusals": {str(index): list(names) for index, names in self.gate_refusals.items()},
            "slots": [slot.lifecycle_state() for slot in self.env.network.slots],
            "host_env": self.env.key.env,
            "host_round": self.env.key.round,
            "host_width": self.env.key.width,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a state dict. Builds the seeds; the caller loads their weights from the tensors of the checkpoint."""
        key = self.env.key._replace(env=saved["host_env"], round=saved["host_round"], width=saved["host_width"])
        self.env.enter(key)
        for slot, state in zip(self.env.network.slots, saved["slots"], strict=True):
            slot.load_lifecycle_state(state)
        self.env.slot_optimizers.clear()
        self.env.sync_optimizers()
        self.begin(math.nan, math.nan)
        for name in _VIEW_FIELDS:
            setattr(self.view, name, copy(saved["view"][name]))  # a snapshot can be restored several times
        self.reward.load_state_dict(saved["reward"])
        self.view.known_return = self.reward.known_return
        self.episode_return = saved["episode_return"]
        self.culled = saved["culled"]
        self.inactive, self.unhealthy_steps = saved["inactive"], saved["unhealthy_steps"]
        self.gate_refusals = {int(index): tuple(names) for index, names in saved["gate_refusals"].items()}


class EpisodeSnapshot(NamedTuple):
    """All state that the next step of an episode depends on."""

    state: dict[str, Any]
    """Result of `Episode.state_dict`."""
    tensors: Mapping[str, Tensor]
    """Tensors of the env, and those of its last good state, with the prefix `good.`, if the last step was unhealthy."""
    scaler: dict[str, Any] | None
    """State of the loss scaler; None without loss scaling."""


def capture_episode(episode: Episode) -> EpisodeSnapshot:
    """Return the state of an episode. The tensors are the live ones: the next step changes them."""
    tensors = dict(env_state_tensors(episode.env))
    if episode.unhealthy_steps:
        tensors |= {f"good.{name}": value for name, value in episode.last_good.named_tensors().items()}
    scaler = episode.env.scaler
    return EpisodeSnapshot(episode.state_dict(), tensors, scaler.state_dict() if scaler else None)


def install_episode(episode: Episode, snapshot: EpisodeSnapshot) -> None:
    """Set the state of an episode from a snapshot. Raises RuntimeError if a tensor is missing or has another shape."""
    episode.load_state_dict(snapshot.state)
    load_tensors(env_state_tensors(episode.env), snapshot.tensors)
    if episode.env.scaler and snapshot.scaler:
        episode.env.scaler.load_state_dict(snapshot.scaler)
    if episode.unhealthy_steps:
        episode.last_good.load_tensors(strip_prefix("good.", snapshot.tensors))
    else:
        episode.last_good.save()


def begin_episodes(pool: EnvPool, episodes: Sequence[Episode], keys: Mapping[Env, EpisodeKey]) -> None:
    """Give envs the fresh hosts of their keys, and begin their episodes. The others wait: they are inactive.

    Args:
        episodes: The episode of each env, in the order of `pool.envs`.
        keys: Key of the random draws of each env that plays; can be empty.

    Raises:
        FaultError: A lane failed.
    """
    seated = [episode for episode in episodes if episode.env in keys]
    begun = pool.begin({episode.env: keys[episode.env] for episode in seated}) if seated else ()
    for episode, (loss, score) in zip(seated, begun, strict=True):
        episode.begin(loss, score)
    for episode in episodes:
        if episode.env not in keys:
            episode.inactive, episode.view.step = True, 0


def revalidate(pool: EnvPool, episodes: Sequence[Episode]) -> None:
    """Re-validate envs after a rollback, because the rollback removed seeds."""
    for episode, (loss, score) in zip(episodes, pool.validate([episode.env for episode in episodes]), strict=True):
        episode.view.losses[-1], episode.view.scores[-1] = loss, score
