"""What is wrong, where and why: the actions of the app that ask, and its own watch over the engine and itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from esper.sanctum.alerts import Alerts, notification
from esper.sanctum.screens.choices import anomaly_list, why
from esper.sanctum.screens.explain import Explain
from esper.sanctum.view import GoToMoment, ViewState
from esper.sanctum.widgets.panel import Panel
from esper.telemetry.anomalies import stale_telemetry

if TYPE_CHECKING:
    from textual.app import App

    from esper.sanctum.controllers.time_travel import PlaybackActions
    from esper.sanctum.source import Source
    from esper.telemetry.events import AnomalyFound

    _Base = App[None]
else:
    _Base = object


class Diagnosis(_Base):
    """Actions of the app."""

    source: Source
    view: ViewState
    refresh_view: Callable[[], None]
    playback_actions: PlaybackActions
    action_open_env: Callable[[], None]
    action_go: Callable[[str], None]
    action_help: Callable[[], None]
    bell_wanted: bool
    """Whether the bell rings when an anomaly begins."""
    notify_by: str | None
    """How the terminal is asked for a notification of the desktop, one of `alerts.SEQUENCES`; None where it is not."""
    alerts: Alerts

    def measure(self, now: float) -> None:
        """Take the dashboard's own pulse, and look whether the engine has fallen silent."""
        state, stats = self.source.state, self.view.frame_stats
        stats.record_frame(now, state.seq, time.thread_time())
        waits = self.source.live and self.source.alive and state.status == "running"
        cadence = median(state.walls[-50:]) if waits and state.walls else None
        stale = stale_telemetry(cadence, stats.age)
        self._alert(now, stale if self.view.stale is None else None)
        if (stale is None) != (self.view.stale is None):
            self.view.stale = stale
            self.refresh_view()

    def _alert(self, now: float, stale: AnomalyFound | None) -> None:
        """Ring, and notify, of what is new."""
        if self.alerts.look(stale) and self.bell_wanted:
            self.bell()
        text = self.alerts.due(now)
        if text is not None and self.notify_by is not None and self._driver is not None:
            started = self.source.present.started
            title = f"esper-sanctum {started.run}" if started else "esper-sanctum"
            # In one piece, and between two frames: those are written in one piece too, by this thread.
            self._driver.write(notification(self.notify_by, title, text, tmux="TMUX" in os.environ))

    def on_go_to_moment(self, target: GoToMoment) -> None:
        """Show the moment of an event, where there is a recording, and the env or screen that it is about."""
        self.playback_actions.go_to_event(target)
        if target.env is not None:
            self.view.selected_env = target.env
            self.action_open_env()
        elif target.screen is not None:
            self.action_go(target.screen)
        self.refresh_view()

    def action_anomalies(self) -> None:
        """All anomalies, to choose one."""
        self.push_screen(anomaly_list(self.view.palette, self.source.state), self._visit)

    def action_why(self) -> None:
        """What led to the trouble of the env under the cursor."""
        if self.view.selected_env < len(self.source.state.envs):
            self.push_screen(why(self.view.palette, self.source.state, self.view.selected_env), self._visit)

    def _visit(self, target: GoToMoment | None) -> None:
        if target is not None:
            self.on_go_to_moment(target)

    def action_explain(self) -> None:
        """What the figures of the focused panel mean, then those of the other panels in sight."""
        panels = [panel for panel in self.screen.query(Panel) if panel.METRICS and panel.display]
        panels.sort(key=lambda panel: not panel.has_focus)
        metrics = list(dict.fromkeys(name for panel in panels for name in panel.METRICS))
        if metrics:
            self.push_screen(Explain(self.view.palette, metrics), lambda more: self.action_help() if more else None)
        else:
            self.action_help()
