"""Trainings: the trainings of a round on this rank: their best networks, and the reports that decide how they end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from esper.recordings.candidates.candidates import BARE_HOST, Objective, Origin, Outcome
from esper.studies.growth.best_network import BestNetwork, load_network, network_state
from esper.studies.growth.candidate_agent import CandidateAgent
from esper.studies.growth.fresh_scores import NetworkScores, measure_network
from esper.studies.growth.growth import late_gain
from esper.studies.growth.plan_variations import plan_of
from esper.studies.harvest.model import plant_grown
from esper.studies.harvest.structure import GrownSeed
from esper.training.engine.episode import Episode, StepOutcome
from esper.training.engine.training_state import TrainingState
from esper.training.lanes.errors import FaultError
from esper.training.policy.agent import strip_prefix

NOT_FINITE = "its score is not finite"
"""Reason of a training that failed."""


class TrainingJob(NamedTuple):
    """A training that is to be done."""

    candidate: str
    origin: Origin
    fresh: int | None = None
    """Number of the fresh host, from 1; None on the host of the search."""

    @property
    def is_compared(self) -> bool:
        """True if its network is only compared with the answer."""
        return self.origin == "comparison"


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """State of a training after a step. It is sent to rank 0.

    Attributes:
        step: Number of completed steps.
        value: Objective up to now; None if it is unknown.
        net_return: Return up to now.
        late_gain: Gain of the score over the last quarter of a training on a fresh host that is done; None for others.
        best: Description of its best network; None without one.
        outcome: How the training ends with this step, unless the search prunes it; None if it goes on.
        reason: Why it failed or broke down.
        scores: Scores of its network, if it is done on a fresh host.
        plan: Plan of its episode, if a policy decided; empty for others.
    """

    env: int
    step: int
    value: float | None
    net_return: float
    late_gain: float | None
    best: BestNetwork | None
    outcome: Outcome | None
    reason: str | None
    scores: NetworkScores | None
    plan: str


class Trainings:
    """The trainings of a round on this rank. They keep the tensors of their best networks until others replace them.

    Args:
        training: State of the run on this rank; its agent is a `CandidateAgent`.
        objective: Quantity that the growth maximises.
        patience: Number of steps without a better score after which a training ends.
        allows: Function from a parameter ratio to True if a network may be as large.

    Attributes:
        jobs: Trainings of all ranks that have not ended, keyed by env index.
    """

    def __init__(
        self, training: TrainingState, objective: Objective, patience: int, allows: Callable[[float], bool]
    ) -> None:
        self._training = training
        self._scale = training.pool.task.score_scale
        self._objective: Objective = objective
        self._patience = patience
        self._allows = allows
        self.jobs: dict[int, TrainingJob] = {}
        self._best: dict[int, BestNetwork] = {}
        """Best network of each training of this round, keyed by env index."""
        self._kept: dict[str, BestNetwork] = {}
        """Networks that were trained here and are kept, keyed by candidate."""
        self._descriptions: Mapping[str, BestNetwork] = {}
        """Description of each network that any rank keeps, keyed by candidate."""

    def begin(self, jobs: Mapping[int, TrainingJob]) -> None:
        """Begin the trainings of a round, keyed by env index."""
        self.jobs, self._best = dict(jobs), {}

    def plant(self, candidate: str, seeds: Sequence[GrownSeed]) -> None:
        """Plant seeds in the envs of a candidate, with fresh weights and blended in from the start."""
        for episode in self._training.episodes:
            job = self.jobs.get(episode.env.index)
            if job is not None and job.candidate == candidate:
                plant_grown(episode.env, seeds, self._training.config.seed)
                episode.update_parameter_ratio()
                episode.last_good.save()

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Keep the best networks of a group after its step, before the slots tick: as they were validated.

        A network whose seeds have changed replaces an earlier one, even if it is worse for now: the score of a training
        is that of the network that it has grown.
        """
        for episode in episodes:
            env, score = episode.env.index, episode.view.scores[-1]
            if env not in self.jobs or episode.inactive or not math.isfinite(score):
                continue
            best = self._best.get(env)
            if best is None or self._scale.is_better(score, best.score) or best.seeds_differ(episode.env):
                self._best[env] = BestNetwork.of(episode.env, score, self._training.round + 1, episode.view.step)

    def report_group(self, episodes: Sequence[Episode], outcomes: Sequence[StepOutcome | None]) -> list[TrainingReport]:
        """Return the reports of a group after its step. Raises FaultError if the bare host cannot be scored."""
        reports: list[TrainingReport] = []
        for episode, outcome in zip(episodes, outcomes, strict=True):
            env = episode.env.index
            if env in self.jobs:
                breakdown = outcome.breakdown if outcome else None
                if breakdown:
                    reports.append(self._report(episode, "broke down", breakdown.reason))
                else:
                    reports.append(self._report(episode, "done" if self._improves_no_more(episode) else None))
        return reports

    def report_last(self) -> list[TrainingReport]:
        """Return the reports at the end of the round. Raises FaultError if the bare host cannot be scored."""
        return [self._report(episode, "done") for episode in self._training.episodes if episode.env.index in self.jobs]

    def _improves_no_more(self, episode: Episode) -> bool:
        best = self._best.get(episode.env.index)
        return best is not None and episode.view.step - best.step >= self._patience

    def _report(self, episode: Episode, outcome: Outcome | None, reason: str | None = None) -> TrainingReport:
        """Return the report of a training, given how it ends; its network may turn out to be invalid."""
        env = episode.env.index
        job, best, value, scores = self.jobs[env], self._best.get(env), self._value(episode), None
        if outcome == "done" and value is None:
            outcome, reason = "failed", NOT_FINITE
        elif outcome == "done" and best is not None and not (job.is_compared or self._allows(best.parameter_ratio)):
            outcome, reason = "failed", f"its network has {best.parameter_ratio:.3g} times the parameters of the host"
        if outcome == "done" and best is not None and job.fresh is not None:
            try:
                scores = measure_network(best, episode.env)
            except FaultError as fault:
                if job.candidate == BARE_HOST:  # every other network would fail, too
                    raise
                outcome, reason = "failed", str(fault)
        is_done_fresh = outcome == "done" and job.fresh is not None
        return TrainingReport(
            env=env,
            step=episode.view.step,
            value=value,
            net_return=episode.episode_return,
            late_gain=self._scale.gain(late_gain(episode.view.scores)) if is_done_fresh else None,
            best=best and best.description,
            outcome=outcome,
            reason=reason,
            scores=scores,
            plan=self._plan_of(episode) if job.fresh is None and job.origin == "policy" else "",
        )

    def _value(self, episode: Episode) -> float | None:
        """Return the objective of a training up to now; None if it is unknown."""
        best = self._best.get(episode.env.index)
        of_score = self._scale.gain(best.score) if best else None
        value = episode.episode_return if self._objective == "return" else of_score
        return value if value is not None and math.isfinite(value) else None

    def _plan_of(self, episode: Episode) -> str:
        profile, agent = self._training.pool.profile, self._training.agent
        assert isinstance(agent, CandidateAgent)
        taken = agent.actions[episode.env.index][: episode.view.step]
        return plan_of(taken, [site.name for site in profile.sites], profile.blueprints)

    def end(self, envs: Sequence[int]) -> None:
        """End the trainings of envs, of any rank."""
        for env in envs:
            del self.jobs[env]
        for episode in self._training.episodes:
            if episode.env.index in envs:
                episode.inactive = True

    # Networks

    def keep(self, networks: Mapping[str, BestNetwork]) -> None:
        """Keep the tensors of those of these networks that were trained here, and drop all others.

        Args:
            networks: Description of each network that any rank keeps, keyed by candidate; the same on all ranks.
        """
        this_round = self._training.round + 1
        self._descriptions = networks
        self._kept = {
            name: self._best[network.env] if network.round == this_round else self._kept[name]
            for name, network in networks.items()
            if network.env in self._own_envs
        }

    @property
    def _own_envs(self) -> range:
        return self._training.ranks.env_range(self._training.config.envs)

    def fetch(self, names: Sequence[str]) -> dict[str, BestNetwork]:
        """Return some of the networks that are kept on any rank, keyed by candidate. All ranks call it together."""
        own = {name: self._kept[name] for name in names if name in self._kept}
        found: dict[str, BestNetwork] = {}
        for part in self._training.ranks.all_gather_object(own):
            found |= part
        return {name: found[name] for name in names}

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the best network of each env in this round, without its tensors, keyed by env index."""
        return {
            str(env): None if (best := self._best.get(env)) is None else network_state(best) for env in self._own_envs
        }

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the networks on this rank, by name."""
        named = {f"best.{env}": network for env, network in self._best.items()}
        for index, name in enumerate(self._descriptions):
            if name in self._kept:
                named[f"network.{index}"] = self._kept[name]
        return {f"{name}.{part}": tensor for name, network in named.items() for part, tensor in network.tensors.items()}

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        jobs: Mapping[int, TrainingJob],
        networks: Mapping[str, BestNetwork],
    ) -> None:
        """Restore the trainings of the envs of this rank, and the networks that were trained in them.

        Args:
            state: Result of `state_dict`.
            tensors: Results of `state_tensors` of all ranks.
            jobs: Trainings of all ranks that have not ended, keyed by env index.
            networks: As for `keep`, in the same order as before.
        """
        self.jobs = dict(jobs)
        self._best = {
            int(env): load_network(best, strip_prefix(f"best.{env}.", tensors)) for env, best in state.items() if best
        }
        self._descriptions = networks
        self._kept = {
            name: replace(network, tensors=strip_prefix(f"network.{index}.", tensors))
            for index, (name, network) in enumerate(networks.items())
            if network.env in self._own_envs
        }
