"""One sentence per event, for logs and the log panel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from esper.telemetry import events as ev

_STAGE_VERBS = {"germinated": "planted", "blending": "blending", "fossilized": "fossilized", "culled": "culled"}
"""What is said of a seed that reaches a stage; timers bring it to the others."""
UNLOGGED_EVENTS = frozenset(
    {ev.RoundStarted, ev.EnvStepped, ev.GateRefused, ev.GateOpened, ev.DeviceSampled, ev.PhaseTimed, ev.EpisodeEnded}
)
"""Of these nothing is ever said. They are nearly all events, and so are told from the others by one look."""
_LANES_IN_FULL = 8
"""Up to so many lanes are named one by one."""
_ASCII = {"×": "x", "–": "-", "−": "-", "·": "-", "…": "...", "→": "->", "“": '"', "”": '"', "’": "'"}


def format_lanes(lanes: Sequence[str]) -> str:
    """How many envs each lane has, as in `16 envs on cpu:0 ×8, cpu:1 ×8`.

    Args:
        lanes: for each env, the name of its lane.
    """
    counts = Counter(lanes)
    if len(counts) <= _LANES_IN_FULL:
        return f"{len(lanes)} envs on {', '.join(f'{name} ×{count}' for name, count in counts.items())}"
    names, least, most = list(counts), min(counts.values()), max(counts.values())
    each = f"×{least}" if least == most else f"×{least} to ×{most}"
    return f"{len(lanes)} envs on {len(names)} lanes, {names[0]} to {names[-1]}, {each}"


def describe_event(event: ev.AnyEvent) -> tuple[str, str] | None:
    """Severity (info, warning or error) and text of an event; None for the routine ones.

    A rollback is told by the anomaly that it is.
    """
    if type(event) in UNLOGGED_EVENTS:
        return None
    match event:
        case ev.RunStarted():
            return "info", f"run {event.run}: {event.policy} on {event.task}, {format_lanes(event.lanes)}"
        case ev.SeedMoved() if event.after in _STAGE_VERBS:
            return "info", f"env {event.env:02d} {event.slot} {event.blueprint} {_STAGE_VERBS[event.after]}"
        case ev.PolicyUpdated():
            return "info", f"round {event.round} learned: return {event.episode_return:+.3f}, KL {event.kl:.4f}"
        case ev.AnomalyFound():
            return event.severity, event.text
        case ev.AnomalyEnded():
            return "info", f"{anomaly_subject(event)}: {event.rule} is over"
        case ev.CheckpointSaved():
            return (
                "info",
                f"checkpoint at round {event.round} step {event.step} ({event.origin}), {event.bytes / 2**20:.1f} MiB",
            )
        case ev.ControlRequested():
            checkpoint = f" from {event.path}" if event.path else ""
            ignored = f", in vain: {event.ignored}" if event.ignored else ""
            return "info", f"{event.kind}{checkpoint} requested ({event.origin}){ignored}"
        case ev.Paused():
            reason = f": {event.reason}" if event.reason else ""
            text = f"paused at round {event.round} step {event.step} ({event.origin}){reason}"
            return ("error" if event.reason else "info"), text
        case ev.Resumed():
            source = f" from {event.checkpoint}" if event.checkpoint else ""
            return "info", f"resumed at round {event.round} step {event.step}{source} ({event.origin})"
        case ev.Logged():
            return event.severity, event.text
        case ev.RunEnded():
            reason = f": {event.reason}" if event.reason else ""
            return ("error" if event.outcome == "failed" else "info"), f"run {event.outcome}{reason}"
        case _:
            return None


def anomaly_subject(anomaly: ev.AnomalyFound | ev.AnomalyEnded) -> str:
    """What it is about, an env as everywhere else: `env 07`."""
    return anomaly.where if anomaly.env is None else f"env {anomaly.env:02d}"


def pluralise(count: int, one: str, more: str = "") -> str:
    """A count and what is counted: 1 env, 2 envs; `more` is the plural where that is not `one` and an s."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def to_ascii(text: str) -> str:
    """A text that any terminal, log and screen reader takes: what is neither ASCII nor known here is escaped."""
    return "".join(c if " " <= c <= "~" else _ASCII.get(c) or c.encode("unicode_escape").decode("ascii") for c in text)
