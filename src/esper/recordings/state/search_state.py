"""SearchState: the candidates of a growth, folded from its events."""

from __future__ import annotations

import msgspec

from esper.common.formatting import pluralise
from esper.common.score_scale import PERCENT, ScoreScale
from esper.recordings.candidates.candidates import BARE_HOST, COMPARED, Candidate, Origin, front
from esper.recordings.candidates.report import (
    Standing,
    best_candidate,
    count_outcomes,
    format_ratio,
    format_with_unit,
    label_of,
    standings,
)
from esper.recordings.events.search import (
    CandidateMeasured,
    NetworkTested,
    SearchEnded,
    SearchEvent,
    SearchInfo,
    TrialEnded,
    TrialStarted,
)

MAX_CANDIDATES = 500
"""Maximum number of candidates in a state. Beyond it, the worst one is removed; the front and the host stay."""


class Training(msgspec.Struct, frozen=True, gc=False):
    """The candidate that an env trains, or trained last."""

    candidate: str
    """Plan, or name of a policy; empty for the bare host."""
    origin: Origin
    """Source of the candidate."""
    fresh: int | None = None
    """Number of the fresh host, from 1; None on the host of the search."""
    outcome: str | None = None
    """Outcome of the training; None while it trains."""


class SearchState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of a growth."""

    info: SearchInfo
    """Budget and aim."""
    scale: ScoreScale = PERCENT
    """Scale of the scores."""
    candidates: list[Candidate] = []
    """Candidates in the order of their first trials."""
    training: dict[int, Training] = {}
    """Candidate of each env in this round, keyed by env."""
    trials_ended: int = 0
    """Number of trials of the search that have ended, pruned and failed ones included."""
    fresh_ended: int = 0
    """Number of trainings on fresh hosts that have ended, failed ones and comparisons included."""
    answer: str | None = None
    """The answer in one sentence; None before the end of the search."""
    revision: int = 0
    """Sequence number of the last event that changed it."""
    chosen: str | None = None
    """Candidate that was chosen; None before the end of the search, and if none could be."""
    directory: str | None = None
    """Directory of its network; None if none was written."""

    @property
    def front(self) -> list[Candidate]:
        """Candidates that no other one dominates, by rising parameters, without those that are only compared."""
        return front(self.candidates)

    @property
    def result(self) -> Candidate | None:
        """The answer; before the end of the search, the best candidate so far. None if there is none."""
        if self.answer is None:
            return best_candidate(self.candidates, self.info.objective)
        return None if self.chosen is None else self.find(self.chosen)

    def find(self, name: str) -> Candidate | None:
        """Return a candidate by its name; None if it is unknown."""
        return next((one for one in self.candidates if one.name == name), None)

    def standings(self) -> list[Standing]:
        """Return the candidates with letters, marks and outcomes, the best first."""
        return standings(self.candidates, self.info.objective, chosen=self.chosen, training=self.trains_now)

    def describe_best(self) -> str:
        """Return the best candidate so far and the bare host in words."""
        best, host = best_candidate(self.candidates, self.info.objective), self.find(BARE_HOST)
        if best is None:
            return "no trial is done yet"
        if best.name == BARE_HOST:
            return f"best so far: your network, {format_with_unit(best)}"
        own = f"; your network {format_with_unit(host)}" if host is not None else ""
        return f"best so far: {label_of(best)}, {format_with_unit(best)}, {format_ratio(best)} parameters{own}"

    def describe_counts(self) -> str:
        """Return how many candidates there are, and how their trials ended: `14 candidates: 9 done, 4 pruned`.

        Networks that are only compared are no candidates.
        """
        tried = [one for one in self.candidates if one.name not in COMPARED]
        counts = ", ".join(f"{count} {outcome}" for outcome, count in count_outcomes(tried).items())
        return pluralise(len(tried), "candidate") + (f": {counts}" if counts else "")

    @property
    def trains_now(self) -> dict[str, int | None]:
        """Number of the fresh host, None on the host of the search, on which a candidate trains, keyed by its name."""
        return {one.candidate: one.fresh for one in self.training.values() if one.outcome is None}

    @property
    def is_final(self) -> bool:
        """True once candidates train on fresh hosts."""
        return any(one.fresh_scores for one in self.candidates) or any(self.trains_now.values())

    def fraction_done(self, seconds: float) -> float:
        """Return the fraction of the trainings that have ended, or of the time that is used, 0 to 1.

        Args:
            seconds: Seconds of training so far.
        """
        if self.info.minutes is not None:
            return min(seconds / (60 * self.info.minutes), 1.0)
        trainings = (self.info.trials or 0) + (self.info.fresh or 0)
        return min((self.trials_ended + self.fresh_ended) / trainings, 1.0) if trainings else 0.0

    def describe_progress(self, seconds: float) -> str:
        """Return the used part of the budget: `12 of 32 trials`, `8 of 30 min`, or `9 of 40 fresh trainings`.

        Args:
            seconds: Seconds of training so far.
        """
        if self.info.minutes is not None:
            digits = 0 if self.info.minutes >= 10 else 1
            return f"{min(seconds / 60, self.info.minutes):.{digits}f} of {self.info.minutes:g} min"
        if self.answer is None and self.is_final and self.info.fresh:
            return f"{self.fresh_ended} of {self.info.fresh} fresh trainings"
        return f"{self.trials_ended} of {self.info.trials} trials"

    def resume(self, info: SearchInfo) -> None:
        """Continue the search, perhaps with another budget."""
        self.info, self.answer, self.chosen, self.directory = info, None, None, None

    def start_round(self, seq: int) -> None:
        """Remove the trainings of the round before, with the event of this sequence number."""
        self.training, self.revision = {}, seq

    def apply(self, event: SearchEvent) -> None:
        """Update the state with an event."""
        self.revision = event.seq
        match event:
            case TrialStarted():
                self.training[event.env] = Training(event.candidate, event.origin, event.fresh)
                if self.find(event.candidate) is None:
                    self.candidates.append(Candidate(name=event.candidate, origin=event.origin, scale=self.scale))
            case TrialEnded():
                self._end_trial(event)
            case CandidateMeasured():
                if found := self.find(event.candidate):
                    found.score_interval, found.test_interval = event.score, event.test
                    found.gain, found.score_gain = event.gain, event.score_gain
            case NetworkTested():
                if found := self.find(event.candidate):
                    found.test_score = event.test_score
            case SearchEnded():
                self.answer, self.chosen, self.directory = event.answer, event.candidate, event.directory

    def _end_trial(self, event: TrialEnded) -> None:
        training = self.training.get(event.env)
        if training is not None:
            self.training[event.env] = msgspec.structs.replace(training, outcome=event.outcome)
        found = self.find(event.candidate)
        if found is None:
            return
        is_best = event.fresh is None
        self.fresh_ended += event.fresh is not None
        if event.fresh is None:
            self.trials_ended += 1
            found.outcome, found.reason = event.outcome, event.reason
            found.score, found.net_return = event.score, event.net_return
        elif event.outcome == "done" and event.score is not None and event.net_return is not None:
            if event.fresh in found.fresh_hosts:  # a comparison with a later answer
                found.fresh_scores, found.fresh_returns, found.fresh_hosts, found.late_gains = [], [], [], []
            best = self.scale.best_of(found.fresh_scores)
            is_best = best is None or self.scale.is_better(event.score, best)
            found.fresh_scores.append(event.score)
            found.fresh_returns.append(event.net_return)
            found.fresh_hosts.append(event.fresh)
            if event.late_gain is not None:
                found.late_gains.append(event.late_gain)
        if is_best and event.parameter_ratio is not None:
            found.parameter_ratio, found.seeds = event.parameter_ratio, event.seeds
        if len(self.candidates) > MAX_CANDIDATES:
            self._remove_worst()

    def _remove_worst(self) -> None:
        kept = {BARE_HOST, *(one.name for one in self.front)}
        ended = [one for one in self.candidates if one.outcome and one.name not in kept]
        if ended:
            self.candidates.remove(min(ended, key=lambda one: one.quality))
