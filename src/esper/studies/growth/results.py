"""GrowthResults: the end of a growth: the answer, the test of its networks, and their files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from esper.common.domain import VERSION, Severity
from esper.common.formatting import pluralise
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Task
from esper.recordings import events as ev
from esper.recordings.candidates.candidates import BARE_HOST, Candidate, choose, describe_answer, describe_candidate
from esper.recordings.files.run_directory import RunDirectory
from esper.studies.growth.best_network import BestNetwork
from esper.studies.growth.director import GrowthDirector
from esper.studies.growth.fresh_scores import testing_network
from esper.studies.growth.growth import Growth
from esper.studies.harvest.grown import Grown
from esper.studies.harvest.structure import HarvestError, Provenance
from esper.training.engine.training_state import TrainingState

_MAX_NAME_CHARS = 60
"""Maximum length of the part of a directory's name that describes its network."""


class GrowthResults:
    """Computes the results of a growth whose trainings have ended, or were stopped. Only rank 0 has them.

    Args:
        growth: Receives the results.
        splits: Data of the task, on the CPU.
    """

    def __init__(
        self,
        growth: Growth,
        director: GrowthDirector,
        training: TrainingState,
        *,
        task: Task,
        splits: Splits,
        run: RunDirectory,
    ) -> None:
        self._growth = growth
        self._director = director
        self._training = training
        self._task = task
        self._splits = splits
        self._run = run

    def names(self) -> list[str]:
        """Return the names of the networks that `finish` needs."""
        best, _ = self._answer()
        front = [one.name for one in self._director.search_state.front]
        names = dict.fromkeys([best.name, BARE_HOST, *front]) if best else {}
        return [name for name in names if name in self._director.networks]

    def finish(self, networks: Mapping[str, BestNetwork]) -> None:
        """Test the networks of the front, write the requested ones, and report the answer.

        Args:
            networks: The networks of `names`, keyed by name.

        Raises:
            FaultError: A network cannot be built or tested.
        """
        growth, objective = self._growth, self._growth.request.objective
        growth.search, growth.is_complete = self._director.search_state, self._director.has_ended
        best, answer = self._answer()
        if best is None:
            self._director.emit(ev.SearchEnded(answer=answer))
            return
        for name, network in networks.items():
            grown = self._build(name, network, answer if name == best.name else "")
            growth.networks[name] = grown
            self._director.emit(ev.NetworkTested(candidate=name, test_score=grown.structure.test_score))
        self._write(best.name)
        if effects := self._director.effects(best.name):
            described = ", ".join(f"{seed} {effect:+.3f}" for seed, effect in effects.items())
            self._log(f"effect of each seed on the {objective}, on the host of the search: {described}")
        directory = growth.directories.get(best.name)
        written = None if directory is None else str(directory)
        self._director.emit(ev.SearchEnded(answer=answer, candidate=best.name, directory=written))

    def _answer(self) -> tuple[Candidate | None, str]:
        """Return the best candidate, None without one, and the answer in words."""
        state, objective = self._director.search_state, self._growth.request.objective
        if not self._director.has_chosen:
            best = self._director.best_trial()
            return best, self._describe_stopped(best)
        answer = describe_answer(state.candidates, objective, self._training.config.steps)
        if not self._director.has_ended:
            answer += "; stopped before its comparisons were done, which the same command continues"
        return choose(state.candidates, objective), answer

    def _describe_stopped(self, best: Candidate | None) -> str:
        """Return the answer of a growth that was stopped before it had chosen."""
        stopped = f"stopped after {pluralise(self._director.search_state.trials_ended, 'trial')}"
        if best is None or best.score is None:
            return f"{stopped}, before any of them was done; the same command continues"
        return (
            f"{stopped}; best so far: {describe_candidate(best.name)}, {best.scale.text(best.score)} in one training, "
            "which fresh trainings have not confirmed; the same command continues"
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
            answer=answer if self._director.has_chosen else "",
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

    def _log(self, text: str, severity: Severity = "info") -> None:
        self._training.hub.emit(ev.Logged(severity=severity, text=text))


def _directory_name(index: int, candidate: str) -> str:
    """Return the name of the directory of a network of the front, such as `2-depthwise-first-0`."""
    described = re.sub(r"[^A-Za-z0-9_]+", "-", candidate or "bare host").strip("-")
    return f"{index + 1}-{described[:_MAX_NAME_CHARS]}"
