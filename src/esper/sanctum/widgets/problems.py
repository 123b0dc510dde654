"""Problems of the run at the top of every screen: AnomalyStrip, and PauseCausePanel for a held run."""

from __future__ import annotations

from collections.abc import Hashable

from rich.cells import cell_len, set_cell_size
from textual.geometry import Size

from esper.common.domain import Rule
from esper.common.formatting import strip_control
from esper.recordings.events.sentences import anomaly_subject
from esper.recordings.health.incidents import Incident
from esper.recordings.state.anomalies import Anomaly
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.requests import pause_cause
from esper.sanctum.symbols import RUN_STATES, SEVERITIES, ellipsise, wrap_cells
from esper.sanctum.view import GoToMoment
from esper.sanctum.widgets.header import MIN_GROWTH_COLS
from esper.sanctum.widgets.panel import Line, Panel

_TROUBLED_STATES = frozenset({"silent", "stuck", "held", "crashed", "failed"})
"""Names of the states of a run in which the absence of anomalies is no good news."""
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


def _describe_incident(incident: Incident) -> str:
    """Return the text of the worst active anomaly of an incident, how often it occurred, and in how many envs."""
    worst = incident.active[0]
    text = strip_control(worst.found.text) + (f" ×{worst.count}" if worst.count > 1 else "")
    return text + (f", {len(worst.active_envs)} envs" if len(worst.active_envs) > 1 else "")


class AnomalyStrip(Panel, can_focus=True):
    """Line with the active anomalies that fit, the number of the others, and anomalies that ended in this round.

    The anomalies of one incident count as one. Enter or a click shows the worst active anomaly.
    """

    METRICS = ("anomalies",)
    BINDINGS = bindings(KeyCategory.ANOMALIES)

    @property
    def metric_at_cursor(self) -> str:
        """The anomalies."""
        return "anomalies"

    def cache_key(self) -> Hashable:
        """Return the event number, the status of the run, the focus, and whether growth helped."""
        view = self.view
        judged = (frozenset(view.muted_rules), frozenset(view.seen_anomalies))
        return self.state.seq, view.status, self.has_focus, judged, view.growth_text

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw one line."""
        line = self.line("▸" if self.has_focus else "", "key")
        if self.state.started is None:
            return [line]
        incidents = self.view.incidents()
        active = [incident for incident in incidents if incident.active]
        unreported = [found] if (found := self.view.status_anomaly) is not None else []
        num_seen, num_active = sum(map(self.view.is_seen, active)), len(active) + len(unreported)
        muted = f"  {self.view.muted_note}" if self.view.muted_note else ""
        if num_seen == num_active:
            self._append_no_active(line, num_seen, len(incidents) - len(active), muted, size.width)
            self._append_ended(line, incidents, size.width)
            return [line]
        founds = [incident.active[0].found for incident in active]
        new = [*unreported, *founds[: len(active) - num_seen]]
        worst = "error" if any(found.severity == "error" for found in new) else "warning"
        line.append(f"{SEVERITIES[worst].glyph} {len(new)}", worst)
        line.append((f" new, {num_seen} seen" if num_seen else "") + muted, "dim")
        texts = [*(found.text for found in unreported), *map(_describe_incident, active)]
        for index, text in enumerate(texts):
            gap, rest = ("  " if index == 0 else " · "), len(texts) - index - 1
            room = size.width - line.width - len(gap) - (len(f"  +{rest} more") if rest else 0)
            if index and cell_len(text) > room:
                line.append(f"  +{rest + 1} more", "dim")
                return [line]
            line.append(gap, "faint").append(ellipsise(text, room), "dim" if index >= len(new) else "bright")
        self._append_ended(line, incidents, size.width)
        return [line]

    def _append_no_active(self, line: Line, num_seen: int, num_ended: int, muted: str, width: int) -> None:
        """Append that no anomaly is active, or that all are seen, and the number of ended ones, as it fits."""
        active = short = f"no new anomalies, {num_seen} seen" if num_seen else "no anomalies"
        texts = [active]
        if num_ended and not num_seen:
            active, short = "no active anomalies", "0 active"
        if num_ended:
            listed = f"{num_ended} ended ({self.view.key_names['view.anomalies']} lists them)"
            texts = [f"{active}, {listed}", f"{active}, {num_ended} ended", f"{short}, {num_ended} ended"]
        mark = f"{SEVERITIES['info'].glyph} " if self.view.status.name not in _TROUBLED_STATES else ""
        texts = [f"{mark}{text}{muted}" for text in texts]
        if self.app.size.width < MIN_GROWTH_COLS and (growth := self.view.growth_text.removeprefix("median ")):
            texts = [*(f"{text}  {growth}" for text in texts), *texts]
        line.append(next((text for text in texts if line.width + len(text) <= width), texts[-1]), "dim")

    def _append_ended(self, line: Line, incidents: list[Incident], width: int) -> None:
        """Append the anomalies that ended in this round, the latest first, as far as they fit."""
        for incident in incidents:
            found = incident.cause.found
            text = f"  ended: {strip_control(anomaly_subject(found))}, {strip_control(found.rule)}"
            is_recent = not incident.active and incident.cause.last_round == self.state.round
            if is_recent and line.width + cell_len(text) <= width:
                line.append(text, "dim")

    def action_visit(self) -> None:
        """Show the worst active anomaly that an event has reported."""
        if (anomaly := self.view.first_anomaly) is not None:
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
        held, _ = RUN_STATES["held"]
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
