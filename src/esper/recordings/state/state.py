"""RunState: the state of a run, folded from its events.

The live dashboard, the replay, the printed lines and the tests all read it. `apply` depends only on the state and the
event: it uses no clock, no randomness and no files. The size of the state does not grow with the length of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from statistics import fmean
from typing import Any, ClassVar, TypeAlias, final

import msgspec

from esper.common.domain import Stage, StepNumber
from esper.common.score_scale import PERCENT, ScoreScale
from esper.recordings import events as ev
from esper.recordings.events.codec import encode_json, make_decoder
from esper.recordings.events.sentences import UNLOGGED_EVENTS
from esper.recordings.state.anomalies import Anomaly, anomaly_key
from esper.recordings.state.curves import memory_values, update_values
from esper.recordings.state.habits import RoundDecisions, describe_habits, start_round
from esper.recordings.state.health_stats import RunHealth
from esper.recordings.state.log_lines import LogLine, make_log_line
from esper.recordings.state.search_state import SearchState
from esper.recordings.state.series import (
    BlueprintStats,
    DownsampledSeries,
    FiveNumbers,
    StepTrace,
    append_bounded,
    five_numbers,
)

SERIES_POINTS = 240
"""Maximum number of values in each series."""
OP_HISTORY_ROUNDS = 24
"""Number of last rounds for which op counts are kept."""
MAX_LOG_LINES = 500
"""Number of the last log lines in a state. `History.log` holds all lines of a recording."""
MAX_ANOMALIES = 200
"""Maximum number of anomalies in a state. Ended ones are removed first."""
STATE_FORMAT = 2
"""Format of the state in a Keyframe. It changes when a field is removed or gets another meaning."""


class EnvState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of one env. `revision` is the sequence number of the last event that changed it."""

    env: int
    lane: str
    revision: int = 0
    stepped: ev.EnvStepped | None = None
    """Last step of this episode; None before the first."""
    previous: ev.EnvStepped | None = None
    """Last step of the previous episode, until this episode has a step."""
    episode_return: float = 0.0
    scores: list[float] = []
    """Validation score of each step of this episode."""
    rewards: list[float] = []
    returns: list[float] = []
    """Return of each of the last finished episodes."""
    best_score: float | None = None
    """Maximum validation score over all steps, and over all ends of episodes: a rollback changes the network."""
    best_after: int = 0
    """Number of completed steps of the run after which it was measured first."""
    moves: list[ev.SeedMoved] = []
    """Stage transitions of this episode."""
    refusals: dict[str, ev.GateRefused] = {}
    """Gate that refuses the seed of a slot, keyed by slot."""
    trace: list[StepTrace] = []
    """Traces of the steps of this episode."""
    context: ev.EpisodeStarted | None = None
    """Context of this episode; None if the task is not a family."""
    rolled_back: ev.GovernorRolledBack | None = None
    """Rollback that made the env inactive in this round; None while it is active."""
    explained: ev.DecisionExplained | None = None
    """Last explanation of a decision of this episode; None without one."""
    decided: list[str] = []
    """Decisions of this episode, each once, as in `RoundDecisions.first_steps`."""

    @property
    def latest(self) -> ev.EnvStepped | None:
        """Last step of this episode, or of the previous one until this one has a step."""
        return self.stepped or self.previous

    @property
    def latest_return(self) -> float | None:
        """Return of the episode of `latest` up to this step; None before the first step of the run."""
        if self.stepped is not None:
            return self.episode_return
        return self.returns[-1] if self.previous is not None and self.returns else None


