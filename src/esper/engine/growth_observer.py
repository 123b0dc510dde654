"""Growth of one network: the best of a round is kept, and the round ends when it no longer improves."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from esper.config import TaskError
from esper.control import ENDING_KINDS, RequestKind, RequestQueue
from esper.domain import VERSION, Severity
from esper.engine.commands import harvest_command
from esper.engine.episode import Episode
from esper.engine.growth import Growth, Variant
from esper.engine.reporter import control_requested
from esper.engine.training_state import TrainingState
from esper.envs.env import Env
from esper.formatting import format_duration
from esper.harvest.grown import Grown
from esper.harvest.model import copy_tensors, grown_seeds, plant_grown
from esper.harvest.structure import GrownSeed, GrownStructure, HarvestError, Provenance
from esper.lanes.errors import FaultError
from esper.policy.actions import WAIT_DECISION
from esper.tasks.splits import Splits
from esper.tasks.task import Task
from esper.telemetry import events as ev

CONVERGED = "patience"
"""Origin of the stop request of a growth that no longer improves."""


@dataclass(frozen=True, kw_only=True)
class BestNetwork:
    """The best network so far, by validation score."""

    score: float
    env: int
    step: int
    """Completed steps, from 1."""
    seeds: list[GrownSeed]
    tensors: dict[str, Tensor]
    """Copies of its weights and buffers, on the CPU."""

    @classmethod
    def of(cls, env: Env, score: float, step: int) -> BestNetwork:
        """Copy the network of an env."""
        network = env.network
        return cls(
            score=score, env=env.index, step=step, seeds=grown_seeds(network.slots), tensors=copy_tensors(network)
        )


def better_network(best: BestNetwork | None, scores: Sequence[tuple[float, Env]], step: int) -> BestNetwork | None:
    """Return the best of some networks if it is better than the best so far, else the best so far.

    Args:
        scores: Validation score of each network, and its env. Scores that are not finite do not count.
    """
    finite = [(score, env) for score, env in scores if math.isfinite(score)]
    if not finite:
        return best
    score, env = max(finite, key=lambda scored: scored[0])
    return BestNetwork.of(env, score, step) if best is None or score > best.score else best


class GrowthObserver:
    """Keeps the best network of a run of one round, stops the run when it no longer improves, and harvests it.

    Args:
        growth: Request for the growth; receives the results.
        splits: Its data, on the CPU.
    """

    def __init__(
        self, growth: Growth, task: Task, splits: Splits, training: TrainingState, control: RequestQueue, run: Path
    ) -> None:
        self._growth = growth
        self._task = task
        self._splits = splits
        self._training = training
        self._control = control
        self._run = run
        self._best: BestNetwork | None = None
        self._steps = 0
        """Completed steps."""
        self._started = self._ended = time.perf_counter()

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Keep the best network of some envs after a step, before their slots tick: as they were validated."""
        scores = [(episode.view.scores[-1], episode.env) for episode in episodes if not episode.inactive]
        self._best = better_network(self._best, scores, self._training.step + 1)

    def end_step(self) -> None:
        """End the run if no network has become better for long."""
        self._steps = self._training.step + 1
        self._ended = time.perf_counter()
        left = self._training.config.steps - self._steps
        if self._steps == 1 and left:
            seconds = self._ended - self._started
            self._log(
                f"a step takes about {seconds:.2g} s, the rest of the run at most {format_duration(seconds * left)}"
            )
        if left and self._has_converged:
            self._log(f"no network has become better for {self._growth.patience} steps")
            self._control.put(RequestKind.STOP, CONVERGED)

    @property
    def _has_converged(self) -> bool:
        """True if no network has become better for `patience` steps."""
        return self._best is not None and self._steps - self._best.step >= self._growth.patience

    def finish(self) -> None:
        """Build the best network, write it if asked, and compare it if asked and the user has not stopped the run.

        Raises:
            FaultError: The network cannot be built or tested.
        """
        best, growth = self._best, self._growth
        if best is None:
            self._log("no network has a score yet, so there is none to harvest", "warning")
            return
        config = self._training.config
        provenance = Provenance(
            run=self._run.name,
            env=best.env,
            round=1,
            step=best.step,
            policy=config.policy,
            seed=config.seed,
            version=VERSION,
        )
        growth.grown = self._build(best.seeds, best.tensors, provenance)
        self._log(f"best network: env {best.env} after step {best.step}, {self._describe(growth.grown.structure)}")
        if growth.target:
            self._save(growth.grown, growth.target(self._run))
        if growth.compares and (self._has_converged or self._steps == config.steps):
            try:
                self._compare(growth.grown.structure)
            except FaultError as fault:
                self._log(f"the comparison ended early: {fault}", "error")

    def _build(self, seeds: Sequence[GrownSeed], tensors: Mapping[str, Tensor], provenance: Provenance) -> Grown:
        """Build a network and compute its scores. Raises FaultError if the model or the score fails."""
        try:
            return Grown.build(self._task, self._splits, seeds, tensors, provenance)
        except (HarvestError, TaskError) as error:
            fault = FaultError(str(error))
        except Exception as error:  # noqa: BLE001 (of the model or the score, which may be the user's code)
            fault = FaultError.from_exception(error, "the test of the network")
        raise fault

    def _save(self, grown: Grown, directory: Path) -> None:
        growth = self._growth
        try:
            growth.problem = grown.save(directory)
        except HarvestError as error:
            command = harvest_command(self._run, self._training.origin)
            growth.failure = f"{error}; write the network with: {command}"
            self._log(growth.failure, "error")
        else:
            growth.directory = directory
            self._log(f"the network is written to {directory}")

    def _compare(self, structure: GrownStructure) -> None:
        """Train what the grown network is compared with."""
        seconds = self._ended - self._started
        self._growth.comparison = [Variant("grown", structure.test_score, structure.parameters, seconds)]
        variants = [("host alone", list[GrownSeed]()), ("same architecture from scratch", structure.seeds)]
        if not structure.seeds:
            variants = [("host alone (same architecture)", structure.seeds)]
            self._log("no seed was grown, so the grown architecture is the host alone, which is trained once")
        for name, seeds in variants:
            start = time.perf_counter()
            best = self._train_fixed(name, seeds)
            if best is None:
                return
            seconds = time.perf_counter() - start
            trained = self._build(seeds, best.tensors, structure.provenance).structure
            self._growth.comparison.append(Variant(name, trained.test_score, trained.parameters, seconds))
            self._log(f"{name}: {self._describe(trained)}")

    def _train_fixed(self, name: str, seeds: Sequence[GrownSeed]) -> BestNetwork | None:
        """Train the hosts of the growth from the start, with fixed seeds, for as many epochs.

        Hosts, data order and optimizers are those of the growth. Seeds have fresh weights and are blended in from the
        start.

        Returns:
            The best network of all envs and epochs by validation score; None if a stop was requested.
        """
        pool, config = self._training.pool, self._training.config
        best: BestNetwork | None = None
        pool.reset_loss_scales()
        pool.reset(0)
        for env in pool.envs:
            plant_grown(env, seeds, config.seed)
        actions = [WAIT_DECISION.action] * len(pool.envs)
        for step in range(self._steps):
            while request := self._control.get():
                ends = request.kind in ENDING_KINDS
                ignored = None if ends else "the growth is over, and only the comparison still trains"
                self._training.hub.emit_global(control_requested(request, ignored))
                if ends:
                    return None
            epochs = zip(pool.envs, pool.step(actions, step), strict=True)
            scores = [(epoch.measured.score, env) for env, epoch in epochs if epoch is not None]
            best = better_network(best, scores, step + 1)
            found = f", best validation {self._task.score_name} {best.score:.1%}" if best else ""
            self._log(f"{name}: epoch {step + 1} of {self._steps}{found}")
        return best

    def _describe(self, structure: GrownStructure) -> str:
        return f"{structure.score_name} {structure.test_score:.1%} on the test split"

    def _log(self, text: str, severity: Severity = "info") -> None:
        self._training.hub.emit(ev.Logged(severity=severity, text=text))
