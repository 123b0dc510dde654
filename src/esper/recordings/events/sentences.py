"""Sentences that describe events, for logs and the log panel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from esper.common.domain import Stage
from esper.common.formatting import format_duration, pluralise
from esper.common.score_scale import PERCENT, ScoreScale
from esper.common.user_code.code_places import describe_place
from esper.recordings import events as ev
from esper.recordings.candidates.candidates import describe_candidate

_STAGE_VERBS = {"germinated": "planted", "blending": "blending", "fossilized": "fossilized", "culled": "culled"}
"""Verb for a seed that reaches a stage. Transitions to other stages are not logged."""
UNLOGGED_EVENTS = frozenset(
    {
        ev.RoundStarted,
        ev.EpisodeStarted,
        ev.EnvStepped,
        ev.GateRefused,
        ev.GateOpened,
        ev.DeviceSampled,
        ev.PhaseTimed,
        ev.AnomalyLeft,
        ev.EpisodeEnded,
        ev.DecisionExplained,
        ev.TrialStarted,
        ev.CandidateMeasured,
    }
)
"""Event types without a sentence. Nearly all events are of these types, so one set lookup skips them."""
_GATES = {"G1": 1, "G2": 2, "G3": 3, "G5": 5}
"""Numbers of the gates, keyed by the reason of a transition that a gate triggered."""
_MAX_LISTED_LANES = 8
"""Maximum number of lanes that `format_lanes` names one by one."""
_ASCII = {"×": "x", "–": "-", "−": "-", "·": "-", "…": "...", "→": "->", "“": '"', "”": '"', "’": "'"}


def format_lanes(lanes: Sequence[str]) -> str:
    """Return the number of envs by lane, for example `16 envs on cpu:0 ×8, cpu:1 ×8`.

    Args:
        lanes: Lane name of each env.
    """
    counts = Counter(lanes)
    if len(counts) <= _MAX_LISTED_LANES:
        return f"{pluralise(len(lanes), 'env')} on {', '.join(f'{name} ×{count}' for name, count in counts.items())}"
    names, minimum, maximum = list(counts), min(counts.values()), max(counts.values())
    per_lane = f"×{minimum}" if minimum == maximum else f"×{minimum} to ×{maximum}"
    return f"{len(lanes)} envs on {len(names)} lanes, {names[0]} to {names[-1]}, {per_lane}"


def describe_context(context: ev.EpisodeStarted) -> str:
    """Return structure and settings of an episode, for example `deep_1x1, shift 2, noise 0.4`."""
    settings = (
        f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else str(value)
        for name, value in context.settings.items()
    )
    return ", ".join([context.structure, *settings])


def describe_event(event: ev.AnyEvent, scale: ScoreScale = PERCENT) -> tuple[str, str] | None:
    """Return severity (info, warning or error) and sentence of an event; None if it has no sentence.

    A rollback has none, because the anomaly `governor rollback` describes it.
    """
    if type(event) in UNLOGGED_EVENTS:
        return None
    match event:
        case ev.ControlRequested(kind="explain", ignored=None):  # one in each step while an explanation is shown
            return None
        case ev.RunStarted():
            return "info", f"run {event.run}: {event.policy} on {event.task}, {format_lanes(event.lanes)}"
        case ev.SeedMoved() if event.after in _STAGE_VERBS:
            return "info", f"env {event.env:02d} {event.slot} {event.blueprint} {_STAGE_VERBS[event.after]}"
        case ev.PolicyUpdated():
            results = f"mean return {event.episode_return:+.3f}, KL {event.kl:.4f}"
            return "info", f"round {event.round} policy update: {results}"
        case ev.AnomalyFound():
            return event.severity, event.text
        case ev.AnomalyJoined():
            return "info", event.text
        case ev.AnomalyEnded():
            return "info", f"{anomaly_subject(event)}: {event.rule} ended"
        case ev.CheckpointSaved():
            return (
                "info",
                f"checkpoint at round {event.round} step {event.step} ({event.origin}), {event.bytes / 2**20:.1f} MiB",
            )
        case ev.ControlRequested():
            subject = f" from {event.path}" if event.path else "" if event.env is None else f" env {event.env:02d}"
            ignored = f", ignored: {event.ignored}" if event.ignored else ""
            return "info", f"{event.kind}{subject} requested ({event.origin}){ignored}"
        case ev.Paused():
            reason = f": {event.reason}" if event.reason else ""
            text = f"paused at round {event.round} step {event.step} ({event.origin}){reason}"
            return ("error" if event.reason else "info"), text
        case ev.Resumed():
            source = f" from {event.checkpoint}" if event.checkpoint else ""
            return "info", f"resumed at round {event.round} step {event.step}{source} ({event.origin})"
        case ev.Logged():
            return event.severity, event.text
        case ev.CallOverdue() | ev.CallEnded():
            return _describe_call(event)
        case ev.ClockChanged():
            return "warning", _describe_clock(event.seconds)
        case ev.TrialEnded() | ev.NetworkTested() | ev.SearchEnded():
            return _describe_search(event, scale)
        case ev.RunEnded():
            reason = f": {event.reason}" if event.reason else ""
            return ("error" if event.outcome == "failed" else "info"), f"run {event.outcome}{reason}"
        case _:
            return None


def _describe_search(event: ev.TrialEnded | ev.NetworkTested | ev.SearchEnded, scale: ScoreScale) -> tuple[str, str]:
    match event:
        case ev.TrialEnded(score=float(score)) if event.outcome in ("done", "pruned"):
            where = f"fresh host {event.fresh}, " if event.fresh else "pruned, " if event.outcome == "pruned" else ""
            return "info", f"{describe_candidate(event.candidate)}: {where}score {scale.text(score)}"
        case ev.TrialEnded():
            reason = f": {event.reason}" if event.reason else ""
            return "warning", f"{describe_candidate(event.candidate)} {event.outcome}{reason}"
        case ev.NetworkTested():
            return "info", f"{describe_candidate(event.candidate)}: {scale.text(event.test_score)} on the test split"
        case ev.SearchEnded():
            return "info", event.answer


def _describe_clock(change_s: float) -> str:
    duration = format_duration(abs(change_s))
    how = f"back by {duration}" if change_s < 0 else f"forward by {duration}, or the machine slept"
    return f"the clock of this machine was set {how}"


def _describe_call(call: ev.CallOverdue | ev.CallEnded) -> tuple[str, str]:
    if isinstance(call, ev.CallEnded):
        return "info", f"the call of env {call.env:02d} has ended, after {call.seconds:.0f} s"
    where = f"env {call.env:02d} on {call.lane} has been in {call.function} for {call.seconds:.0f} s"
    end = f"a stop ends the run once the call has taken {call.max_seconds:.0f} s"
    return "warning", f"{where} ({call.file}, line {call.line}); {end}"


def name_call(call: ev.CallOverdue) -> str:
    """Return env and place of a call that has not returned, for example `env 03 in forward (mine.py, line 28)`."""
    return f"env {call.env:02d} {describe_place((call.file, call.line, call.function))}"


def describe_group(event: ev.AnyEvent) -> str:
    """Return the text that follows the number of events such as this one: "seeds planted" in "37 seeds planted".

    It is empty for events that are never counted together.
    """
    match event:
        case ev.SeedMoved() if event.after in _STAGE_VERBS:
            return f"seeds {_STAGE_VERBS[event.after]}"
        case ev.AnomalyFound() | ev.AnomalyJoined() | ev.AnomalyEnded():
            ended = " ended" if isinstance(event, ev.AnomalyEnded) else ""
            return f"{'anomalies' if event.env is None else 'envs'}: {event.rule}{ended}"
        case _:
            return ""


def describe_transition(move: ev.SeedMoved) -> str:
    """Return a phrase for a transition: `early germinated → training (passed gate 1)`."""
    if move.after == Stage.DORMANT.label:
        return f"{move.slot} free again (embargo ended)"
    if move.after == Stage.GERMINATED.label:
        return f"{move.slot} germinated ({move.blueprint} planted)"
    if move.after == Stage.EMBARGOED.label:
        cause = "slot stays empty for a while"
    elif move.reason in _GATES:
        cause = f"passed gate {_GATES[move.reason]}"
    else:
        cause = move.reason.replace("_", " ")
    return f"{move.slot} {move.before} → {move.after} ({cause})"


def anomaly_subject(anomaly: ev.AnomalyFound | ev.AnomalyEnded) -> str:
    """Return the subject of an anomaly, with envs in the format of the log: `env 07`."""
    return anomaly.where if anomaly.env is None else f"env {anomaly.env:02d}"


def to_ascii(text: str) -> str:
    """Return the text in ASCII, for any terminal, log and screen reader. Other characters are escaped."""
    return "".join(c if " " <= c <= "~" else _ASCII.get(c) or c.encode("unicode_escape").decode("ascii") for c in text)
