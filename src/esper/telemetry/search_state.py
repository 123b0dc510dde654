"""SearchState: the candidates of a growth, folded from its events."""

from __future__ import annotations

import msgspec

from esper.candidates import BARE_HOST, COMPARED, Candidate, Origin, front
from esper.telemetry.events.search import NetworkTested, SearchEnded, SearchInfo, TrialEnded, TrialStarted

MAX_CANDIDATES = 500
"""Maximum number of candidates in a state. Beyond it, the worst one is removed; the front and the host stay."""


class Training(msgspec.Struct, frozen=True, gc=False):
    """The candidate that an env trains, or trained last."""

    candidate: str
    origin: Origin
    fresh: int | None = None
    """Number of the fresh host, from 1; None on the host of the search."""
    outcome: str | None = None
    """Outcome of the training; None while it goes on."""


class SearchState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of a growth."""

    info: SearchInfo
    candidates: list[Candidate] = []
    """Candidates in the order of their first trials."""
    training: dict[int, Training] = {}
    """Candidate of each env in this round, keyed by env."""
    trials_ended: int = 0
    """Number of trials of the search that have ended, pruned and failed ones included."""
    answer: str | None = None
    """The answer in one sentence; None before the end of the search."""
    chosen: str | None = None
    """Candidate that was chosen; None before the end of the search, and if none could be."""

    @property
    def front(self) -> list[Candidate]:
        """Candidates that no other one dominates, by rising parameters, without those that are only compared."""
        return front(one for one in self.candidates if one.name not in COMPARED)

    def find(self, name: str) -> Candidate | None:
        """Return a candidate by its name; None if it is unknown."""
        return next((one for one in self.candidates if one.name == name), None)

    def apply(self, event: TrialStarted | TrialEnded | NetworkTested | SearchEnded) -> None:
        """Update the state with an event."""
        match event:
            case TrialStarted():
                self._start_trial(event)
            case TrialEnded():
                self._end_trial(event)
            case NetworkTested():
                if found := self.find(event.candidate):
                    found.test_score = event.test_score
            case SearchEnded():
                self.answer, self.chosen = event.answer, event.candidate

    def _start_trial(self, event: TrialStarted) -> None:
        self.training[event.env] = Training(event.candidate, event.origin, event.fresh)
        if self.find(event.candidate) is None:
            self.candidates.append(Candidate(name=event.candidate, origin=event.origin))

    def _end_trial(self, event: TrialEnded) -> None:
        training = self.training.get(event.env)
        if training is not None:
            self.training[event.env] = msgspec.structs.replace(training, outcome=event.outcome)
        found = self.find(event.candidate)
        if found is None:
            return
        if event.fresh is None:
            self.trials_ended += 1
            found.outcome, found.reason = event.outcome, event.reason
            found.score, found.net_return = event.score, event.net_return
        elif event.outcome == "done" and event.score is not None and event.net_return is not None:
            if event.fresh in found.fresh_hosts:  # a comparison with a later answer
                found.fresh_scores, found.fresh_returns, found.fresh_hosts = [], [], []
            found.fresh_scores.append(event.score)
            found.fresh_returns.append(event.net_return)
            found.fresh_hosts.append(event.fresh)
        if event.parameter_ratio is not None:
            found.parameter_ratio, found.seeds = event.parameter_ratio, event.seeds
        if len(self.candidates) > MAX_CANDIDATES:
            self._remove_worst()

    def _remove_worst(self) -> None:
        kept = {BARE_HOST, *(one.name for one in self.front)}
        ended = [one for one in self.candidates if one.outcome and one.name not in kept]
        if ended:
            self.candidates.remove(min(ended, key=lambda one: one.score or 0.0))
