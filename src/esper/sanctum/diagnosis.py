"""What is wrong, where and why: the actions of the app that ask, and its own watch over the engine and itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from esper.sanctum.screens.choices import anomaly_list, why
from esper.sanctum.screens.explain import Explain
from esper.sanctum.widgets.panel import Panel, View, Visit
from esper.telemetry.anomalies import stale_telemetry

if TYPE_CHECKING:
    from textual.app import App

    from esper.sanctum.source import Source

    _Base = App[None]
else:
    _Base = object


class Diagnosis(_Base):
    """Actions of the app."""

    source: Source
    view: View
    look: Callable[[], None]
    go_to_event: Callable[[Visit], None]
    action_open_env: Callable[[], None]
    action_go: Callable[[str], None]
    action_help: Callable[[], None]
    bell_wanted: bool
    """Whether the bell rings when an anomaly begins."""
    _rung = 0
    """The last event that the bell was rung for, or not."""

    def measure(self, now: float) -> None:
        """Take the dashboard's own pulse, and look whether the engine has fallen silent."""
        state, pulse = self.source.state, self.view.pulse
        pulse.beat(now, state.seq, time.thread_time())
        waits = self.source.live and self.source.alive and state.status == "running"
        cadence = median(state.walls[-50:]) if waits and state.walls else None
        stale = stale_telemetry(cadence, pulse.age)
        if self.bell_wanted and self._rung < state.seq and stale is None:
            begun = [anomaly.found.seq for anomaly in state.active_anomalies()]
            if any(seq > self._rung for seq in begun):
                self.bell()
        self._rung = state.seq
        if (stale is None) != (self.view.stale is None):
            self.view.stale = stale
            self.look()

    def on_visit(self, visit: Visit) -> None:
        """Show the moment of an event, where there is a recording, and the env or screen that it is about."""
        self.go_to_event(visit)
        if visit.env is not None:
            self.view.env = visit.env
            self.action_open_env()
        elif visit.screen is not None:
            self.action_go(visit.screen)
        self.look()

    def action_anomalies(self) -> None:
        """All anomalies, to choose one."""
        self.push_screen(anomaly_list(self.view.palette, self.source.state), self._visit)

    def action_why(self) -> None:
        """What led to the trouble of the env under the cursor."""
        if self.view.env < len(self.source.state.envs):
            self.push_screen(why(self.view.palette, self.source.state, self.view.env), self._visit)

    def _visit(self, visit: Visit | None) -> None:
        if visit is not None:
            self.on_visit(visit)

    def action_explain(self) -> None:
        """What the figures of the focused panel mean, then those of the other panels in sight."""
        panels = [panel for panel in self.screen.query(Panel) if panel.METRICS and panel.display]
        panels.sort(key=lambda panel: not panel.has_focus)
        metrics = list(dict.fromkeys(name for panel in panels for name in panel.METRICS))
        if metrics:
            self.push_screen(Explain(self.view.palette, metrics), lambda more: self.action_help() if more else None)
        else:
            self.action_help()
