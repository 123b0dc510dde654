"""GrowthResults: the end of a growth: comparisons, the answer, the test of its networks, and their files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from esper.candidates import BARE_HOST, FROM_SCRATCH, WIDE_HOST, Candidate, choose, describe_answer, describe_candidate
from esper.config import TaskError
from esper.control import ENDING_KINDS, RequestQueue
from esper.domain import VERSION, Severity
from esper.engine.best_network import BestNetwork
from esper.engine.fresh_scores import testing_network
from esper.engine.growth import FRESH_HOSTS, Growth
from esper.engine.growth_director import NOT_FINITE, GrowthDirector
from esper.engine.host_training import train_envs
from esper.engine.reporter import control_requested
from esper.engine.training_state import TrainingState
from esper.envs.env import Env
from esper.formatting import pluralise
from esper.harvest.grown import Grown
from esper.harvest.model import plant_grown
from esper.harvest.structure import GrownSeed, HarvestError, Provenance
from esper.lanes.errors import FaultError
from esper.lanes.pool import EnvPool
from esper.ppo.rewards import rent_cost
from esper.recording.run_directory import RunDirectory
from esper.seeding import EpisodeKey
from esper.tasks.splits import Splits
from esper.tasks.task import Task
from esper.telemetry import events as ev

_MAX_NAME_CHARS = 60
"""Maximum length of the part of a directory's name that describes its network."""
OpenWidePool = Callable[[float], AbstractContextManager[tuple[EnvPool, float]]]
"""Function from a multiple of the host's parameters to envs with a host of about this size, and its exact multiple."""


