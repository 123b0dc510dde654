"""Candidates of a growth: the results of their trainings, the front of score against parameters, and the answer.

A candidate is a plan, or a policy that decides for itself; the bare host is the empty plan. A trial is one training of
a candidate. The trials of a search all have the same host and the same order of the data. The last few candidates, the
finalists, are then trained on fresh hosts and orders, the same ones for each, and only these trainings choose.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from esper.common.configuration.config import ConfigError
from esper.common.decisions import describe_planned, parse_decision
from esper.common.formatting import pluralise
from esper.common.intervals import IntervalEstimate, t_interval
from esper.common.plots.scatter import pareto_front
from esper.common.score_scale import PERCENT, ScoreScale

BARE_HOST = ""
"""Name of the candidate that never grows: the empty plan."""
WIDE_HOST = "wide host"
"""Name of a wider host of about as many parameters as the answer, without seeds."""
FROM_SCRATCH = "from scratch"
"""Name of the architecture of the answer, trained from the start with all of its seeds."""
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
    scale: ScoreScale = PERCENT
    """Scale of the scores."""
    outcome: Outcome | None = None
    """Outcome of its trial; None while it trains."""
    reason: str | None = None
    """Why its trial failed or broke down; None if it did not."""
    score: float | None = None
    """Best validation score of its trial; None if no step was completed."""
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
    late_gains: list[float] = []
    """Gain in validation score over the last quarter of each of these trainings; more is better."""
    score_interval: IntervalEstimate | None = None
    """Mean score on fresh hosts, over hosts and samples; None with fewer than two hosts."""
    test_interval: IntervalEstimate | None = None
    """The same on the test split, which chose nothing."""
    gain: IntervalEstimate | None = None
    """Objective minus that of the bare host on the same hosts, over hosts and samples, at a level that is corrected for
    the number of finalists; None for the bare host, and with fewer than two hosts."""
    score_gain: IntervalEstimate | None = None
    """The same for the score; more is better."""
    test_score: float | None = None
    """Score on the test split of the network that can be written; None if it was not measured."""

    @property
    def is_fresh(self) -> bool:
        """True if it was trained on fresh hosts, twice or more."""
        return len(self.fresh_scores) > 1

    @property
    def mean_score(self) -> float | None:
        """Mean score on fresh hosts; that of its trial if it has not been trained on them."""
        return statistics.fmean(self.fresh_scores) if self.fresh_scores else self.score

    @property
    def mean_return(self) -> float | None:
        """Mean return on fresh hosts; that of its trial if it has not been trained on them."""
        return statistics.fmean(self.fresh_returns) if self.fresh_returns else self.net_return

    @property
    def best_score(self) -> float | None:
        """Best score of its completed trainings; None if none was completed."""
        of_trial = [self.score] if self.outcome == "done" and self.score is not None else []
        return self.scale.best_of([*of_trial, *self.fresh_scores])

    @property
    def is_better(self) -> bool:
        """True if its objective is better than that of the bare host, beyond chance, and its score is not worse."""
        return self.gain is not None and self.gain.low > 0 and self.score_gain is not None and self.score_gain.mean > 0

    @property
    def still_improves(self) -> bool:
        """True if its score still improved in the last quarter of its fresh trainings, beyond chance."""
        return len(self.late_gains) > 1 and t_interval(self.late_gains).low > 0

    def values(self, objective: Objective) -> dict[int, float]:
        """Return the objective on each fresh host, keyed by its number: the return or the score; more is better."""
        values = map(self.scale.gain, self.fresh_scores) if objective == "score" else self.fresh_returns
        return dict(zip(self.fresh_hosts, values, strict=True))

    def trial_value(self, objective: Objective) -> float | None:
        """Return the objective of its trial, see `values`; None if it was not completed, or is not finite."""
        value = self.net_return
        if objective == "score":
            value = None if self.score is None else self.scale.gain(self.score)
        return value if self.outcome == "done" and value is not None and math.isfinite(value) else None

    @property
    def quality(self) -> float:
        """`ScoreScale.gain` of its mean score, so that higher is better; −∞ if it was not measured."""
        return -math.inf if self.mean_score is None else self.scale.gain(self.mean_score)


def describe_candidate(name: str) -> str:
    """Return the label of a candidate: `your network`, a policy, or the seeds of a plan with their steps."""
    if name == BARE_HOST:
        return "your network"
    if name.startswith("/") or "@" not in name:
        *_, run, directory, last = ["", "", *name.split("/")]
        return f"{run}/{last}" if directory == "checkpoints" else last
    try:
        return ", ".join(describe_planned(parse_decision(word)) for word in name.split())
    except ConfigError:  # of a damaged recording
        return name


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
    return pareto_front(measured, lambda one: (one.parameter_ratio or math.nan, one.quality))


def _complete(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates with the largest number of fresh hosts; no training of them has failed there."""
    fresh = [one for one in candidates if one.is_fresh]
    most = max((len(one.fresh_hosts) for one in fresh), default=0)
    return [one for one in fresh if len(one.fresh_hosts) == most]


