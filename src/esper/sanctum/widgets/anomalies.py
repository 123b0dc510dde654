"""The second line: what is wrong now, the worst first."""

from __future__ import annotations

from textual.geometry import Size

from esper.sanctum.symbols import SEVERITIES, plain, shorten
from esper.sanctum.widgets.panel import Line, Panel


class AnomalyStrip(Panel):
    """The anomalies of this round and the one before, as many as fit, and the count of the rest."""

    DEFAULT_CSS = """
    AnomalyStrip { height: 1; padding: 0 1; }
    """

    def draw(self, size: Size) -> list[Line]:
        """One line."""
        line = self.line()
        active = self.state.active_anomalies()
        if not active:
            return [line.add(f"{SEVERITIES['info'].glyph} no anomalies", "dim")] if self.state.started else [line]
        worst = active[0].found.severity
        line.add(f"{SEVERITIES[worst].glyph} {len(active)}", worst)
        for shown, anomaly in enumerate(active):
            room = size.width - line.width - (10 if shown < len(active) - 1 else 2)
            text = plain(anomaly.found.text) + (f" ×{anomaly.count}" if anomaly.count > 1 else "")
            if shown and len(text) > room:
                line.add(f"  +{len(active) - shown} more", "dim")
                break
            line.add("  " if shown == 0 else " · ", "faint").add(shorten(text, room), "bright")
        return [line]
