"""Anomaly detector: evaluates the rules on each event and reports where an anomaly begins and ends."""

from __future__ import annotations

from typing import TypeAlias

from esper.health.rule_context import RuleContext, Scope
from esper.health.rules import RULES_BY_EVENT, SCOPE_BY_RULE
from esper.telemetry import events as ev
from esper.telemetry.anomalies import anomaly_key
from esper.telemetry.health_stats import RunHealth
from esper.telemetry.state import RunState

AnomalyEvent: TypeAlias = ev.AnomalyFound | ev.AnomalyEnded

_Subject: TypeAlias = tuple[Scope, int | str | None]
"""Scope of a rule, and the env index or lane name that it checks; None for the policy."""


class AnomalyDetector:
    """Evaluates the anomaly rules on every event of a run, in order."""

    def __init__(self) -> None:
        self._context = RuleContext(RunHealth())
        self._active: dict[_Subject, dict[str, ev.AnomalyFound]] = {}
        """Active anomalies by `anomaly_key`, for each subject."""

    def resume(self, state: RunState) -> None:
        """Continue from a state of the run. The detector takes ownership of the state."""
        self._context = RuleContext(state.vitals)
        self._active = {}
        for anomaly in state.active_anomalies():
            found = anomaly.found
            scope = SCOPE_BY_RULE.get(found.rule)
            if scope is not None:  # no rule of this version can end an anomaly that another version has found
                self._active.setdefault((scope, _found_subject(scope, found)), {})[anomaly_key(found)] = found

    def fold_remote(self, event: ev.AnyEvent) -> None:
        """Process an event that the detector of another rank checks."""
        self._update_context(event)

    def check(self, event: ev.AnyEvent) -> list[AnomalyEvent]:
        """Process an event, and return the anomalies that begin or end with it."""
        self._update_context(event)
        rules = RULES_BY_EVENT.get(type(event))
        if rules is None:
            return []
        context = self._context
        broken = [found for check in rules.checks for found in check(event, context)]
        subject = (rules.scope, _event_subject(event))
        known = self._active.get(subject, {})
        if not broken and not known:
            return []
        now: dict[str, ev.AnomalyFound] = {}
        for found in broken:
            now.setdefault(anomaly_key(found), found)
        self._active[subject] = now
        begun = [found for key, found in now.items() if key not in known]
        # Sorted, because a resumed run does not know the order in which the anomalies were found.
        ended = [
            ev.AnomalyEnded(rule=known[key].rule, where=known[key].where, env=known[key].env)
            for key in sorted(known.keys() - now.keys())
        ]
        return [*begun, *ended]

    def _update_context(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.EnvStepped():
                if self._context.fold_step(event):
                    # The host is new. RunState ends the anomalies of the previous one by itself.
                    self._active.pop((Scope.ENV, event.env), None)
                    self._active.pop((Scope.GOVERNOR, event.env), None)
            case ev.DeviceSampled():
                self._context.fold_sample(event)
            case ev.RunStarted():
                self._context.health.fold_start(event)
            case _:
                pass


def _event_subject(event: ev.AnyEvent) -> int | str | None:
    match event:
        case ev.EnvStepped() | ev.GovernorRolledBack():
            return event.env
        case ev.DeviceSampled():
            return event.device
        case _:
            return None


def _found_subject(scope: Scope, found: ev.AnomalyFound) -> int | str | None:
    """Return what `_event_subject` returned for the event in which the anomaly was found."""
    match scope:
        case Scope.ENV | Scope.GOVERNOR:
            return found.env
        case Scope.LANE:
            return found.where
        case Scope.POLICY:
            return None
