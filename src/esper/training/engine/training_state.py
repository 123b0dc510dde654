"""TrainingState: the state of a run while it trains, shared by the trainer, run control and the checkpoint writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from esper.common.configuration.config import Config
from esper.common.domain import StepNumber
from esper.common.seeding import EpisodeKey, decision_uniforms
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.common.user_code.references import TaskOrigin
from esper.recordings.events import SearchInfo
from esper.recordings.state.hub import EventHub
from esper.training.engine.episode import Episode
from esper.training.engine.step import StepResult
from esper.training.envs.env import Env
from esper.training.envs.stopwatch import StepTimer
from esper.training.lanes.errors import FaultError
from esper.training.lanes.pool import EnvPool
from esper.training.policy.agent import Agent


class Director:
    """Chooses the episodes of each round, and ends them: here, every env plays in every round, for all steps.

    Args:
        training: State of the run.
    """

    def __init__(self, training: TrainingState) -> None:
        self._training = training

    @property
    def is_lockstep(self) -> bool:
        """True if all ranks end each step together, and agree on a fault of one of them."""
        return False

    @property
    def has_ended(self) -> bool:
        """True once the run is to end."""
        return self._training.round >= self._training.config.rounds

    @property
    def search(self) -> SearchInfo | None:
        """Budget and aim of a search; None if the run is none."""
        return None

    def begin_round(self) -> dict[Env, EpisodeKey]:
        """Return the key of the episode of each env that plays in the next round."""
        return self._training.pool.keys_of(self._training.round)

    def start_round(self) -> None:
        """Prepare and report the episodes of the round that has begun."""

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Measure the networks of a group after its step, before the slots tick."""

    def end_group(self, result: StepResult) -> None:
        """Evaluate the step of a group, and make envs inactive whose episodes have ended."""

    def end_step(self, seconds: float) -> bool:  # noqa: ARG002 (a growth counts them)
        """Note the duration of a step of all envs. Return True if it was the last of the round."""
        return False

    def end_round(self) -> None:
        """Evaluate the episodes of a round."""

    def recover(self, fault: FaultError) -> bool:  # noqa: ARG002 (a growth blames a candidate)
        """Return True if the run continues, with a new round, after a step that failed."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps, keyed by env index, as JSON-compatible values; can be empty.

        All ranks call it together, and `state_tensors`. The values under `ALL_ENVS` are the same on all ranks.
        """
        return {}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint keeps, by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of a checkpoint."""

    def resume(self) -> None:
        """Continue after a checkpoint was restored. All ranks call it together."""


class TrainingState:
    """Envs, episodes, agent and progress of the run on this rank.

    Args:
        pool: Envs of this rank.
        ranks: Ranks that train together, each with its own pool.
        origin: Source of the task, for checkpoints; None for a built-in one.

    Attributes:
        episodes: The current episode of each env, in the order of `pool.envs`.
        round: Number of completed rounds, which is also the 0-based index of the round in progress.
        step: Number of completed steps of the round in progress.
        director: Chooses the episodes of each round; a growth replaces it.
        timer: Measures the phases of a step.
    """

    def __init__(
        self,
        *,
        config: Config,
        pool: EnvPool,
        agent: Agent,
        hub: EventHub,
        ranks: RankGroup = SINGLE_RANK,
        origin: TaskOrigin | None = None,
    ) -> None:
        self.config = config
        self.origin = origin
        self.ranks = ranks
        self.pool = pool
        self.agent = agent
        self.hub = hub
        self.episodes = [Episode(env, config) for env in pool.envs]
        self.round = 0
        self.step = 0
        self.director = Director(self)
        self.timer = StepTimer([lane.stopwatch for lane in pool.lanes])

    @property
    def has_ended(self) -> bool:
        """True if all rounds are completed."""
        return self.director.has_ended

    @property
    def step_number(self) -> StepNumber:
        """1-based round and step of the last completed step."""
        return StepNumber.from_completed(self.round, self.step, self.config.steps)

    def decision_uniforms(self) -> Tensor:
        """Return the uniform random numbers in [0, 1) for all decisions of the current round, [E, T, H]."""
        envs = [env.index for env in self.pool.envs]
        return decision_uniforms(self.config.seed, envs, self.config.steps, self.round)
