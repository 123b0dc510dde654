"""ViewState: what all panels share (source, palette, selected env), and statistics of the dashboard's frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from weakref import WeakKeyDictionary

from textual.message import Message

from esper.common.formatting import APPROXIMATE, format_duration, pluralise
from esper.recordings.candidates.report import Standing
from esper.recordings.events import AnomalyFound, RunStarted
from esper.recordings.health.incidents import Incident, group_incidents
from esper.recordings.health.thresholds import Thresholds
from esper.recordings.history.curve_store import CurveStore
from esper.recordings.history.run_status import RunStatus
from esper.recordings.history.timeline import DEFAULT_MARK_GROUP, MarkFilter
from esper.recordings.state.anomalies import Anomaly
from esper.recordings.state.search_state import SearchState
from esper.recordings.state.state import RunState
from esper.sanctum.chart_view import ChartView
from esper.sanctum.env_filter import EnvFilter
from esper.sanctum.keys import ACTIONS_WITHOUT_RUN, APP_CATEGORIES, KEYS, SCREEN_INFO, Availability, KeyBinding
from esper.sanctum.source import NoRunSource, RunSource, run_has_ended
from esper.sanctum.symbols import compact_cell, key_name, score_text
from esper.sanctum.theme import Palette
from esper.sanctum.what_if import WhatIf

TOAST_SECONDS = 8.0
"""Seconds for which a notice with a path or a command stays on the screen."""
UPDATE_INTERVAL_S = 1.0
"""Seconds for which one text of `FrameStats` stays on the screen, so that it can be read."""


MAX_FRAME_S = 2.0
"""Maximum seconds between two frames that count: the process was suspended for the rest. A playback does not skip them,
and the engine was not silent."""


class FrameStats:
    """Dashboard statistics: age of the data, events per second, CPU time per frame."""

    def __init__(self) -> None:
        self.text = ""
        """Age of the data, events per second and CPU milliseconds per frame; empty in the first interval."""
        self.age = 0.0
        """Seconds since the last new event."""
        self._seq = 0
        self._last_frame: float | None = None
        self._interval_start: tuple[float, int, float] | None = None
        """Time, event number and CPU time at the start of the interval."""
        self._frames = 0

    def record_frame(self, now: float, seq: int, cpu: float, *, shows_age: bool) -> None:
        """Count a frame, and update the text when the interval has ended.

        Args:
            now: Monotonic time, seconds.
            seq: Number of the last event.
            cpu: CPU time of the dashboard's thread, seconds.
            shows_age: True if new events are expected, so that the age of the last one means something.
        """
        passed = now - self._last_frame if self._last_frame is not None else 0.0
        self._last_frame = now
        self.age = self.age + min(passed, MAX_FRAME_S) if seq == self._seq else 0.0
        self._seq = seq
        self._frames += 1
        if self._interval_start is None:
            self._interval_start, self._frames = (now, seq, cpu), 0
        elif now - self._interval_start[0] >= UPDATE_INTERVAL_S:
            start, first, spent = self._interval_start
            rate, cost = (seq - first) / (now - start), (cpu - spent) / self._frames * 1000
            age = format_duration(self.age) if self.age >= 1 else f"{self.age:.1f}s"
            self.text = f"data {age} old  " if shows_age else ""
            self.text += f"{compact_cell(max(rate, 0.0)).text} events/s  {compact_cell(cost, 2).text} ms/frame"
            self._interval_start, self._frames = (now, seq, cpu), 0


@dataclass
class ViewState:
    """State that the app and all panels share."""

    source: RunSource
    palette: Palette
    selected_env: int = 0
    env_order: Sequence[int] = ()
    """Envs in the order of the list that was drawn last, from which an env is opened; empty before the first."""
    env_filter: EnvFilter | None = None
    """Filter of the env table and the env heat map; None to show all envs."""
    charset: str = "braille"
    """Characters that the terminal can draw: `braille`, `block` or `ascii`."""
    keys: Sequence[KeyBinding] = KEYS
    """Table of all keys, with the keys of the user."""
    can_leave: bool = False
    """True if the workspace was opened, to which a key returns."""
    chart_views: WeakKeyDictionary[object, ChartView] = field(default_factory=WeakKeyDictionary[object, ChartView])
    """Choices of the user for the charts of each screen. A chart on the whole screen has those of its own screen."""
    frame_stats: FrameStats = field(default_factory=FrameStats)
    mark_group: str = DEFAULT_MARK_GROUP
    """Group of marks on the timeline, a key of `MARK_GROUPS`."""
    muted_rules: set[str] = field(default_factory=set[str])
    """Rules whose anomalies this dashboard does not count, mark, visit or report."""
    seen_anomalies: set[int] = field(default_factory=set[int])
    """Event numbers of the anomalies that the user has marked as seen."""
    selected_candidate: str | None = None
    """Name of the selected candidate of a growth; None for the best one."""
    selected_decision: tuple[int, int, int] | None = None
    """Round, env and step of the decision that is selected in the env detail."""
    state_version: int = 0
    """Incremented when a seek or a restore replaces the run state, or a rule is muted: panels then draw all again."""
    _standings: tuple[SearchState, int, list[Standing]] | None = None
    """Candidates, with the state and the revision that they were computed for."""
    _thresholds: tuple[RunStarted | None, Thresholds] = (None, Thresholds())
    """Start of the run whose thresholds were read last, and these thresholds."""

    @property
    def status(self) -> RunStatus:
        """Status of the run at present; in a replay, at the playhead."""
        return self.source.status(self.frame_stats.age)

    def charts_on(self, screen: object) -> ChartView:
        """Return the choices of the user for the charts of a screen."""
        return self.chart_views.setdefault(screen, ChartView())

    @cached_property
    def what_if(self) -> WhatIf:
        """The known effects of decisions, and the process that computes more."""
        return WhatIf(self.source)

    @property
    def curves(self) -> CurveStore:
        """Curves of the run up to the shown moment. They are read while panels ask for them."""
        return self.source.curves

    @property
    def selected_step(self) -> int | None:
        """Step of the selected decision of the selected env in the shown round; None without one."""
        round_, env, step = self.selected_decision or (0, -1, 0)
        return step if (round_, env) == (self.source.state.round, self.selected_env) else None

    @cached_property
    def key_names(self) -> dict[str, str]:
        """Name of the first key of each action in words, for sentences: `Enter`, `Shift-Left`. Keyed by id."""
        return {key.id: key_name(key.label.partition(" ")[0], "ascii") for key in self.keys}

    @property
    def has_run(self) -> bool:
        """False in the workspace, where no run is shown."""
        return not isinstance(self.source, NoRunSource)

    def is_available(self, key: KeyBinding) -> bool:
        """Return True if a key has an effect in the shown run or recording, or in the workspace."""
        if not self.has_run and key.category in APP_CATEGORIES:
            return key.action in ACTIONS_WITHOUT_RUN
        if key.when is Availability.SEARCH:
            return self.source.state.search is not None
        if key.when is Availability.LIVE:
            return self.source.live or (key.action == "pause" and self.status.name == "crashed")
        return key.when is Availability.ALWAYS or self.source.playback is not None

    def has_screen(self, name: str) -> bool:
        """Return True if the run has a screen; before the run has started, it is not known, and every name is valid."""
        state = self.source.state
        return not SCREEN_INFO[name].is_search or state.search is not None or state.started is None

    @property
    def standings(self) -> list[Standing]:
        """Candidates of a growth, the best first; empty for another run."""
        search = self.source.state.search
        if search is None:
            return []
        known = self._standings
        if known is None or known[0] is not search or known[1] != search.revision:
            known = self._standings = search, search.revision, search.standings()
        return known[2]

    @property
    def selected_standing(self) -> Standing | None:
        """The selected candidate of a growth, by default the best one; None without candidates."""
        found = self.standings
        return next((one for one in found if one.name == self.selected_candidate), found[0] if found else None)

    @property
    def thresholds(self) -> Thresholds:
        """Thresholds of the anomaly rules, as the run was recorded with them."""
        started = self.source.state.started
        if started is not self._thresholds[0]:
            self._thresholds = started, Thresholds.from_recording(started)
        return self._thresholds[1]

    @property
    def growth_text(self) -> str:
        """Median score of the last round with a reference, with and without growth; without one, why none is computed.

        Empty while the first reference is computed.
        """
        state, scale = self.source.state, self.source.state.score_scale
        reference = self.what_if.last_reference(state.rounds_ended)
        if reference is None:
            return f"without growth: {obstacle}" if (obstacle := self.what_if.reference_obstacle) else ""
        text = f"{'' if reference.exact else APPROXIMATE}{score_text(reference.score, scale)} without growth"
        if (recorded := state.score_by_round().get(reference.round)) is not None:
            text = f"median {score_text(recorded.median, scale)}, {text}"
        return text if reference.round == state.rounds_ended else f"round {reference.round}: {text}"

    @property
    def ghost(self) -> RunState | None:
        """State of the ghost run at the same step; None if there is no ghost run."""
        return self.source.ghost_run.state if self.source.ghost_run else None

    @property
    def mark_filter(self) -> MarkFilter:
        """Condition for marks to be drawn and visited."""
        return MarkFilter(self.mark_group, frozenset(self.muted_rules))

    @property
    def moment_cols(self) -> int:
        """Number of columns for round and step of a log line, as in `8:12`."""
        started = self.source.live_state.started
        return len(f"{started.rounds}:{started.steps}") if started is not None else 0

    @property
    def muted_note(self) -> str:
        """Number of muted rules in words; empty if none is."""
        return f"{pluralise(len(self.muted_rules), 'rule')} muted" if self.muted_rules else ""

    def explanation_obstacle(self, *, is_web: bool) -> str | None:
        """Return why the engine cannot explain a decision of the shown moment; None if it can."""
        requests = self.source.requests
        if requests is None or self.source.playback is not None:
            return "this step was not explained; while this panel is open in a live run, the engine explains each step"
        if is_web:
            return "this page only shows the run: it cannot request an explanation"
        if run_has_ended(self.source):
            return "the run has ended: it cannot explain any more"
        if self.source.live_state.cause is not None:
            return "the run is held: it cannot explain now"
        return requests.disabled_reason or requests.explanation_refusal

    @property
    def status_anomaly(self) -> AnomalyFound | None:
        """Anomaly of a silent or crashed run, which no event reports, unless its rule is muted."""
        anomaly = self.status.anomaly
        return None if anomaly is None or anomaly.rule in self.muted_rules else anomaly

    def incidents(self) -> list[Incident]:
        """Return the incidents of rules that are not muted.

        Active ones come first: new before seen ones, else errors first, then by start, newest first. Ended ones follow,
        the latest first.
        """
        state = self.source.state
        ended = [anomaly for anomaly in reversed(state.anomalies.values()) if anomaly.ended is not None]
        anomalies = [*state.active_anomalies(), *ended]
        incidents = group_incidents([known for known in anomalies if known.found.rule not in self.muted_rules])
        return sorted(incidents, key=lambda incident: 1 + self.is_seen(incident) if incident.active else 3)

    @property
    def first_anomaly(self) -> Anomaly | None:
        """Worst active anomaly of the first incident; None if no incident is active."""
        return next((incident.active[0] for incident in self.incidents() if incident.active), None)

    def severity_by_env(self) -> dict[int, str]:
        """Return the severity of the worst active anomaly of each env that has one whose rule is not muted."""
        worst_last = reversed(self.source.state.active_anomalies())
        active = [anomaly for anomaly in worst_last if anomaly.found.rule not in self.muted_rules]
        return {env: anomaly.found.severity for anomaly in active for env in anomaly.active_envs}

    def is_seen(self, incident: Incident) -> bool:
        """Return True if the user has marked all active anomalies of an incident as seen; of an ended one, all."""
        return all(anomaly.found.seq in self.seen_anomalies for anomaly in incident.active or incident.anomalies)

    def toggle_seen(self, incident: Incident) -> None:
        """Mark all anomalies of an incident as seen, or as new."""
        seqs = {anomaly.found.seq for anomaly in incident.anomalies}
        if self.is_seen(incident):
            self.seen_anomalies -= seqs
        else:
            self.seen_anomalies |= seqs

    def toggle_muted(self, rule: str) -> None:
        """Mute a rule, or no longer."""
        self.muted_rules ^= {rule}
        self.state_version += 1  # panels that mark envs draw them again

    def select(self, env: int | None) -> None:
        """Select an env. Do nothing if it is None, or no env of the run, as in a damaged recording."""
        if env is not None and 0 <= env < len(self.source.state.envs):
            self.selected_env = env

    def move(self, envs: int) -> None:
        """Move the selection by this many envs in `env_order`, at most to its end; by number if it lacks the env."""
        order = self.env_order if self.selected_env in self.env_order else range(len(self.source.state.envs))
        if self.selected_env in order:
            self.selected_env = order[min(max(order.index(self.selected_env) + envs, 0), len(order) - 1)]


class ExplanationNeeded(Message):
    """Request to the app: have the engine explain the last decision for the selected env."""


@dataclass
class EffectNeeded(Message):
    """Request to the app: compute the effects of decisions."""

    round: int
    env: int
    steps: list[int] | None
    """Steps of the decisions; None for all decisions of the episode."""


@dataclass
class OpenRun(Message):
    """Request to the app: show another run."""

    path: Path
    """Run directory."""


@dataclass
class ResumeRun(Message):
    """Request to the app: resume a run that has ended before its last round, in a background process."""

    path: Path
    """Run directory."""


@dataclass
class GoToMoment(Message):
    """Request to the app: show the moment of an event, and its env or screen."""

    seq: int | None = None
    """Number of the event; None to stay at the current moment."""
    env: int | None = None
    screen: str | None = None
    """Name of the screen to open if the event is not about an env."""
    over: bool = True
    """True if the present no longer shows it."""
