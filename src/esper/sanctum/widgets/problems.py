"""What is wrong now: the anomaly strip, and why a run is paused."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from rich.cells import set_cell_size
from textual.binding import BindingType
from textual.geometry import Size

from esper.domain import Rule
from esper.formatting import strip_control
from esper.sanctum.bindings import KeyCategory, bindings
from esper.sanctum.requests import pause_cause
from esper.sanctum.symbols import SEVERITIES, STATUS_SYMBOLS, ellipsise, wrap_cells
from esper.sanctum.view import GoToMoment
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.sentences import anomaly_subject
from esper.telemetry.state import Anomaly, anomaly_key


def anomaly_target(anomaly: Anomaly) -> GoToMoment:
    """Where to look at an anomaly."""
    found, over = anomaly.found, anomaly.ended is not None
    if found.env is not None:
        return GoToMoment(found.seq, env=found.env, over=over)
    lane = ":" in found.where
    scales = found.rule in {Rule.LOSS_SCALES_DIVERGE, Rule.LOSS_SCALE_BELOW_1}
    return GoToMoment(found.seq, screen="numerics" if scales else "devices" if lane else "policy", over=over)


class AnomalyStrip(Panel, can_focus=True):
    """What goes on, as much as fits, and the count of the rest; then what of this round is over. Enter goes there."""

    METRICS = ("anomalies",)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KeyCategory.ANOMALIES)]

    DEFAULT_CSS = """
    AnomalyStrip { height: 1; width: 1fr; padding: 0 1; }
    """

    def cache_key(self) -> Hashable:
        """The state, what only the clock tells, and the focus."""
        stale = self.view.stale
        return self.state.seq, stale and stale.text, self.has_focus

    def draw_lines(self, size: Size) -> list[Line]:
        """One line."""
        line = self.line().append("▸" if self.has_focus else "", "key")
        active = [anomaly.found for anomaly in self.state.active_anomalies()]
        if self.view.stale is not None:
            active.insert(0, self.view.stale)
        if not active:
            line.append(f"{SEVERITIES['info'].glyph} no anomalies", "dim" if self.state.started else "faint")
            self._append_ended(line, size.width)
            return [line] if self.state.started else [self.line()]
        worst = "error" if any(found.severity == "error" for found in active) else "warning"
        line.append(f"{SEVERITIES[worst].glyph} {len(active)}", worst)
        for shown, found in enumerate(active):
            gap, rest = ("  " if shown == 0 else " · "), len(active) - shown - 1
            room = size.width - line.width - len(gap) - (len(f"  +{rest} more") if rest else 0)
            known = self.state.anomalies.get(anomaly_key(found))
            text = strip_control(found.text) + (f" ×{known.count}" if known and known.count > 1 else "")
            if shown and len(text) > room:
                line.append(f"  +{rest + 1} more", "dim")
                return [line]
            line.append(gap, "faint").append(ellipsise(text, room), "bright")
        self._append_ended(line, size.width)
        return [line]

    def _append_ended(self, line: Line, width: int) -> None:
        """What of this round is over, where it still fits."""
        for anomaly in reversed(self.state.anomalies.values()):
            text = f"  over: {strip_control(anomaly_subject(anomaly.found))}, {strip_control(anomaly.found.rule)}"
            if anomaly.ended is not None and anomaly.last_round == self.state.round and line.width + len(text) <= width:
                line.append(text, "dim")

    def action_visit(self) -> None:
        """Go to the worst."""
        active = self.state.active_anomalies()
        if active:
            self.post_message(anomaly_target(active[0]))

    def on_click(self) -> None:
        """As Enter."""
        self.action_visit()

    def on_focus(self) -> None:
        """Show that Enter is ours now."""
        self.update()

    def on_blur(self) -> None:
        """Show that it is not."""
        self.update()


_MOST_LINES = 6
"""Of a reason: some libraries write whole pages."""


class PauseCausePanel(Panel):
    """Below the first lines of every screen, while a fault holds the run."""

    DEFAULT_CSS = """
    PauseCausePanel { height: auto; padding: 0 1; display: none; }
    PauseCausePanel.-held { display: block; }
    """

    def update(self) -> None:
        """Come, or go."""
        self.set_class(self.state.cause is not None, "-held")
        super().update()

    def cache_key(self) -> Hashable:
        """Of the state, only this."""
        return self.state.cause, self.state.reason

    def preferred_height(self) -> int:
        """As many lines as the text takes."""
        return len(self._texts(self.app.size.width - 2))

    def draw_lines(self, size: Size) -> list[Line]:
        """The reason in the colour of an error, then what leads on."""
        return [self.line().append(text, role) for text, role in self._texts(size.width)]

    def _texts(self, width: int) -> list[tuple[str, str]]:
        """Lines and their roles."""
        cause = self.state.cause
        if cause is None:
            return []
        held = STATUS_SYMBOLS["HELD"]
        reason = wrap_cells(f"{held.glyph} {strip_control(self.state.reason or '')}", width)
        if len(reason) > _MOST_LINES:
            reason[_MOST_LINES - 1 :] = [ellipsise(" ".join(reason[_MOST_LINES - 1 :]), width)]
        way = (
            [f"  {text}" for text in wrap_cells(pause_cause(cause).advice, width - 2)] if self.view.source.live else []
        )
        return [*((set_cell_size(text, width), "error") for text in reason), *((text, "bright") for text in way)]
