"""GrowthDirector: chooses the trainings of each round of a growth: first trials, then trainings on fresh hosts.

All trials of the search have the same host and the same order of the data: those of env 0 in round 0. Their differences
are then due to the candidates. A fresh host is that of another env index, the same for every candidate.

With several ranks, rank 0 decides for all: it has the search, and receives a report of each training after each step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from torch import Tensor

from esper.common.configuration.config import TaskError
from esper.common.formatting import format_duration, pluralise
from esper.common.seeding import EpisodeKey
from esper.recordings import events as ev
from esper.recordings.candidates.candidates import (
    BARE_HOST,
    FROM_SCRATCH,
    WIDE_HOST,
    Candidate,
    choose,
)
from esper.recordings.state.search_state import SearchState
from esper.studies.growth.best_network import BestNetwork, load_network, network_state
from esper.studies.growth.candidate_agent import CandidateAgent
from esper.studies.growth.fresh_scores import FreshScores
from esper.studies.growth.growth import (
    FRESH_HOSTS,
    MAX_FINALISTS,
    GrowthRequest,
    num_finalists,
    rounds_on_fresh_hosts,
)
from esper.studies.growth.search import PlanSearch
from esper.studies.growth.trainings import TrainingJob, TrainingReport, Trainings
from esper.studies.harvest.structure import GrownSeed
from esper.training.engine.episode import Episode
from esper.training.engine.step import StepResult
from esper.training.engine.training_state import Director, TrainingState
from esper.training.envs.env import Env
from esper.training.lanes.errors import FaultError, RunFailedError
from esper.training.policy.agent import ALL_ENVS, strip_prefix


class RoundPlan(NamedTuple):
    """The trainings of a round, as rank 0 has chosen them."""

    jobs: dict[int, TrainingJob]
    """Keyed by env index."""
    width: float
    """Factor of the widths of the wide host."""
    seeds: list[GrownSeed]
    """Seeds of the answer, for its architecture from scratch; empty before there is one."""


class Comparison(msgspec.Struct):
    """The trainings of the networks that are only compared with an answer."""

    answer: str | None
    """Name of the candidate that was chosen; None if there is none."""
    queued: list[str] = []
    """Names of the networks whose trainings were queued."""
    width: float = 1.0
    """Factor of the widths of the wide host."""


class GrowthDirector(Director):
    """Gives every env its candidate and its host, ends trainings early, and keeps the best networks.

    Once the fresh trainings have chosen the answer, a wide host of its size and its architecture from scratch train on
    the same hosts, if they are to be compared with it.

    Args:
        make_search: Function that returns a new search; the same one each time.
        training: State of the run; its agent is a `CandidateAgent`.
        choose_width: Function from a multiple of the host's parameters to the width of a host of about this size, which
            may raise TaskError; None if the task has no `wide_model`.

    Attributes:
        search_state: The candidates so far.
        fresh_scores: Scores of their networks on fresh hosts.
        networks: Best network of each candidate of the front, and of each that may be chosen, keyed by name, without
            their tensors.
    """

    def __init__(
        self,
        request: GrowthRequest,
        make_search: Callable[[], PlanSearch],
        training: TrainingState,
        choose_width: Callable[[float], float] | None = None,
    ) -> None:
        self._request = request
        self._scale = training.pool.task.score_scale
        self._choose_width = choose_width
        self._compared = request.compared(has_wide=choose_width is not None)
        """Names of the networks that are compared with the answer."""
        self._comparison: Comparison | None = None
        """Comparison of the answer; None before the fresh trainings have chosen it."""
        self._make_search = make_search
        self._search = make_search()
        super().__init__(training)
        self._envs = training.config.envs
        """Number of envs of all ranks."""
        self._trainings = Trainings(
            training, request.objective, request.patience_steps(training.config.steps), self._search.allows
        )
        self._reports: list[TrainingReport] = []
        """Reports of this rank on the step in progress."""
        self.search_state = SearchState(
            info=request.info(training.pool.profile.host_parameters, len(self._compared)), scale=self._scale
        )
        self.fresh_scores = FreshScores(self._scale, training.pool.profile.chance.score)
        self.networks: dict[str, BestNetwork] = {}
        self._has_ended = False
        self._waiting: deque[TrainingJob] = deque()
        """Trainings that come before new candidates: those of a round that failed, and those on fresh hosts."""
        self._is_searching = True
        self._is_budget_changed = False
        """True if the restored checkpoint had another budget."""
        self._started = 0
        """Number of trials of the search that were started."""
        self._seconds = 0.0
        """Duration of all steps so far, without pauses."""
        self._round_seconds = 0.0
        """Duration of the steps of this round, or of the last one at the start of a round."""
        self._longest_round = 0.0
        self._plan = RoundPlan({}, 1.0, [])
        """Trainings of this round."""

    @property
    def is_lockstep(self) -> bool:
        """True with several ranks: rank 0 ends trainings after each step, and a fault of one rank fails one trial."""
        return not self._training.ranks.is_single

    # Rounds

    @property
    def search(self) -> ev.SearchInfo:
        """Budget and aim of the search."""
        return self.search_state.info

    @property
    def has_ended(self) -> bool:
        """True once all trainings have ended."""
        return self._has_ended

    @property
    def has_chosen(self) -> bool:
        """True once all trainings that choose the answer have ended; some that are only compared may be left."""
        return self._comparison is not None

    def begin_round(self) -> dict[Env, EpisodeKey]:
        """Choose the trainings of the next round, and return the key of the episode of each env that trains.

        Raises:
            ConfigError: A plan or a policy cannot be used.
        """
        training = self._training
        self._plan = plan = training.ranks.run_on_rank0(self._plan_round)
        self._trainings.begin(plan.jobs)
        self._round_seconds = 0.0
        agent = training.agent
        assert isinstance(agent, CandidateAgent)
        # Networks that are only compared grow as the bare host does: not at all.
        grows = {env: BARE_HOST if job.is_compared else job.candidate for env, job in plan.jobs.items()}
        agent.assign(grows)
        training.pool.reset_loss_scales()  # a trial must not depend on the one before it
        return {env: self._key(plan.jobs[env.index]) for env in training.pool.envs if env.index in plan.jobs}

    def _plan_round(self) -> RoundPlan:
        """Choose the trainings of the next round. Rank 0 calls it."""
        jobs = dict(zip(range(self._envs), self._next_jobs(self._envs), strict=False))
        answer = self._comparison.answer if self._comparison else None
        network = None if answer is None else self.networks.get(answer)
        width = self._comparison.width if self._comparison else 1.0
        return RoundPlan(jobs, width, network.seeds if network else [])

    def _key(self, job: TrainingJob) -> EpisodeKey:
        """Return the key of the episode of a training."""
        width = self._plan.width if job.candidate == WIDE_HOST else 1.0
        return EpisodeKey(self._training.config.seed, job.fresh or 0, 0, width)

    def start_round(self) -> None:
        """Plant the seeds of networks that train from scratch, and report the trainings of the round that has begun."""
        self._trainings.plant(FROM_SCRATCH, self._plan.seeds)
        if self._training.ranks.rank > 0:
            return
        number = self._training.round + 1
        self.search_state.start_round(0)
        for env, job in self._plan.jobs.items():
            self.emit(
                ev.TrialStarted(round=number, env=env, candidate=job.candidate, origin=job.origin, fresh=job.fresh)
            )

    def _next_jobs(self, envs: int) -> list[TrainingJob]:
        jobs: list[TrainingJob] = []
        while self._waiting and len(jobs) < envs:
            jobs.append(self._waiting.popleft())
        if jobs or not self._is_searching:
            return jobs
        left = self._trials_left(envs)
        jobs = (
            [TrainingJob(*proposal) for proposal in self._search.next_candidates(min(left, envs))] if left > 0 else []
        )
        self._started += len(jobs)
        if not jobs:
            if left > 0:
                text = f"all plans of the space were tried, in {pluralise(self._started, 'trial')}"
                self._training.hub.emit(ev.Logged(severity="info", text=text))
            self._begin_fresh(envs)
            return self._next_jobs(envs)
        return jobs

    def best_trial(self) -> Candidate | None:
        """Return the candidate with the best trial that is not too large; None if no trial is done."""
        done: list[tuple[float, Candidate]] = []
        for name in self._search.finalists(1):
            one = self.search_state.find(name)
            value = one.trial_value(self._request.objective) if one else None
            if one is not None and value is not None:
                done.append((value, one))
        return max(done, key=lambda pair: pair[0])[1] if done else None

    def effects(self, plan: str) -> dict[str, float]:
        """Return the exact effect of each seed of a plan on the objective; see `PlanSearch.effects`."""
        return self._search.effects(plan)

    def _trials_left(self, envs: int) -> int:
        """Return the number of trials for which the budget has room; for a time, those of another round or 0."""
        if self._request.trials is not None:
            return self._request.trials - self._started
        assert self._request.minutes is not None
        left = 60 * self._request.minutes - self._seconds
        rounds_after = rounds_on_fresh_hosts(num_finalists(self._started), len(self._compared), envs)
        return envs if not self._started or left >= (1 + rounds_after) * self._longest_round else 0

    @property
    def _budget(self) -> list[float | None]:
        """Number of trials and minutes, for a checkpoint."""
        return [self._request.trials, self._request.minutes]

    def _begin_fresh(self, envs: int) -> None:
        """End the search, and queue the trainings of the best candidates on fresh hosts: all of a host together."""
        self._is_searching = False
        count = num_finalists(self._started)
        if self._request.minutes is not None:
            left = 60 * self._request.minutes - self._seconds
            compared = len(self._compared)
            while count > 1 and rounds_on_fresh_hosts(count, compared, envs) * self._longest_round > left:
                count -= 1
        names = self._search.finalists(count)
        self._waiting.extend(
            TrainingJob(name, self._candidate(name).origin, number)
            for number in range(1, FRESH_HOSTS + 1)
            for name in names
            if number not in self._candidate(name).fresh_hosts  # of this growth, when it had a smaller budget
        )

    def end_round(self) -> None:
        """End the trainings that are still in progress, and drop the networks that cannot be chosen any more."""
        self._reports = self._trainings.report_last()
        self._settle()
        self._has_ended = self._training.ranks.run_on_rank0(self._close_round)
        self._share_networks()

    def _close_round(self) -> bool:
        """Queue the next trainings, and return True if there are none. Rank 0 calls it."""
        if not self._is_searching:
            self.report_measurements()
        kept = {one.name for one in self.search_state.front} | set(self._search.finalists(MAX_FINALISTS))
        kept |= {one.name for one in self.search_state.candidates if one.fresh_scores}
        self.networks = {name: network for name, network in self.networks.items() if name in kept}
        self._longest_round = max(self._longest_round, self._round_seconds)
        has_trials = self._is_searching and self._trials_left(self._envs) > 0
        if not has_trials and self._is_searching:
            self._begin_fresh(self._envs)
        if not self._is_searching and not self._waiting:
            self._queue_comparisons()
        return not self._is_searching and not self._waiting

    def _share_networks(self) -> None:
        """Keep the networks that rank 0 has chosen, each on the rank that has trained it. All ranks call this."""
        self._trainings.keep(self._training.ranks.run_on_rank0(lambda: self.networks))

    def fetch(self, names: Callable[[], list[str]]) -> dict[str, BestNetwork]:
        """Return networks with their tensors, keyed by name. All ranks call it together.

        Args:
            names: Function that returns their names on rank 0.
        """
        self._share_networks()
        return self._trainings.fetch(self._training.ranks.run_on_rank0(names))

    def _queue_comparisons(self) -> None:
        """Queue the trainings of the networks that are compared with the answer, unless they were queued before."""
        best = choose(self.search_state.candidates, self._request.objective)
        if self._comparison is None:
            self._comparison = Comparison(answer=best.name if best else None)
        comparison = self._comparison
        network = self.networks.get(best.name) if best else None
        if network is None or not network.seeds:
            return
        names = [name for name in self._compared if name not in comparison.queued]
        comparison.queued += names
        if self._choose_width and WIDE_HOST in names:
            try:
                comparison.width = self._choose_width(network.parameter_ratio)
            except TaskError as error:
                names.remove(WIDE_HOST)
                self._training.hub.emit(ev.Logged(severity="error", text=f"no wide host is compared: {error}"))
        self._waiting.extend(
            TrainingJob(name, "comparison", number) for name in names for number in range(1, FRESH_HOSTS + 1)
        )

    def report_measurements(self) -> None:
        """Report the results on fresh hosts so far, with their intervals."""
        for event in self.fresh_scores.measure(self.search_state.candidates, self._request.objective):
            self.emit(event)

    # Steps

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Keep the best networks of a group after its step; see `Trainings.observe`."""
        self._trainings.observe(episodes)

    def end_group(self, result: StepResult) -> None:
        """End the trainings of a group that broke down, are worse than others, or no longer improve.

        With several ranks, they end with the step.
        """
        self._reports += self._trainings.report_group(result.episodes, result.outcomes)
        if not self.is_lockstep:
            self._settle()

    def _settle(self) -> None:
        """End the trainings of all ranks that have to end, given their reports. All ranks call it together."""
        ranks = self._training.ranks
        by_rank, self._reports = ranks.all_gather_object(self._reports), []
        reports = sorted((report for of_rank in by_rank for report in of_rank), key=lambda report: report.env)
        self._trainings.end(ranks.run_on_rank0(lambda: [one.env for one in reports if self._end_training(one)]))

    def _is_worse(self, report: TrainingReport, job: TrainingJob) -> bool:
        """Report the objective of a trial, and return True if the search prunes it."""
        is_last = report.step == self._training.config.steps
        return (
            report.value is not None and not is_last and self._search.report(job.candidate, report.step, report.value)
        )

    def end_step(self, seconds: float) -> bool:
        """Note the duration of a step, and return True if the round ends with it, because no env trains any more.

        Raises:
            RunFailedError: The budget is too short for one training.
        """
        if self.is_lockstep:
            self._settle()
        self._seconds += seconds
        self._round_seconds += seconds
        steps = self._training.config.steps
        if self._training.round == 0 and self._training.step == min(2, steps):  # the first step also warms up
            expected = self._round_seconds + seconds * (steps - self._training.step)
            self._training.ranks.run_on_rank0(lambda: self._estimate_duration(expected))
        return not self._trainings.jobs

    def _estimate_duration(self, seconds: float) -> None:
        """Log how long a growth takes whose trainings of a round take some seconds. Raises RunFailedError."""
        envs, steps, minutes = self._envs, self._training.config.steps, self._request.minutes
        training = f"{pluralise(min(envs, len(self._trainings.jobs)), 'training')} of {pluralise(steps, 'step')}"
        takes = f"{training} at once take about {format_duration(seconds)}"
        if minutes is None:
            rounds = self._request.expected_rounds(envs, len(self._compared))
            text = f"{takes}; the growth takes at most {format_duration(rounds * seconds)}"
            self._training.hub.emit(ev.Logged(severity="info", text=text))
        elif seconds > 60 * minutes:
            raise RunFailedError(
                f"{takes}, which is more than --minutes {minutes:g}; give --minutes {math.ceil(4 * seconds / 60)}, or "
                "fewer --envs or --steps"
            )

    def _end_training(self, report: TrainingReport) -> bool:
        """Report the end of a training, also to the search, and return True; False if the training goes on."""
        job, best, outcome = self._trainings.jobs[report.env], report.best, report.outcome
        if outcome != "broke down" and job.fresh is None and self._is_worse(report, job):
            outcome = "pruned"
        if outcome is None:
            return False
        is_done = outcome == "done"
        if is_done and job.fresh is not None and report.scores is not None:
            self.fresh_scores.add(job.candidate, job.fresh, report.scores)
        self.emit(
            ev.TrialEnded(
                round=self._training.round + 1,
                step=report.step,
                env=report.env,
                candidate=job.candidate,
                fresh=job.fresh,
                outcome=outcome,
                reason=None if outcome == "pruned" else report.reason,
                score=best.score if best else None,
                best_step=best.step if best else None,
                net_return=report.net_return if is_done else None,
                parameter_ratio=best.parameter_ratio if best else None,
                seeds=best.labels if best else [],
                late_gain=report.late_gain,
            )
        )
        if job.fresh is None:
            self._search.tell(job.candidate, outcome, report.value if is_done else None, report.plan)
        if is_done and best is not None and not job.is_compared:
            self._keep(job, best)
        return True

    def _keep(self, job: TrainingJob, network: BestNetwork) -> None:
        """Keep the network of a candidate: the best one on fresh hosts, or else that of its trial."""
        known = self.networks.get(job.candidate)
        is_first_fresh = job.fresh is not None and len(self._candidate(job.candidate).fresh_scores) == 1
        if known is None or is_first_fresh or self._scale.is_better(network.score, known.score):
            self.networks[job.candidate] = network

    def _candidate(self, name: str) -> Candidate:
        found = self.search_state.find(name)
        assert found is not None
        return found

    def recover(self, fault: FaultError) -> bool:
        """Record the training in which a step failed, and queue the others of its round again.

        Returns:
            False if the run cannot continue: the env is unknown, its device is lost, or the bare host fails.
        """
        jobs = self._trainings.jobs
        job = None if fault.env is None else jobs.pop(fault.env, None)
        if job is None or fault.is_device_lost or job.candidate == BARE_HOST:
            return False
        self._training.ranks.run_on_rank0(lambda: self._record_failure(job, fault))
        jobs.clear()
        self._share_networks()
        return True

    def _record_failure(self, job: TrainingJob, fault: FaultError) -> None:
        """Record a training that failed, and queue the others of its round again. Rank 0 calls it."""
        assert fault.env is not None
        self.emit(
            ev.TrialEnded(
                round=self._training.round + 1,
                step=self._training.step,
                env=fault.env,
                candidate=job.candidate,
                fresh=job.fresh,
                outcome="failed",
                reason=str(fault),
            )
        )
        if job.fresh is None:
            self._search.tell(job.candidate, "failed", None)
        self._waiting.extendleft(reversed(self._trainings.jobs.values()))

    def emit(self, event: ev.SearchEvent) -> None:
        """Emit an event of the growth, and apply it to the state of the search."""
        self.search_state.apply(event)
        self._training.hub.emit(event)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. All ranks call it together."""
        self._share_networks()
        shared = self._training.ranks.run_on_rank0(self._shared_state)
        return {**self._trainings.state_dict(), ALL_ENVS: shared}

    def _shared_state(self) -> dict[str, Any]:
        """Return the state of rank 0."""
        return {
            "search": self._search.state_dict(),
            "candidates": msgspec.to_builtins(self.search_state, str_keys=True),
            "fresh-scores": self.fresh_scores.state_dict(),
            "networks": {name: network_state(network) for name, network in self.networks.items()},
            "waiting": [list(job) for job in self._waiting],
            "jobs": [[env, list(job)] for env, job in self._trainings.jobs.items()],
            "searching": self._is_searching,
            "started": self._started,
            "seconds": self._seconds,
            "round-seconds": self._round_seconds,
            "longest-round": self._longest_round,
            "ended": self._has_ended,
            "budget": self._budget,
            "comparison": msgspec.to_builtins(self._comparison),
        }

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the weights of the networks on this rank, and on rank 0 the scores on fresh hosts, by name."""
        scores = {f"fresh-score.{name}": tensor for name, tensor in self.fresh_scores.state_tensors().items()}
        return scores | self._trainings.state_tensors()

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of a checkpoint.

        Raises:
            ValueError: The search was stored by another version of the sampler.
        """
        by_env = dict(state)
        stored = by_env.pop(ALL_ENVS)
        if self._training.ranks.rank == 0:
            self._search = self._make_search()
            self._search.load_state_dict(stored["search"])
            self.fresh_scores.load_state_dict(stored["fresh-scores"], strip_prefix("fresh-score.", tensors))
        info = self.search_state.info
        self.search_state = msgspec.convert(stored["candidates"], SearchState, strict=False)
        self.search_state.info = info
        self.networks = {name: load_network(network, {}) for name, network in stored["networks"].items()}
        jobs = {env: TrainingJob(*job) for env, job in stored["jobs"]}
        self._waiting = deque(TrainingJob(*job) for job in stored["waiting"])
        self._is_searching, self._started = stored["searching"], stored["started"]
        self._seconds, self._round_seconds = stored["seconds"], stored["round-seconds"]
        self._longest_round, self._has_ended = stored["longest-round"], stored["ended"]
        if self._training.step == 0:  # the start of a round, which begins again
            self._waiting.extendleft(reversed(jobs.values()))
            jobs = {}
        self._trainings.load_state_dict(by_env, tensors, jobs, self.networks)
        self._comparison = msgspec.convert(stored["comparison"], Comparison | None)
        self._is_budget_changed = stored["budget"] != self._budget

    def resume(self) -> None:
        """Continue after a checkpoint was restored, perhaps with another budget. All ranks call it together."""
        self._has_ended = self._training.ranks.run_on_rank0(self._reopen)

    def _reopen(self) -> bool:
        """Queue what a larger request adds, and return True if the growth has ended. Rank 0 calls it."""
        if not self._is_searching and self._is_budget_changed and self._trials_left(self._envs) > 0:
            self._is_searching = True
            self._waiting.clear()
            self._comparison = None
            return False
        if self._has_ended:  # the same command may compare more than before
            self._queue_comparisons()
            return not self._waiting
        return False
