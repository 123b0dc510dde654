"""Candidates of a growth: the results of their trainings, the front of score against parameters, and the answer.

A candidate is a plan, or a policy that decides for itself; the bare host is the empty plan. A trial is one training of
a candidate. The trials of a search all have the same host and the same order of the data. The last few candidates are
then trained on fresh hosts and orders, the same ones for each, and only these trainings choose.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from esper.intervals import IntervalEstimate, t_interval
from esper.scatter import pareto_front

BARE_HOST = ""
"""Name of the candidate that never grows: the empty plan."""
WIDE_HOST = "wide host"
"""Name of a wider host of about as many parameters as the answer, without seeds."""
FROM_SCRATCH = "from scratch"
"""Name of the architecture of the answer, trained from the start with all of its seeds."""
ONE_SIDED_LEVEL = 0.9
"""Level of the two-sided interval whose lower end is that of a one-sided test of level 5 %."""
COMPARED = (WIDE_HOST, FROM_SCRATCH)
"""Names of networks that are only compared with the answer, and are never chosen."""

Objective = Literal["return", "score"]
Outcome = Literal["done", "pruned", "broke down", "failed"]
Origin = Literal["host", "policy", "known", "drawn", "variation", "comparison"]


class Candidate(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A candidate and the results of its trainings."""

    name: str
    """Plan, or name of a policy; `BARE_HOST` for the empty plan."""
    origin: Origin
    """Source: the bare host, a policy, a plan that was good elsewhere, a draw of the sampler, a variation of the
    best plan, or a comparison."""
    outcome: Outcome | None = None
    """Outcome of its trial; None while it trains."""
    reason: str | None = None
    """Why its trial failed or broke down; None if it did not."""
    score: float | None = None
    """Best validation score of its trial, a fraction; None if no step was completed."""
    net_return: float | None = None
    """Return of its trial: score gain minus rent and op costs; None if it was not completed."""
    parameter_ratio: float | None = None
    """Parameters of the network with the best score, on fresh hosts if it was trained there, divided by those of the
    bare host."""
    seeds: list[str] = []
    """Seeds of this network, such as `conv_heavy in s3`."""
    fresh_scores: list[float] = []
    """Best validation score of each training on a fresh host; the hosts are the same ones for every candidate."""
    fresh_returns: list[float] = []
    """Return of each of these trainings."""
    fresh_hosts: list[int] = []
    """Number of the host of each of these trainings, from 1. A training that failed is missing."""
    test_score: float | None = None
    """Score on the test split of the network that can be written; None if it was not measured."""

    @property
    def trials(self) -> int:
        """Number of completed trainings."""
        return int(self.outcome == "done") + len(self.fresh_scores)

    @property
    def is_fresh(self) -> bool:
        """True if it was trained on fresh hosts, twice or more."""
        return len(self.fresh_scores) > 1

    @property
    def mean_score(self) -> float | None:
        """Mean score on fresh hosts; that of its trial if it has not been trained on them."""
        return statistics.fmean(self.fresh_scores) if self.fresh_scores else self.score

    @property
    def score_interval(self) -> IntervalEstimate | None:
        """Mean score on fresh hosts, with its t interval; None with fewer than two."""
        return t_interval(self.fresh_scores).clip(0.0, 1.0) if self.is_fresh else None

    def values(self, objective: Objective) -> dict[int, float]:
        """Return the objective on each fresh host, keyed by its number."""
        values = self.fresh_scores if objective == "score" else self.fresh_returns
        return dict(zip(self.fresh_hosts, values, strict=True))

    def trial_value(self, objective: Objective) -> float | None:
        """Return the objective of its trial; None if it was not completed, or is not finite."""
        value = self.score if objective == "score" else self.net_return
        return value if self.outcome == "done" and value is not None and math.isfinite(value) else None


def describe_candidate(name: str) -> str:
    """Return the label of a candidate: `your network`, a policy, or the seeds of a plan with their steps."""
    if name == BARE_HOST:
        return "your network"
    if name.startswith("/") or "@" not in name:
        *_, run, directory, last = ["", "", *name.split("/")]
        return f"{run}/{last}" if directory == "checkpoints" else last
    return ", ".join(_describe_word(word) for word in name.split())


