"""Anomaly detector: evaluates the rules on each event and reports where an anomaly begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeAlias

from esper.recordings import events as ev
from esper.recordings.health.rule_context import RuleContext
from esper.recordings.health.rules import CHECKS, RULES
from esper.recordings.health.thresholds import Thresholds
from esper.recordings.state.anomalies import anomaly_key
from esper.recordings.state.health_stats import RunHealth
from esper.recordings.state.state import RunState

AnomalyEvent: TypeAlias = ev.AnomalyFound | ev.AnomalyJoined | ev.AnomalyLeft | ev.AnomalyEnded

_Subject: TypeAlias = tuple[type[ev.Event], int | str | None]
"""Event type of a rule, and the env index or lane name that it checks; None for the run and the policy."""
_EVENTS_OF_ENVS = (ev.EnvStepped, ev.GovernorRolledBack)
"""Event types whose subject is an env."""
_SUBJECT_FIELDS: dict[type[ev.Event], str] = {**dict.fromkeys(_EVENTS_OF_ENVS, "env"), ev.DeviceSampled: "device"}
"""Field that names the subject of an event, keyed by event type; not for the run and the policy."""


class _ActiveAnomaly(NamedTuple):
    """An anomaly that is active, perhaps in several envs."""

    rule: str
    where: str
    """Subject in which it was found."""
    env: int | None
    """Index of the env in which it was found, if its subject is an env."""
    envs: set[int]
    """Envs in which it is active. Only an anomaly of an env has several: all envs share the anomaly of a rule."""


class AnomalyDetector:
    """Evaluates the anomaly rules on every event of a run, in order.

    While an anomaly of an env is active, other envs with the same rule join it. A rollback never joins another.

    Args:
        thresholds: Thresholds of the rules.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self._thresholds = thresholds or Thresholds()
        self._context = RuleContext(RunHealth(), self._thresholds)
        self._active: dict[_Subject, dict[str, _ActiveAnomaly]] = {}
        """Active anomalies of each subject, keyed by rule and subject (`anomaly_key`)."""

    def resume(self, state: RunState) -> None:
        """Continue from a state of the run. The detector takes ownership of the state."""
        rounds = self._context.health.rounds
        if rounds is not None:  # a restored checkpoint can be older than the last `--rounds`
            state.health.rounds = rounds
        self._context = RuleContext(state.health, self._thresholds)
        self._active = {}
        for anomaly in state.active_anomalies():
            found, rule = anomaly.found, RULES.get(anomaly.found.rule)
            if rule is None or rule.event is None:  # no event can end the anomaly; another version has found it
                continue
            active = _ActiveAnomaly(found.rule, found.where, found.env, set(anomaly.active_envs))
            if rule.event in _EVENTS_OF_ENVS:
                for env in active.envs:
                    self._active.setdefault((rule.event, env), {})[f"{found.rule} env {env}"] = active
            else:
                subject = found.where if rule.event is ev.DeviceSampled else None
                self._active.setdefault((rule.event, subject), {})[anomaly_key(found)] = active

    def check(self, event: ev.AnyEvent) -> list[AnomalyEvent]:
        """Process an event, and return the anomalies that begin or end with it."""
        kind = type(event)
        if kind in self._updates:
            self._updates[kind](self, event)
        checks = CHECKS.get(kind)
        if checks is None:
            return []
        context = self._context
        subject = kind, getattr(event, _SUBJECT_FIELDS[kind]) if kind in _SUBJECT_FIELDS else None
        known = self._active.get(subject, {})
        context.active = known.keys()
        broken = [found for check in checks for found in check(event, context)]
        if not broken and not known:
            return []
        now: dict[str, _ActiveAnomaly] = {}
        begun: list[AnomalyEvent] = []
        for found in broken:
            key = anomaly_key(found)
            if key in now:
                continue
            active = known.get(key)
            if active is None:
                active, start = self._begin(found, kind)
                begun.append(start)
            now[key] = active
        self._active[subject] = now
        # Sorted, because a resumed run does not know the order in which the anomalies were found.
        return [*begun, *(self._end(known[key], event) for key in sorted(known.keys() - now.keys()))]

    def _begin(self, found: ev.AnomalyFound, event: type[ev.Event]) -> tuple[_ActiveAnomaly, AnomalyEvent]:
        """Return the anomaly that begins with an event of this type, and the event that reports it."""
        if event is not ev.EnvStepped or found.env is None:
            return _ActiveAnomaly(found.rule, found.where, found.env, set()), found
        for other in (active for (of, _), known in self._active.items() if of is event for active in known.values()):
            if other.rule == found.rule and other.envs:
                other.envs.add(found.env)
                joined = ev.AnomalyJoined(
                    rule=found.rule, where=other.where, env=found.env, value=found.value,
                    threshold=found.threshold, text=found.text,
                )  # fmt: skip
                return other, joined
        return _ActiveAnomaly(found.rule, found.where, found.env, {found.env}), found

    def _end(self, active: _ActiveAnomaly, event: ev.AnyEvent) -> AnomalyEvent:
        """Return the event that reports the end of an anomaly, perhaps only in the env of the event."""
        if isinstance(event, ev.EnvStepped):
            active.envs.discard(event.env)
            if active.envs:
                return ev.AnomalyLeft(rule=active.rule, where=active.where, env=event.env)
        return ev.AnomalyEnded(rule=active.rule, where=active.where, env=active.env)

    def _update_round(self, _: ev.RoundStarted) -> None:
        # The hosts are new. RunState ends the anomalies of the previous ones by itself.
        for subject in [subject for subject in self._active if subject[0] in _EVENTS_OF_ENVS]:
            del self._active[subject]

    def _update_run(self, event: ev.RunStarted) -> None:
        self._context.health.fold_start(event)
        # RunState ends the anomalies of lanes that a resumed run no longer has by itself, too.
        for of, where in [*self._active]:
            if of is ev.DeviceSampled and where not in event.lanes:
                del self._active[of, where]

    _updates: ClassVar[dict[type[ev.Event], Callable[[AnomalyDetector, Any], None]]] = {
        ev.EnvStepped: lambda self, event: self._context.fold_step(event),
        ev.DeviceSampled: lambda self, event: self._context.fold_sample(event),
        ev.EpisodeStarted: lambda self, event: self._context.health.fold_context(event),
        ev.EpisodeEnded: lambda self, event: self._context.health.fold_end(event),
        ev.RoundStarted: _update_round,
        ev.RunStarted: _update_run,
    }
    """Functions that update the context with an event, keyed by its type."""