def choose(candidates: Sequence[Candidate], objective: Objective) -> Candidate | None:
    """Return the answer of a growth: the best candidate on fresh hosts; None if none was trained on all of them.

    A candidate must be better than the bare host beyond chance, see `Candidate.is_better`. Otherwise, a search without
    a better candidate would often choose one by chance.
    """
    complete = _complete(one for one in candidates if one.name not in COMPARED)
    host = next((one for one in candidates if one.name == BARE_HOST and one.is_fresh), None)
    better = [one for one in complete if host is None or one is host or one.is_better]
    return max(better, key=lambda one: statistics.fmean(one.values(objective).values()), default=host)


def describe_answer(candidates: Sequence[Candidate], objective: Objective, steps: int) -> str:
    """Return the answer of a growth in one sentence.

    Args:
        steps: Maximum number of epochs of a training.
    """
    best = choose(candidates, objective)
    host = next((one for one in candidates if one.name == BARE_HOST), None)
    if best is None or best.test_interval is None:
        reason = f": {host.reason}" if host and host.reason else ""
        return f"no candidate could be trained on fresh hosts{reason}"
    aim = "score" if objective == "score" else "return (score minus rent)"
    scale = best.scale
    found, ratio = scale.interval(best.test_interval), f"{best.parameter_ratio or math.nan:.3g} times the parameters"
    compared = _describe_comparisons(candidates)
    if host is None or host.test_interval is None:
        return (
            f"{describe_candidate(best.name)}: {found} on the test split, {ratio}; {compared}; your network has broken "
            "down, so there is no comparison"
        )
    own = scale.interval(host.test_interval)
    if best is host:
        answer = f"no candidate has a better {aim} than your network, which has {own} on the test split"
        if cheaper := _better_score(candidates):
            assert cheaper.test_interval is not None
            answer += (
                f"; {describe_candidate(cheaper.name)} has a better score, {scale.interval(cheaper.test_interval)}, "
                "but not after its rent: --objective score chooses by the score alone"
            )
    else:
        assert best.gain is not None
        gain = scale.interval_of_difference(best.gain) if objective == "score" else best.gain.signed
        answer = (
            f"{describe_candidate(best.name)} has a better {aim} than your network, by {gain}: {found} against {own} "
            f"on the test split, {ratio}"
        )
    wide = next((one.test_interval for one in candidates if one.name == WIDE_HOST), None)
    if best is not host and wide is not None and scale.is_better(wide.mean, best.test_interval.mean):
        answer += f"; a wider network of this size has {scale.interval(wide)}"
    return f"{answer}; {compared}{_describe_late_gains(best, host, steps)}"


def _better_score(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate with the best score of those whose score is better than the bare host's beyond chance."""
    better = [one for one in _complete(candidates) if one.score_gain is not None and one.score_gain.low > 0]
    return max(better, key=lambda one: one.quality, default=None)


def _describe_comparisons(candidates: Sequence[Candidate]) -> str:
    """Return how many candidates were compared, besides the bare host."""
    own = [one for one in candidates if one.name not in (BARE_HOST, *COMPARED)]
    if not own:
        return "no other candidate was tried"
    finalists = sum(one.is_fresh for one in own)
    trainings = f"in {max(len(one.fresh_scores) for one in candidates)} fresh trainings each"
    best = f"the best {finalists} of them " if finalists < len(own) else ""
    return f"{pluralise(len(own), 'candidate was', 'candidates were')} compared, {best}{trainings}"


def _describe_late_gains(best: Candidate, host: Candidate, steps: int) -> str:
    """Return that the trainings were too short, as the end of a sentence; empty if they were not."""
    if not best.still_improves and not host.still_improves:
        return ""
    advice = f"longer trainings can change the answer: --steps {2 * steps}"
    if best is host:
        return f"; your network still improves at the end of its trainings, and {advice}"
    improving = {(True, True): "both still improve", (True, False): "the grown network still improves"}
    subject = improving.get((best.still_improves, host.still_improves), "your network still improves")
    return f"; {subject} at the end of the trainings, and {advice}"
