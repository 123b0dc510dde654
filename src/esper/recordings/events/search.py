"""Events of a growth: the trials of its candidates, and its answer."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from esper.common.intervals import IntervalEstimate
from esper.recordings.candidates.candidates import Objective, Origin, Outcome
from esper.recordings.events.base import Event


class SearchInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Budget and aim of a growth."""

    trials: int | None = None
    """Number of trials of the search; absent if the budget is a time."""
    fresh: int | None = None
    """Number of trainings on fresh hosts if all finalists and comparisons take place; absent like `trials`."""
    minutes: float | None = None
    """Minutes of training; absent if the budget is a number of trials."""
    objective: Objective
    """Quantity that the search maximises: return, or score."""
    max_parameters: int | None = None
    """Maximum number of parameters of a network; absent without a limit."""


class TrialStarted(Event, frozen=True, kw_only=True, tag=True):
    """A candidate began to train in an env, on the host of the search or on a fresh one."""

    round: int
    env: int
    candidate: str
    """Plan, or name of a policy; empty for the bare host."""
    origin: Origin
    """host, policy, known, drawn, variation, or comparison."""
    fresh: int | None = None
    """Number of the fresh host, from 1; absent on the host of the search."""


class TrialEnded(Event, frozen=True, kw_only=True, tag=True):
    """The training of a candidate ended."""

    round: int
    step: int
    """Last step that was completed."""
    env: int
    candidate: str
    """Plan, or name of a policy; empty for the bare host."""
    fresh: int | None = None
    """Number of the fresh host, from 1; absent on the host of the search."""
    outcome: Outcome
    """done, pruned (it was worse than others at the same step), broke down, or failed."""
    reason: str | None = None
    """Why it failed or broke down; absent otherwise."""
    score: float | None = None
    """Best validation score of the training; absent if no step was completed."""
    best_step: int | None = None
    """Step of this score; absent like it."""
    net_return: float | None = None
    """Score gain minus rent and op costs; absent unless the training is done."""
    parameter_ratio: float | None = None
    """Parameters of the network with the best score, divided by those of the bare host; absent like the score."""
    seeds: list[str] = []
    """Seeds of this network, such as `conv_heavy in s3`."""
    late_gain: float | None = None
    """Gain in validation score over the last quarter of the training, positive if it improved; absent unless it is
    done, on a fresh host."""


class CandidateMeasured(Event, frozen=True, kw_only=True, tag=True):
    """The networks of a candidate on its fresh hosts so far were measured, with the hosts and the samples as sources of
    chance."""

    candidate: str
    """Plan, or name of a policy; empty for the bare host."""
    score: IntervalEstimate
    """Mean validation score."""
    test: IntervalEstimate
    """Mean score on the test split, which was used for nothing else."""
    gain: IntervalEstimate | None = None
    """Objective minus that of the bare host on the same hosts, at a level that is corrected for the number of
    candidates on fresh hosts; absent for the bare host and for networks that are only compared."""
    score_gain: IntervalEstimate | None = None
    """The same for the validation score; positive if it improved."""


class NetworkTested(Event, frozen=True, kw_only=True, tag=True):
    """The network of a candidate was tested, at the end of a growth."""

    candidate: str
    """Plan, or name of a policy; empty for the bare host."""
    test_score: float
    """Score on the test split, which was used for nothing else."""


class SearchEnded(Event, frozen=True, kw_only=True, tag=True):
    """A growth ended with its answer."""

    answer: str
    """The answer in one sentence."""
    candidate: str | None = None
    """Candidate that was chosen: plan, or name of a policy; empty for the bare host; absent if none could be."""
    directory: str | None = None
    """Directory of its network; absent if none was written."""


SearchEvent: TypeAlias = TrialStarted | TrialEnded | CandidateMeasured | NetworkTested | SearchEnded
"""Union of the events of a growth."""