def _describe_word(word: str) -> str:
    blueprint, _, place = word.partition("@")
    slot, _, options = place.partition(":")
    step, _, chosen = options.partition(",")
    seed = f"cull {slot}" if blueprint == "cull" else f"{blueprint} in {slot}"
    return f"{seed} at step {step}" + (f" ({chosen.replace(',', ', ')})" if chosen else "")


def front(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that no other one dominates, by rising parameters, without those that are only compared.

    A candidate dominates another if it is as good with fewer parameters, or better with as few. Candidates that were
    trained on all fresh hosts are only compared with each other, because the score of one trial is not comparable: if
    there are any, the others are left out. Until then, only trials that are done count.
    """
    own = (one for one in candidates if one.name not in COMPARED)
    measured = [one for one in own if one.mean_score is not None and one.parameter_ratio is not None]
    complete = _complete(measured)
    measured = complete or [one for one in measured if one.outcome == "done"]
    return pareto_front(measured, lambda one: (one.parameter_ratio or math.nan, one.mean_score or 0.0))


def _complete(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates with the largest number of fresh hosts; no training of them has failed there."""
    fresh = [one for one in candidates if one.is_fresh]
    most = max((len(one.fresh_hosts) for one in fresh), default=0)
    return [one for one in fresh if len(one.fresh_hosts) == most]


def choose(candidates: Sequence[Candidate], objective: Objective) -> Candidate | None:
    """Return the answer of a growth: the best candidate on fresh hosts; None if none was trained on all of them.

    A candidate must be better than the bare host: with a better mean score, and with an objective whose paired
    difference is above 0 (t test of level 5 %, one-sided). Otherwise, a search without a better candidate would often
    choose one by chance.
    """
    complete = _complete(one for one in candidates if one.name not in COMPARED)
    host = next((one for one in candidates if one.name == BARE_HOST and one.is_fresh), None)
    better = [one for one in complete if host is None or one is host or _is_better(one, host, objective)]
    return max(better, key=lambda one: statistics.fmean(one.values(objective).values()), default=host)


def _is_better(one: Candidate, host: Candidate, objective: Objective) -> bool:
    if (one.mean_score or 0.0) <= (host.mean_score or 0.0):
        return False
    own, of_host = one.values(objective), host.values(objective)
    differences = [own[number] - of_host[number] for number in own.keys() & of_host.keys()]
    return len(differences) > 1 and t_interval(differences, ONE_SIDED_LEVEL).low > 0


def describe_answer(candidates: Sequence[Candidate], objective: Objective) -> str:
    """Return the answer of a growth in one sentence."""
    best = choose(candidates, objective)
    host = next((one for one in candidates if one.name == BARE_HOST), None)
    own = host.score_interval if host else None
    if best is None or (found := best.score_interval) is None:
        reason = f": {host.reason}" if host and host.reason else ""
        return f"no candidate could be trained on fresh hosts{reason}"
    each = " each" if sum(one.is_fresh for one in candidates) > 1 else ""
    trainings = f"{len(best.fresh_scores)} fresh trainings{each}"
    if host is None or own is None:
        return (
            f"{describe_candidate(best.name)}: {found.percent}, {best.parameter_ratio or math.nan:.3g} times the "
            f"parameters, {trainings}; your network has broken down, so there is no comparison"
        )
    if best is host:
        return f"nothing that was tried is better than your network: {own.percent}, {trainings}"
    answer = (
        f"{describe_candidate(best.name)}: {found.percent} against {own.percent} of your network, "
        f"{best.parameter_ratio or math.nan:.3g} times the parameters, {trainings}"
    )
    wide = next((one.score_interval for one in candidates if one.name == WIDE_HOST), None)
    if wide is not None and wide.mean > found.mean:
        answer += f"; a wider network of this size has {wide.percent}"
    return answer
