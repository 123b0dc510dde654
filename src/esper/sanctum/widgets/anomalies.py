"""The second line: what is wrong now, the worst first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from textual.binding import BindingType
from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.bindings import Category, bindings
from esper.sanctum.symbols import SEVERITIES, shorten
from esper.sanctum.view import GoToMoment
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.sentences import place_of
from esper.telemetry.state import Anomaly, key_of


def destination(anomaly: Anomaly) -> GoToMoment:
    """Where to look at an anomaly."""
    found, over = anomaly.found, anomaly.ended is not None
    if found.env is not None:
        return GoToMoment(found.seq, env=found.env, over=over)
    lane = ":" in found.where
    scales = found.rule in {"loss scales diverge", "loss scale below 1"}
    return GoToMoment(found.seq, screen="numerics" if scales else "devices" if lane else "policy", over=over)


class AnomalyStrip(Panel, can_focus=True):
    """What goes on, as much as fits, and the count of the rest; then what of this round is over. Enter goes there."""

    METRICS = ("anomalies",)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.STRIP)]

    DEFAULT_CSS = """
    AnomalyStrip { height: 1; width: 1fr; padding: 0 1; }
    """

    def key(self) -> Hashable:
        """The state, what only the clock tells, and the focus."""
        stale = self.view.stale
        return self.state.seq, stale and stale.text, self.has_focus

    def draw(self, size: Size) -> list[Line]:
        """One line."""
        line = self.line().add("▸" if self.has_focus else "", "key")
        active = [anomaly.found for anomaly in self.state.active_anomalies()]
        if self.view.stale is not None:
            active.insert(0, self.view.stale)
        if not active:
            line.add(f"{SEVERITIES['info'].glyph} no anomalies", "dim" if self.state.started else "faint")
            self._add_over(line, size.width)
            return [line] if self.state.started else [self.line()]
        worst = "error" if any(found.severity == "error" for found in active) else "warning"
        line.add(f"{SEVERITIES[worst].glyph} {len(active)}", worst)
        for shown, found in enumerate(active):
            gap, rest = ("  " if shown == 0 else " · "), len(active) - shown - 1
            room = size.width - line.width - len(gap) - (len(f"  +{rest} more") if rest else 0)
            known = self.state.anomalies.get(key_of(found))
            text = plain(found.text) + (f" ×{known.count}" if known and known.count > 1 else "")
            if shown and len(text) > room:
                line.add(f"  +{rest + 1} more", "dim")
                return [line]
            line.add(gap, "faint").add(shorten(text, room), "bright")
        self._add_over(line, size.width)
        return [line]

    def _add_over(self, line: Line, width: int) -> None:
        """What of this round is over, where it still fits."""
        for anomaly in reversed(self.state.anomalies.values()):
            text = f"  over: {plain(place_of(anomaly.found))}, {plain(anomaly.found.rule)}"
            if anomaly.ended is not None and anomaly.last_round == self.state.round and line.width + len(text) <= width:
                line.add(text, "dim")

    def action_visit(self) -> None:
        """Go to the worst."""
        active = self.state.active_anomalies()
        if active:
            self.post_message(destination(active[0]))

    def on_click(self) -> None:
        """As Enter."""
        self.action_visit()

    def on_focus(self) -> None:
        """Show that Enter is ours now."""
        self.update()

    def on_blur(self) -> None:
        """Show that it is not."""
        self.update()
