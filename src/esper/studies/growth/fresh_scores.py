"""FreshScores: scores of the networks that were trained on fresh hosts, for each sample, and what follows from them.

All fresh hosts share the validation split, so a candidate may be better on all of them by an accident of its samples.
The intervals of a growth therefore have two sources of chance: the hosts, and the samples.

Shapes: N samples of a split, H fresh hosts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esper.common.configuration.config import TaskError
from esper.common.intervals import CONFIDENCE_LEVEL, IntervalEstimate, crossed_interval, joint_level
from esper.common.score_scale import ScoreScale
from esper.common.user_code.isolation import isolated
from esper.common.user_code.references import user_errors
from esper.networks.seeds.network import count_samples
from esper.networks.tasks.splits import Splits
from esper.recordings import events as ev
from esper.recordings.candidates.candidates import BARE_HOST, COMPARED, Candidate, Objective
from esper.studies.growth.best_network import BestNetwork
from esper.studies.harvest.model import build_model, sample_scores
from esper.studies.harvest.structure import HarvestError
from esper.training.envs.env import Env
from esper.training.lanes.errors import FaultError

GAIN_LEVEL = 0.9
"""Level of the intervals of all gains together. If no gain is above 0, one of their lower ends is in 5 % of growths."""


class NetworkScores(NamedTuple):
    """Result of `Score.parts` of a network for two splits, [N] on the CPU: the score of each sample."""

    validation: Tensor
    test: Tensor


def check_samples(task: str, splits: Splits) -> None:
    """Raise TaskError if a split has too few samples for an interval."""
    for name in NetworkScores._fields:
        if count_samples(getattr(splits, name)[0]) < 2:
            raise TaskError(f"task {task}: the split {name!r} has one sample; a growth needs two or more")


@contextmanager
def testing_network() -> Generator[None]:
    """Context that builds or scores a network. Raises FaultError if the model or the score, the user's code, fails."""
    try:
        yield
    except (HarvestError, TaskError) as error:
        fault = FaultError(str(error))
    except user_errors() as error:
        fault = FaultError.from_exception(error, "the test of the network")
    else:
        return
    raise fault


def measure_network(network: BestNetwork, env: Env) -> NetworkScores:
    """Return the scores of a network that was trained in an env. Raises FaultError if the model or the score fails."""
    with testing_network(), isolated("the model"):
        model = build_model(env.task, network.seeds, network.tensors).to(env.network.slots[0].device)
        return NetworkScores(
            sample_scores(model, env.splits.validation, env.task).cpu(),
            sample_scores(model, env.splits.test, env.task).cpu(),
        )


def measure_env(env: Env) -> NetworkScores:
    """Return the scores of the present network of an env. Raises FaultError if the model or the score fails."""
    with testing_network(), isolated("the model"), env.seeded("test"):
        return NetworkScores(env.sample_scores(env.splits.validation).cpu(), env.sample_scores(env.splits.test).cpu())


class FreshScores:
    """Scores of the networks of the candidates, one network for each fresh host.

    Args:
        scale: Scale of the scores.
        chance: Score of a constant output.
    """

    def __init__(self, scale: ScoreScale, chance: float) -> None:
        self._scale, self._chance = scale, chance
        self._scores: dict[str, dict[int, NetworkScores]] = {}
        """Scores keyed by candidate and by number of the host."""

    def add(self, candidate: str, host: int, scores: NetworkScores) -> None:
        """Add the scores of a candidate's network on a fresh host, or replace them."""
        self._scores.setdefault(candidate, {})[host] = scores

    def measure(self, candidates: Sequence[Candidate], objective: Objective) -> Iterator[ev.CandidateMeasured]:
        """Yield the results of each candidate that was trained on two fresh hosts or more.

        Args:
            candidates: All candidates.
        """
        fresh = [one for one in candidates if one.is_fresh]
        host = next((one for one in fresh if one.name == BARE_HOST), None)
        finalists = [one for one in fresh if one.name not in (BARE_HOST, *COMPARED)]
        limits = self._scale.limits
        level = joint_level(max(len(finalists), 1), GAIN_LEVEL)
        for one in fresh:
            scores = [self._scores[one.name][number] for number in one.fresh_hosts]
            compared = host if one in finalists else None
            yield ev.CandidateMeasured(
                candidate=one.name,
                score=_interval([part.validation for part in scores]).clip(*limits),
                test=_interval([part.test for part in scores]).clip(*limits),
                gain=self._gain(one, compared, objective, level),
                score_gain=self._gain(one, compared, "score", level),
            )

    def _gain(
        self, one: Candidate, host: Candidate | None, objective: Objective, level: float
    ) -> IntervalEstimate | None:
        """Return the objective of a candidate minus that of the bare host; None with fewer than two common hosts.

        More is better. The rent does not depend on the samples, so their part in the return is that of the score.
        """
        own, of_host = one.values(objective), host.values(objective) if host else {}
        numbers = sorted(own.keys() & of_host.keys())
        if len(numbers) < 2:
            return None
        sign = self._scale.gain(1.0)
        if objective == "return":
            sign = self._scale.share(sign, self._chance)
        differences: list[Tensor] = []
        for number in numbers:
            scores, host_scores = self._scores[one.name][number], self._scores[BARE_HOST][number]
            difference_N = sign * (scores.validation.double() - host_scores.validation.double())
            differences.append(difference_N - difference_N.mean() + own[number] - of_host[number])
        return _interval(differences, level)

    # Checkpoints

    def state_dict(self) -> list[list[Any]]:
        """Return candidate and host of each network, as JSON-compatible values."""
        return [[candidate, host] for candidate, by_host in self._scores.items() for host in by_host]

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the scores for a checkpoint, by name."""
        parts = [scores for by_host in self._scores.values() for scores in by_host.values()]
        return {f"{index}.{split}": getattr(part, split) for index, part in enumerate(parts) for split in part._fields}

    def load_state_dict(self, state: Sequence[Sequence[Any]], tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` and `state_tensors` have stored."""
        self._scores = {}
        for index, (candidate, host) in enumerate(state):
            parts = (tensors[f"{index}.{split}"].clone() for split in NetworkScores._fields)
            self.add(candidate, host, NetworkScores(*parts))


def _interval(scores_HN: Sequence[Tensor], level: float = CONFIDENCE_LEVEL) -> IntervalEstimate:
    return crossed_interval(torch.stack(list(scores_HN)).double().numpy(), level)