class GrowthResults:
    """Computes the results of a growth whose trainings have ended, or were stopped.

    Args:
        growth: Receives the results.
        splits: Data of the task, on the CPU.
        run: The run directory.
        open_wide: Opens the envs of the wide host; None if the task has no `wide_model`.
    """

    def __init__(
        self,
        growth: Growth,
        director: GrowthDirector,
        training: TrainingState,
        control: RequestQueue,
        *,
        task: Task,
        splits: Splits,
        run: RunDirectory,
        open_wide: OpenWidePool | None,
    ) -> None:
        self._growth = growth
        self._director = director
        self._training = training
        self._control = control
        self._task = task
        self._splits = splits
        self._run = run
        self._open_wide = open_wide

    def finish(self) -> None:
        """Compare the answer, test the networks of the front, write the requested ones, and report the answer.

        Raises:
            FaultError: A network cannot be built or tested.
        """
        growth, state = self._growth, self._director.search_state
        growth.search, growth.is_complete = state, self._director.has_ended
        objective = growth.request.objective
        best = choose(state.candidates, objective) if self._director.has_ended else self._director.best_trial()
        if self._director.has_ended and best is not None:
            try:
                self._compare(best)
            except (FaultError, TaskError) as error:
                self._log(f"the comparison ended early: {error}", "error")
        answer = self._describe_stopped(best)
        if self._director.has_ended:
            answer = describe_answer(state.candidates, objective, self._training.config.steps)
        if best is None:
            self._emit(ev.SearchEnded(answer=answer))
            return
        for name in dict.fromkeys([best.name, BARE_HOST, *(one.name for one in state.front)]):
            if (network := self._director.networks.get(name)) is not None:
                grown = self._build(name, network, answer if name == best.name else "")
                growth.networks[name] = grown
                self._emit(ev.NetworkTested(candidate=name, test_score=grown.structure.test_score))
        self._write(best.name)
        if effects := self._director.effects(best.name):
            described = ", ".join(f"{seed} {effect:+.3f}" for seed, effect in effects.items())
            self._log(f"effect of each seed on the {objective}, on the host of the search: {described}")
        self._emit(ev.SearchEnded(answer=answer, candidate=best.name))

    def _describe_stopped(self, best: Candidate | None) -> str:
        """Return the answer of a growth that was stopped."""
        stopped = f"stopped after {pluralise(self._director.search_state.trials_ended, 'trial')}"
        if best is None or best.score is None:
            return f"{stopped}, before any of them was done; the same command continues"
        return (
            f"{stopped}; best so far: {describe_candidate(best.name)}, {best.score:.1%} in one training, which fresh "
            "trainings have not confirmed; the same command continues"
        )

    # Networks

    def _build(self, name: str, network: BestNetwork, answer: str) -> Grown:
        """Build a network and compute its scores. Raises FaultError if the model or the score fails."""
        config = self._training.config
        provenance = Provenance(
            run=self._run.path.name,
            env=network.env,
            round=network.round,
            step=network.step,
            policy=describe_candidate(name),
            seed=config.seed,
            version=VERSION,
            answer=answer if self._director.has_ended else "",
        )
        with testing_network():
            return Grown.build(self._task, self._splits, network.seeds, network.tensors, provenance)

    def _write(self, chosen: str) -> None:
        """Write the network of the answer, or those of the front."""
        growth = self._growth
        if growth.target is None or chosen not in growth.networks:
            return
        try:
            self._run.check()
        except OSError as error:
            growth.failure = f"the network is not written: {self._run.path}: {error.strerror}"
            self._log(growth.failure, "error")
            return
        target = growth.target(self._run.path)
        directories = {chosen: target}
        if growth.writes_all:
            directories = {name: target / _directory_name(index, name) for index, name in enumerate(growth.networks)}
        for name, directory in directories.items():
            try:
                problem = growth.networks[name].save(directory)
            except HarvestError as error:
                growth.failure = f"{error}; the same command with another --to writes the network"
                self._log(growth.failure, "error")
                return
            growth.directories[name] = directory
            if problem:
                growth.problems[name] = problem
            self._log(f"{describe_candidate(name)}: the network is written to {directory}")

    # Comparisons

    def _compare(self, best: Candidate) -> None:
        """Train a wide host of the answer's size and, if asked, the answer's architecture from scratch."""
        network = self._director.networks.get(best.name)
        if best.name == BARE_HOST or network is None or not network.seeds:
            return
        if self._open_wide:
            with self._open_wide(network.parameter_ratio) as (pool, ratio):
                self._train(WIDE_HOST, pool, [], ratio)
        if self._growth.request.compares:
            self._train(FROM_SCRATCH, self._training.pool, network.seeds, network.parameter_ratio)

    def _train(self, name: str, pool: EnvPool, seeds: Sequence[GrownSeed], ratio: float) -> None:
        """Train networks that do not grow on the fresh hosts, each for all steps, and report their scores.

        Seeds have fresh weights and are blended in from the start.
        """
        seed = self._training.config.seed
        fresh = list(range(1, FRESH_HOSTS + 1))
        for first in range(0, FRESH_HOSTS, len(pool.envs)):
            hosts = dict(zip(pool.envs, fresh[first:], strict=False))
            pool.reset_loss_scales()
            starts = pool.begin({env: EpisodeKey(seed, number, 0) for env, number in hosts.items()})
            for env in hosts:
                plant_grown(env, seeds, seed)
            numbers = ", ".join(map(str, hosts.values()))
            steps = pluralise(self._training.config.steps, "step")
            self._log(f"{name}: trains for {steps} on the fresh hosts {numbers}, without a line per step")
            trained = train_envs(pool, hosts, self._training.config.steps, self._is_stopped)
            if trained is None:
                return
            for (env, number), (_, initial) in zip(hosts.items(), starts, strict=True):
                scores, best = trained[env]
                if best is not None:
                    self._director.fresh_scores.add(name, number, best)
                self._report(name, seeds, ratio, env, number, [initial, *scores])
        self._director.report_measurements()

    def _report(
        self, name: str, seeds: Sequence[GrownSeed], ratio: float, env: Env, number: int, scores: Sequence[float]
    ) -> None:
        """Report a training on a fresh host."""
        weights, host = self._training.config.reward_weights, self._training.pool.profile.host_parameters
        at = self._training.step_number
        best = max(scores[1:], key=lambda score: score if math.isfinite(score) else -math.inf)
        net_return = scores[-1] - scores[0] - (len(scores) - 1) * rent_cost(ratio, host, weights)
        is_done = math.isfinite(best) and math.isfinite(net_return)
        self._emit(ev.TrialStarted(round=at.round, env=env.index, candidate=name, origin="comparison", fresh=number))
        self._emit(
            ev.TrialEnded(
                round=at.round,
                env=env.index,
                candidate=name,
                fresh=number,
                step=len(scores) - 1,
                outcome="done" if is_done else "failed",
                reason=None if is_done else NOT_FINITE,
                score=best if is_done else None,
                best_step=scores.index(best, 1) if is_done else None,
                net_return=net_return if is_done else None,
                parameter_ratio=ratio if is_done else None,
                seeds=[seed.label for seed in seeds],
            )
        )

    def _is_stopped(self) -> bool:
        """Return True if a request ends the run. Other requests are ignored."""
        while request := self._control.get():
            ends = request.kind in ENDING_KINDS
            ignored = None if ends else "the search has ended, and only the comparison still trains"
            self._training.hub.emit_global(control_requested(request, ignored))
            if ends:
                return True
        return False

    def _emit(self, event: ev.SearchEvent) -> None:
        self._director.search_state.apply(event)
        self._training.hub.emit(event)

    def _log(self, text: str, severity: Severity = "info") -> None:
        self._training.hub.emit(ev.Logged(severity=severity, text=text))


def _directory_name(index: int, candidate: str) -> str:
    """Return the name of the directory of a network of the front, such as `2-depthwise-first-0`."""
    described = re.sub(r"[^A-Za-z0-9_]+", "-", candidate or "bare host").strip("-")
    return f"{index + 1}-{described[:_MAX_NAME_CHARS]}"
