"""Problems of the run at the top of every screen: AnomalyStrip, and PauseCausePanel for a held run."""

from __future__ import annotations

from collections.abc import Hashable

from rich.cells import set_cell_size
from textual.geometry import Size

from esper.domain import Rule
from esper.formatting import strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.requests import pause_cause
from esper.sanctum.symbols import SEVERITIES, STATUS_SYMBOLS, ellipsise, wrap_cells
from esper.sanctum.view import GoToMoment
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.anomalies import Anomaly, anomaly_key
from esper.telemetry.sentences import anomaly_subject

_MAX_REASON_LINES = 6
"""Maximum height of the reason for a pause, because some libraries raise messages of several pages."""


def anomaly_target(anomaly: Anomaly) -> GoToMoment:
    """Return the message that shows the start of an anomaly, on the screen of its env or of its metric."""
    found, has_ended = anomaly.found, anomaly.ended is not None
    if found.env is not None:
        return GoToMoment(found.seq, env=found.env, over=has_ended)
    is_lane = ":" in found.where
    is_loss_scale = found.rule in {Rule.LOSS_SCALES_DIVERGE, Rule.LOSS_SCALE_BELOW_1}
    screen = "numerics" if is_loss_scale else "devices" if is_lane else "policy"
    return GoToMoment(found.seq, screen=screen, over=has_ended)


class AnomalyStrip(Panel, can_focus=True):
    """Line with the active anomalies that fit, the number of the others, and anomalies that ended in this round.

    Enter or a click shows the worst active anomaly.
    """

    METRICS = ("anomalies",)
    BINDINGS = bindings(KeyCategory.ANOMALIES)

    def cache_key(self) -> Hashable:
        """Return the event number, the message about a silent engine, and the focus."""
        view, stale = self.view, self.view.stale
        judged = (frozenset(view.muted_rules), frozenset(view.seen_anomalies))
        return self.state.seq, stale and stale.text, self.has_focus, judged

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw one line."""
        line = self.line("▸" if self.has_focus else "", "key")
        active = self.view.unmuted_anomalies()
        num_seen = sum(map(self.view.is_seen, active))
        muted = f"  {self.view.muted_note}" if self.view.muted_note else ""
        if num_seen == len(active):
            seen = f"no new anomalies, {num_seen} seen" if num_seen else "no anomalies"
            line.append(f"{SEVERITIES['info'].glyph} {seen}{muted}", "dim" if self.state.started else "faint")
            self._append_ended(line, size.width)
            return [line] if self.state.started else [self.line()]
        new = active[: len(active) - num_seen]
        worst = "error" if any(found.severity == "error" for found in new) else "warning"
        line.append(f"{SEVERITIES[worst].glyph} {len(new)}", worst)
        line.append((f" new, {num_seen} seen" if num_seen else "") + muted, "dim")
        for index, found in enumerate(active):
            gap, rest = ("  " if index == 0 else " · "), len(active) - index - 1
            room = size.width - line.width - len(gap) - (len(f"  +{rest} more") if rest else 0)
            anomaly = self.state.anomalies.get(anomaly_key(found))
            text = strip_control(found.text) + (f" ×{anomaly.count}" if anomaly and anomaly.count > 1 else "")
            if anomaly and len(anomaly.active_envs) > 1:
                text += f", {len(anomaly.active_envs)} envs"
            if index and len(text) > room:
                line.append(f"  +{rest + 1} more", "dim")
                return [line]
            line.append(gap, "faint").append(ellipsise(text, room), "dim" if self.view.is_seen(found) else "bright")
        self._append_ended(line, size.width)
        return [line]

    def _append_ended(self, line: Line, width: int) -> None:
        """Append the anomalies that ended in this round, the latest first, as far as they fit."""
        for anomaly in reversed(self.state.anomalies.values()):
            text = f"  ended: {strip_control(anomaly_subject(anomaly.found))}, {strip_control(anomaly.found.rule)}"
            if anomaly.found.rule in self.view.muted_rules:
                continue
            if anomaly.ended is not None and anomaly.last_round == self.state.round and line.width + len(text) <= width:
                line.append(text, "dim")

    def action_visit(self) -> None:
        """Show the worst active anomaly that an event has reported."""
        known = (self.state.anomalies.get(anomaly_key(found)) for found in self.view.unmuted_anomalies())
        anomaly = next(filter(None, known), None)
        if anomaly is not None:
            self.post_message(anomaly_target(anomaly))

    def on_click(self) -> None:
        """Show the worst active anomaly."""
        self.action_visit()


class PauseCausePanel(Panel):
    """Reason for which the engine holds the run, and the keys that help. Hidden if the run is not held."""

    def update(self) -> None:
        """Show the panel if the run is held, else hide it, and draw it."""
        self.set_class(self.state.cause is not None, "-held")
        super().update()

    def cache_key(self) -> Hashable:
        """Return cause and reason of the pause."""
        return self.state.cause, self.state.reason

    def preferred_height(self) -> int:
        """Return the number of lines of the wrapped text."""
        return len(self._wrapped_lines(self.app.size.width - 2))

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the reason in the style of an error, then the advice, if this dashboard can control the run."""
        return [self.line(text, role) for text, role in self._wrapped_lines(size.width)]

    def _wrapped_lines(self, width: int) -> list[tuple[str, str]]:
        """Return the lines with their roles."""
        cause = self.state.cause
        if cause is None:
            return []
        held = STATUS_SYMBOLS["HELD"]
        reason = wrap_cells(f"{held.glyph} {strip_control(self.state.reason or '')}", width)
        if len(reason) > _MAX_REASON_LINES:
            reason[_MAX_REASON_LINES - 1 :] = [ellipsise(" ".join(reason[_MAX_REASON_LINES - 1 :]), width)]
        requests = self.view.source.requests
        can_control = requests is not None and requests.disabled_reason is None and not self.app.is_web
        advice = wrap_cells(pause_cause(cause).format_advice(self.view.key_names), width - 2) if can_control else []
        return [
            *((set_cell_size(text, width), "error") for text in reason),
            *((f"  {text}", "bright") for text in advice),
        ]