class RunState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of a run after event `seq`: everything that the dashboard shows."""

    seq: int = 0
    time: float = 0.0
    started: ev.RunStarted | None = None
    start_time: float = 0.0
    elapsed: float = 0.0
    """Seconds up to this event, pauses included. Times between the parts of a run, and sleeps of the machine, do not
    count; neither do changes of its clock."""
    status: str = "starting"
    """starting, running, paused, done, stopped or failed."""
    reason: str | None = None
    """Reason for which the run failed, stopped or is held; None if there is none."""
    cause: str | None = None
    """Problem that holds the run, as in `Paused.cause`; None if it is not held."""
    round: int = 0
    """Round in progress, from 1; 0 before the first."""
    step: int = 0
    """Last step of the round that every env has completed."""
    envs: list[EnvState] = []
    update: ev.PolicyUpdated | None = None
    """Last update of the policy; None before the first."""
    curves: dict[str, DownsampledSeries] = {}
    """Curves over the whole run, keyed by name: of the policy, by round, and of each memory, by sample of the first of
    its lanes. `recordings/state/curves.py` defines them."""
    ops: list[dict[str, int]] = []
    """Number of choices of each op, for each of the last rounds."""
    decisions: list[RoundDecisions] = []
    """Counts of the decisions in the first rounds and in the last ones."""
    blueprints: dict[str, BlueprintStats] = {}
    """Statistics of each blueprint, over all envs and rounds."""
    scores_by_round: list[FiveNumbers] = []
    """Final scores of the episodes of each of the last rounds."""
    finals: list[float] = []
    """Final scores of the finished episodes of the current round."""
    final_ratios: list[float] = []
    """`parameter_ratio` at the end of these episodes."""
    last_return: float | None = None
    """Undiscounted return of the last finished round, mean over the envs; None before the first."""
    last_parameter_ratio: float | None = None
    """`parameter_ratio` at the end of the last finished round, mean over the envs; None before the first."""
    overdue: dict[int, ev.CallOverdue] = {}
    """Calls of the user's code that have not returned for long, keyed by env index."""
    devices: dict[str, ev.DeviceSampled] = {}
    walls: list[float] = []
    """Duration of each of the last steps, seconds."""
    worked: list[int] = []
    """Number of env steps in each of these steps."""
    working: int = 0
    """Number of env steps since the last PhaseTimed."""
    phases: dict[str, float] = {}
    """Seconds spent in each phase since the start of the run."""
    anomalies: dict[str, Anomaly] = {}
    num_anomalies: int = 0
    """Number of occurrences of anomalies since the start of the run."""
    health: RunHealth = msgspec.field(default_factory=RunHealth)
    timing: ev.PhaseTimed | None = None
    """Timing of the last step; None before the first."""
    checkpoints: list[ev.CheckpointSaved] = []
    search: SearchState | None = None
    """Candidates of a growth; None for another run."""
    log: list[LogLine] = []

    def apply(self, event: ev.AnyEvent) -> None:
        """Update the state with an event. Events must come in the order of their sequence numbers."""
        passed = event.time - self.time if self.seq else 0.0
        if type(event) is ev.ClockChanged:
            passed -= event.seconds
        if passed > 0:
            self.elapsed += passed
        self.seq = event.seq
        self.time = event.time
        kind = type(event)
        self._folds[kind](self, event)
        if kind in UNLOGGED_EVENTS:
            return
        moment = StepNumber(self.round, self.step + (self.working > 0))
        if (line := make_log_line(event, self.steps_done, moment, self.score_scale)) is not None:
            append_bounded(self.log, line, MAX_LOG_LINES)

    @property
    def score_name(self) -> str:
        """Name of the task's score."""
        return self.started.score_name if self.started else "accuracy"

    @property
    def score_scale(self) -> ScoreScale:
        """Scale of the task's score."""
        return self.started.score_scale if self.started else PERCENT

    @property
    def players(self) -> Collection[int]:
        """Indices of the envs that play an episode in this round; in a growth, an env without a training is idle."""
        return range(len(self.envs)) if self.search is None else self.search.training.keys()

    @property
    def has_round_ended(self) -> bool:
        """True once all episodes of this round have ended."""
        return bool(self.finals) and len(self.finals) == len(self.players)

    @property
    def rounds_ended(self) -> int:
        """Number of rounds in which all episodes have ended."""
        return max(self.round - (not self.has_round_ended), 0)

    def score_by_round(self) -> dict[int, FiveNumbers]:
        """Return the scores at the end of each round that has ended and is kept, keyed by round."""
        first = max(self.rounds_ended - len(self.scores_by_round), 0) + 1
        return dict(enumerate(self.scores_by_round, start=first))

    @property
    def steps_done(self) -> int:
        """Number of steps completed since the start of the run."""
        return StepNumber(self.round, self.step).steps_done(self.started.steps if self.started else 0)

    @property
    def steps_total(self) -> int:
        """Number of steps of the whole run; 0 before it has started. For a growth, an upper limit."""
        return self.started.rounds * self.started.steps if self.started else 0

    @property
    def steps_per_second(self) -> float | None:
        """Env steps per second over the last 50 steps; None before the first."""
        recent, seconds = self.worked[-50:], sum(self.walls[-50:])
        return sum(recent) / seconds if seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end of the run, if all envs stay active; None before the first step.

        Of a growth, until the end of all trainings, those that are only compared included.
        """
        if self.search is not None:
            used = self.fraction_done
            return self.seconds_trained * (1 - used) / used if 0 < used < 1 else None
        rate = self.steps_per_second
        return (self.steps_total - self.steps_done) * len(self.envs) / rate if rate else None

    @property
    def seconds_trained(self) -> float:
        """Seconds of all steps, without pauses."""
        return sum(self.phases.values())

    @property
    def fraction_done(self) -> float:
        """Completed fraction of the run, 0 to 1; of a growth, that of its trainings or of its time."""
        if self.search is not None:  # some trainings may not have been necessary
            return 1.0 if self.status == "done" else self.search.fraction_done(self.seconds_trained)
        return self.steps_done / self.steps_total if self.steps_total else 0.0

    def idle_reason(self, env: EnvState) -> str | None:
        """Return why an env of a growth no longer trains in this round; None if it trains, and for another run.

        The reason is `pruned`, `failed`, `broke down`, `ended` (before the other envs), or `idle` (it has no trial).
        """
        if self.search is None or not self.round:
            return None
        training = self.search.training.get(env.env)
        if training is None:
            return "idle" if self.search.training else None
        if training.outcome == "done":
            return "ended" if env.stepped is not None and env.stepped.step < self.step else None
        return training.outcome

    @property
    def habits(self) -> list[str]:
        """Sentences on what the policy does, see `describe_habits`; none before the end of the first round.

        A growth has none: its plans come from a search, and the tables of candidates show them.
        """
        if self.started is None or self.search is not None:
            return []
        return describe_habits(self.decisions, self.rounds_ended, len(self.started.slot_names))

    @property
    def best_env(self) -> EnvState | None:
        """The env that was the first to reach the best score of the run; None before the first measurement."""
        measured = [env for env in self.envs if env.best_score is not None]
        scale = self.score_scale
        return max(measured, key=lambda env: (scale.gain(env.best_score or 0.0), -env.best_after), default=None)

    def active_anomalies(self) -> list[Anomaly]:
        """Return the anomalies that have not ended: errors first, then by start, newest first."""
        active = [anomaly for anomaly in self.anomalies.values() if anomaly.ended is None]
        return sorted(active, key=lambda a: (a.found.severity != "error", -a.found.seq))

    def _run_started(self, event: ev.RunStarted) -> None:
        if self.started is None:
            self.start_time = event.time
            self.envs = [EnvState(env=i, lane=lane) for i, lane in enumerate(event.lanes)]
        if event.search is not None:
            self.search = self.search or SearchState(info=event.search, scale=event.score_scale)
            self.search.resume(event.search)
        self.started = event
        self.status = "running"
        self.health.fold_start(event)
        self._drop_lanes(self.devices.keys() - set(event.lanes), event.time)
        for env, lane in zip(self.envs, event.lanes, strict=True):
            env.lane, env.revision = lane, event.seq

    def _drop_lanes(self, lanes: set[str], time: float) -> None:
        """Remove lanes that a run resumed on other devices no longer has, and end their anomalies."""
        for lane in lanes:
            for curve, _ in memory_values(self.devices.pop(lane)):
                self.curves.pop(curve, None)
        for anomaly in self.anomalies.values():
            if anomaly.found.where in lanes and anomaly.ended is None:
                anomaly.ended = time

    def _round_started(self, event: ev.RoundStarted) -> None:
        self.round, self.step = event.round, 0
        self.finals, self.final_ratios = [], []
        if self.search is not None:
            self.search.start_round(event.seq)
        append_bounded(self.ops, {}, OP_HISTORY_ROUNDS)
        start_round(self.decisions, event.round)
        for anomaly in self.anomalies.values():
            if anomaly.found.env is not None and anomaly.ended is None:  # it was about the previous host
                anomaly.ended = event.time
        for env in self.envs:
            env.revision = event.seq
            env.episode_return = 0.0
            env.previous = env.latest
            env.stepped = env.rolled_back = env.explained = None
            env.decided = []
            env.scores, env.rewards, env.moves, env.refusals, env.trace = [], [], [], {}, []

    def _episode_started(self, event: ev.EpisodeStarted) -> None:
        env = self.envs[event.env]
        env.revision, env.context = event.seq, event
        self.health.fold_context(event)

    def _env_stepped(self, event: ev.EnvStepped) -> None:
        env = self.envs[event.env]
        env.revision = event.seq
        env.stepped, env.previous = event, None
        self.working += 1
        self.health.fold_step(event)
        env.episode_return += event.reward
        env.scores.append(event.score)
        env.rewards.append(event.reward)
        env.trace.append(StepTrace.from_event(event))
        if len(env.scores) > SERIES_POINTS:
            for ring in (env.scores, env.rewards, env.trace):
                del ring[:-SERIES_POINTS]
        if not self.ops:  # the keyframe was written by a version without op counts
            self.ops.append({})
        counts = self.ops[-1]
        counts[event.op] = counts.get(event.op, 0) + 1
        if self.decisions:
            self.decisions[-1].note(event, env.decided)
        self._note_score(env, event.score, event.step)

    def _note_score(self, env: EnvState, score: float, step: int) -> None:
        """Update the best score of an env with one that was measured after a step of the current round."""
        if math.isfinite(score) and (env.best_score is None or self.score_scale.is_better(score, env.best_score)):
            env.best_score = score
            env.best_after = StepNumber(self.round, step).steps_done(self.started.steps if self.started else 0)

    def _seed_moved(self, event: ev.SeedMoved) -> None:
        env = self.envs[event.env]
        env.revision = event.seq
        env.refusals.pop(event.slot, None)
        append_bounded(env.moves, event, SERIES_POINTS)
        slots = self.started.slot_names if self.started else []
        if event.blueprint is not None and event.slot in slots:  # a damaged line may name an unknown slot
            self._note_blueprint(env, event.after, event.blueprint, slots.index(event.slot))

    def _note_blueprint(self, env: EnvState, after: str, blueprint: str, slot: int) -> None:
        stats = self.blueprints.setdefault(blueprint, BlueprintStats())
        match after:
            case Stage.GERMINATED.label:
                stats.planted += 1
                reading = env.stepped.slot(slot) if env.stepped else None
                if reading is not None and reading.blueprint == blueprint:
                    stats.sized, stats.parameters = stats.sized + 1, stats.parameters + reading.parameters
            case Stage.FOSSILIZED.label:
                stats.fossilized += 1
            case Stage.CULLED.label:
                stats.culled += 1
            case _:
                pass

    def _gate_changed(self, event: ev.GateRefused | ev.GateOpened) -> None:
        env = self.envs[event.env]
        env.revision = event.seq
        env.refusals.pop(event.slot, None)
        if isinstance(event, ev.GateRefused):
            env.refusals[event.slot] = event

    def _policy_updated(self, event: ev.PolicyUpdated) -> None:
        self.update = event
        self.health.fold_update(event)
        self._add_points(update_values(event))

    def _device_sampled(self, event: ev.DeviceSampled) -> None:
        self.devices[event.device] = event
        self.health.fold_sample(event)
        if self.health.is_memory_reporter(event.device):
            self._add_points(memory_values(event))

    def _add_points(self, values: Iterable[tuple[str, float | None]]) -> None:
        for curve, value in values:
            if curve not in self.curves:
                self.curves[curve] = DownsampledSeries()
            self.curves[curve].append(value)

    def _phase_timed(self, event: ev.PhaseTimed) -> None:
        self.round, self.step, self.timing = event.round, event.step, event
        append_bounded(self.walls, event.wall, SERIES_POINTS)
        append_bounded(self.worked, self.working, SERIES_POINTS)
        self.working = 0
        for name, seconds in event.phases.items():
            self.phases[name] = self.phases.get(name, 0.0) + seconds

    def _anomaly_found(self, event: ev.AnomalyFound) -> None:
        self.num_anomalies += 1
        key = anomaly_key(event)
        known = self.anomalies.pop(key, None)
        if known is None:
            known = Anomaly(
                found=event,
                first_round=self.round,
                first_step=self.step,
                last_round=self.round,
            )
        else:
            known.found, known.last_round, known.count, known.ended = event, self.round, known.count + 1, None
            known.joined, known.left = {}, []
        self.anomalies[key] = known  # move to the end, so that the oldest anomaly is the first
        if len(self.anomalies) > MAX_ANOMALIES:
            ended = (known for known, anomaly in self.anomalies.items() if anomaly.ended is not None)
            del self.anomalies[next(ended, next(iter(self.anomalies)))]

    def _anomaly_joined(self, event: ev.AnomalyJoined) -> None:
        known = self.anomalies.get(anomaly_key(event))
        if known is not None:
            known.joined[event.env] = event
            known.left = [env for env in known.left if env != event.env]

    def _anomaly_left(self, event: ev.AnomalyLeft) -> None:
        known = self.anomalies.get(anomaly_key(event))
        if known is not None:
            known.left.append(event.env)

    def _anomaly_ended(self, event: ev.AnomalyEnded) -> None:
        known = self.anomalies.get(anomaly_key(event))
        if known is not None:
            known.ended = event.time

    def _governor_rolled_back(self, event: ev.GovernorRolledBack) -> None:
        env = self.envs[event.env]
        env.revision, env.rolled_back = event.seq, event

    def _episode_ended(self, event: ev.EpisodeEnded) -> None:
        env = self.envs[event.env]
        env.revision = event.seq
        self.health.fold_end(event)
        append_bounded(env.returns, event.episode_return, SERIES_POINTS)
        if self.decisions:
            self.decisions[-1].episodes += 1
        self._note_score(env, event.score, self.step)  # measured again if the env was rolled back
        self.finals.append(event.score)
        self.final_ratios.append(event.parameter_ratio)
        if self.has_round_ended:
            append_bounded(self.scores_by_round, five_numbers(self.finals), SERIES_POINTS)
            self.last_return = fmean(env.returns[-1] for env in self.envs if env.env in self.players)
            self.last_parameter_ratio = fmean(self.final_ratios)

    def _checkpoint_saved(self, event: ev.CheckpointSaved) -> None:
        append_bounded(self.checkpoints, event, SERIES_POINTS)

    def _decision_explained(self, event: ev.DecisionExplained) -> None:
        env = self.envs[event.env]
        env.revision, env.explained = event.seq, event

    def _paused(self, event: ev.Paused) -> None:
        self.status, self.reason, self.cause = "paused", event.reason, event.cause

    def _resumed(self, _event: ev.Resumed) -> None:
        self.status, self.reason, self.cause = "running", None, None

    def _call_overdue(self, event: ev.CallOverdue) -> None:
        self.overdue[event.env] = event

    def _call_ended(self, event: ev.CallEnded) -> None:
        self.overdue.pop(event.env, None)

    def _clock_changed(self, event: ev.ClockChanged) -> None:
        for anomaly in self.anomalies.values():
            if anomaly.ended is not None:  # it is compared with the times of later events
                anomaly.ended += event.seconds

    def _log_only(self, event: ev.Logged | ev.ControlRequested) -> None:
        """Change nothing: `apply` logs the event, and a request has no effect until a later event confirms it."""

    def _search_changed(self, event: ev.SearchEvent) -> None:
        if self.search is not None:
            self.search.apply(event)
        if isinstance(event, ev.TrialStarted | ev.TrialEnded) and event.env < len(self.envs):  # else of another pool
            self.envs[event.env].revision = event.seq

    def _run_ended(self, event: ev.RunEnded) -> None:
        self.status, self.reason, self.cause, self.overdue = event.outcome, event.reason, None, {}

    _folds: ClassVar[dict[type[ev.Event], Callable[[RunState, Any], None]]] = {
        ev.RunStarted: _run_started,
        ev.RoundStarted: _round_started,
        ev.EpisodeStarted: _episode_started,
        ev.EnvStepped: _env_stepped,
        ev.SeedMoved: _seed_moved,
        ev.GateRefused: _gate_changed,
        ev.GateOpened: _gate_changed,
        ev.PolicyUpdated: _policy_updated,
        ev.DeviceSampled: _device_sampled,
        ev.PhaseTimed: _phase_timed,
        ev.AnomalyFound: _anomaly_found,
        ev.AnomalyJoined: _anomaly_joined,
        ev.AnomalyLeft: _anomaly_left,
        ev.AnomalyEnded: _anomaly_ended,
        ev.GovernorRolledBack: _governor_rolled_back,
        ev.EpisodeEnded: _episode_ended,
        ev.CheckpointSaved: _checkpoint_saved,
        ev.ControlRequested: _log_only,
        ev.DecisionExplained: _decision_explained,
        ev.Paused: _paused,
        ev.Resumed: _resumed,
        ev.Logged: _log_only,
        ev.CallOverdue: _call_overdue,
        ev.CallEnded: _call_ended,
        ev.ClockChanged: _clock_changed,
        ev.TrialStarted: _search_changed,
        ev.TrialEnded: _search_changed,
        ev.CandidateMeasured: _search_changed,
        ev.NetworkTested: _search_changed,
        ev.SearchEnded: _search_changed,
        ev.RunEnded: _run_ended,
    }


@final
class Keyframe(ev.Event, frozen=True, kw_only=True, tag=True):
    """The whole RunState after event `seq`: the first line of a segment, and the state that a checkpoint restores."""

    restored: float = 0.0
    """Time at which the run was restored to or resumed from this state, seconds since the epoch; 0 if it was not."""
    format: int = 1
    """Format of the state, see `STATE_FORMAT`."""
    state: msgspec.Raw
    """JSON of the RunState. Decoding is slow, so call `decode_state` only if needed."""

    @classmethod
    def from_state(cls, state: RunState, start: float | None = None) -> Keyframe:
        """Make a keyframe of a state. `start` is the time of the first event, for the state before it."""
        time = state.time if state.seq or start is None else start
        return cls(seq=state.seq, time=time, format=STATE_FORMAT, state=msgspec.Raw(encode_json(state)))

    @property
    def is_current(self) -> bool:
        """True if this version reads the format of the state. An empty state is the same in all formats."""
        return self.format == STATE_FORMAT or not self.seq

    def decode_state(self) -> RunState:
        """Return a new RunState. If the run was restored to it, its time is that of the restore.

        Raises:
            msgspec.ValidationError: The state is damaged, or another version wrote it in another format.
        """
        if not self.is_current:
            raise msgspec.ValidationError(
                f"another version wrote the state in format {self.format}; this one reads format {STATE_FORMAT}"
            )
        state = _STATE.decode(self.state)
        state.time = self.restored or state.time
        return state


_STATE: msgspec.json.Decoder[RunState] = make_decoder(RunState)

Record: TypeAlias = ev.AnyEvent | Keyframe
"""A line of a recording, and an item of a hub's subscriber queue."""


def fold(state: RunState, records: Iterable[Record]) -> RunState:
    """Return the state after some records. The given state is modified; the caller must not use it any more."""
    for record in records:
        if type(record) is Keyframe:
            state = record.decode_state()
        else:
            state.apply(record)
    return state
