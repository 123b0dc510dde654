"""One plain sentence for each notable event: for the log panel, headless lines and screen readers."""

from __future__ import annotations

from esper.telemetry import events as ev

_TURNING_POINTS = {"germinated": "planted", "blending": "blending", "fossilized": "fossilized", "culled": "culled"}
"""What is said of a seed that reaches a stage; timers bring it to the others."""


def sentence(event: ev.AnyEvent) -> tuple[str, str] | None:
    """Severity (info, warning or error) and text of an event; None for the routine ones."""
    match event:
        case ev.RunStarted():
            return "info", f"run {event.run}: {event.policy} on {event.task}, {len(event.lanes)} envs"
        case ev.SeedMoved() if event.after in _TURNING_POINTS:
            return "info", f"env {event.env:02d} {event.slot} {event.blueprint} {_TURNING_POINTS[event.after]}"
        case ev.PolicyUpdated():
            return "info", f"round {event.round} learned: return {event.episode_return:+.3f}, KL {event.kl:.4f}"
        case ev.AnomalyFound():
            return event.severity, event.text
        case ev.GovernorRolledBack():
            return "error", f"env {event.env:02d} rolled back: {event.reason}"
        case ev.CheckpointSaved():
            return (
                "info",
                f"checkpoint at round {event.round} step {event.step} ({event.origin}), {event.bytes / 2**20:.1f} MiB",
            )
        case ev.Paused():
            return "info", f"paused at round {event.round} step {event.step} ({event.origin})"
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
