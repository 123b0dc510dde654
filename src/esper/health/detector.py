"""Runs the rules on each event; reports where an anomaly begins and ends."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from esper.domain import Rule
from esper.health.rule_context import RuleContext
from esper.health.rules import RULES_BY_EVENT
from esper.telemetry import events as ev
from esper.telemetry.health_stats import RunHealth
from esper.telemetry.state import RunState, anomaly_key

AnomalyEvent: TypeAlias = ev.AnomalyFound | ev.AnomalyEnded


class AnomalyDetector:
    """Told every event of a run, one after the other."""

    def __init__(self) -> None:
        self._evidence = RuleContext(RunHealth())
        self._active: dict[str, dict[str, ev.AnomalyFound]] = {}
        """By the scope of a rule, then by rule and place."""

    def resume(self, state: RunState) -> None:
        """Start again from a state of the run, which the inspector then owns."""
        self._evidence = RuleContext(state.vitals)
        self._active = {}
        for anomaly in state.active_anomalies():
            found = anomaly.found
            self._active.setdefault(_scope_of(found, state.vitals), {})[anomaly_key(found)] = found

    def fold_remote(self, event: ev.AnyEvent) -> None:
        """Take in an event at which another inspector looks: that of the rank which it befell."""
        self._update_context(event)

    def check(self, event: ev.AnyEvent) -> list[AnomalyEvent]:
        """The anomalies that begin or end with an event."""
        scope = self._update_context(event)
        rules = RULES_BY_EVENT.get(type(event))
        if not rules:
            return []
        evidence = self._evidence
        broken = [found for rule in rules for found in rule(event, evidence)]
        known = self._active.get(scope, {})
        if not broken and not known:
            return []
        now: dict[str, ev.AnomalyFound] = {}
        for found in broken:
            now.setdefault(anomaly_key(found), found)
        self._active[scope] = now
        begun = [found for key, found in now.items() if key not in known]
        # In an order that a resumed run has as well: it does not know in which they were found.
        ended = [
            ev.AnomalyEnded(rule=known[key].rule, where=known[key].where, env=known[key].env)
            for key in sorted(known.keys() - now.keys())
        ]
        return [*begun, *ended]

    def _update_context(self, event: ev.AnyEvent) -> str:
        """Take an event in. Returns its scope: an anomaly there that it does not show again has ended."""
        match event:
            case ev.EnvStepped():
                scope = _scope_of_env(event.env)
                if self._evidence.fold_step(event):
                    # A fresh host: what was wrong with the last one is over, and RunState knows.
                    self._active.pop(scope, None)
                    self._active.pop(f"governor {event.env}", None)
                return scope
            case ev.GovernorRolledBack():
                return f"governor {event.env}"
            case ev.DeviceSampled():
                self._evidence.fold_sample(event)
                return event.device
            case ev.RunStarted():
                self._evidence.vitals.fold_start(event)
                return "run"
            case _:
                return "policy"


@cache
def _scope_of_env(env: int) -> str:
    return f"env {env}"


def _scope_of(found: ev.AnomalyFound, vitals: RunHealth) -> str:
    if found.env is not None:
        return f"governor {found.env}" if found.rule == Rule.GOVERNOR_ROLLBACK else _scope_of_env(found.env)
    return found.where if found.where in vitals.lanes else "policy"
