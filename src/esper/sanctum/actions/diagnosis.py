"""Diagnosis actions: anomalies and root cause; and the watch over a silent engine, with notifications."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from itertools import takewhile

from esper.common.formatting import strip_control
from esper.recordings import events as ev
from esper.recordings.health.incidents import group_incidents
from esper.recordings.history.run_status import RunStatus
from esper.sanctum.actions.navigation import NavigationActions
from esper.sanctum.screens.moment_lists import AnomalyList, RootCauseList
from esper.sanctum.source import RunSource, run_has_ended
from esper.sanctum.symbols import ellipsise
from esper.sanctum.view import GoToMoment, ViewState

NOTIFY_PROTOCOLS = ("osc9", "osc777")
"""Escape sequences for desktop notifications: iTerm2 introduced the first, rxvt the second."""
NOTIFY_INTERVAL_S = 10.0
"""Minimum seconds between two notifications; messages in between are sent together."""
SAME_CAUSE_S = 60.0
"""Seconds within which anomalies of one rule have the same cause: only the first is reported."""
MAX_NOTIFICATION_CHARS = 200


class DiagnosisActions(NavigationActions):
    """Show the problems of a run, and alert the user to them.

    Args:
        bell: Ring the bell when an anomaly begins.
        notify_protocol: Escape sequence for desktop notifications, one of `NOTIFY_PROTOCOLS`; None to send none.
    """

    def __init__(self, source: RunSource, *, bell: bool, notify_protocol: str | None) -> None:
        super().__init__(source)
        self._bell_enabled = bell
        self._notify_protocol = notify_protocol
        self._alerts = Alerts(source)
        self._status: RunStatus | None = None
        """Status of the run at the last frame; None before the first."""

    def begin_run(self, view: ViewState) -> None:
        """Watch another run."""
        super().begin_run(view)
        self._status = None
        self.start_alerts()

    def start_alerts(self) -> None:
        """Begin to watch the source, once it has started; events that it has read by then cause no alert."""
        self._alerts = Alerts(self.source)

    def update_stats(self, now: float) -> None:
        """Record a frame, and update the status of the run: no event reports that it is silent or has crashed.

        Args:
            now: Monotonic time, seconds.
        """
        source, stats, before = self.source, self.view.frame_stats, self._status
        expects_events = source.live_state.status == "running" and not run_has_ended(source)
        at_present = source.following or (source.live and source.playback is None)
        stats.record_frame(now, source.live_state.seq, time.thread_time(), shows_age=at_present and expects_events)
        self._status = status = self.view.status
        known, found = before and before.anomaly, status.anomaly
        has_begun = found is not None and (known is None or known.rule != found.rule)
        self._alert(now, found if has_begun and (source.live or source.following) else None)
        if status != before:
            self.refresh_view()

    def action_anomalies(self) -> None:
        """Open the list of all anomalies."""
        self.push_screen(AnomalyList(self.view), self._show_anomaly)

    def action_mute(self) -> None:
        """Mute the rule of the first anomaly at the top of the screen."""
        keys, anomaly = self.view.key_names, self.view.first_anomaly
        found = self.view.status_anomaly or (anomaly and anomaly.found)
        if found is None:
            text = f"There is no anomaly to mute. Press {keys['view.anomalies']} to list all, and to unmute rules."
        else:
            self.view.toggle_muted(found.rule)
            text = (
                f"Muted: {found.rule}. To unmute it, press {keys['view.anomalies']}, select its line, "
                f"and press {keys['view.mute']}."
            )
        self.notify(text, timeout=5)
        self.refresh_view()

    def action_why(self) -> None:
        """Open the likely cause of the last problem of the selected env."""
        if self.view.selected_env < len(self.source.state.envs):
            self.push_screen(RootCauseList(self.view), self._show_anomaly)

    def _alert(self, now: float, begun: ev.AnomalyFound | None) -> None:
        """Ring the bell and send a desktop notification for news.

        Args:
            begun: Anomaly of a run that is silent or crashed from now on.
        """
        if self._alerts.scan_new(begun, self.view.muted_rules) and self._bell_enabled:
            self.bell()
        text = self._alerts.pop_due(now)
        if text is not None and self._notify_protocol is not None:
            started = self.source.live_state.started
            title = f"esper-sanctum {started.run}" if started else "esper-sanctum"
            tmux = "TMUX" in os.environ
            sequence = notification_escape(self._notify_protocol, title, text, tmux=tmux)
            if self._driver is not None:
                self._driver.write(sequence)  # each frame is one call too, so that the two never mix

    def _show_anomaly(self, target: GoToMoment | None) -> None:
        if target is not None:
            self.on_go_to_moment(target)
        else:
            self.refresh_view()  # other rules may be muted


class Alerts:
    """Messages that are worth a notification, collected from the log of a run.

    Args:
        source: Source of the run. Only its present is scanned: moments of its past are not news.
    """

    def __init__(self, source: RunSource) -> None:
        self.source = source
        self._state = source.live_state
        self._last_seq = self._state.seq
        """Number of the last event that was scanned."""
        self._alerted: dict[str, float] = {}
        """Elapsed seconds of the run when the last anomaly of each rule was scanned."""
        self._waiting: list[str] = []
        self._sent = -math.inf

    def scan_new(self, begun: ev.AnomalyFound | None, muted_rules: Collection[str] = ()) -> bool:
        """Collect the messages since the last scan, and return True if an anomaly with a new cause has begun.

        An anomaly that an earlier one of its incident led to is no news.

        Args:
            begun: Anomaly of a silent or crashed run, which no event reports, if it has just begun.
            muted_rules: Rules whose anomalies are not reported.
        """
        state = self.source.live_state
        if state is not self._state:  # a keyframe or a seek replaced the state: its events are not news
            self._state, self._last_seq = state, state.seq
        lines = list(takewhile(lambda line: line.seq > self._last_seq, reversed(state.log)))
        self._last_seq = state.seq
        unmuted = [anomaly for anomaly in state.anomalies.values() if anomaly.found.rule not in muted_rules]
        causes = {incident.cause.found.seq: incident.cause.found for incident in group_incidents(unmuted)}
        begun_text = [begun.text] if begun is not None and begun.rule not in muted_rules else []
        has_begun = bool(begun_text)
        news: list[str] = []
        for line in reversed(lines):
            if line.kind == ev.AnomalyFound.__name__:
                found = causes.get(line.seq)
                if found is None or not self._is_new_cause(found):
                    continue
                has_begun = True
            is_held = line.kind == ev.Paused.__name__ and line.severity == "error"  # not for a pause on request
            if is_held or line.kind in {ev.AnomalyFound.__name__, ev.RunEnded.__name__}:
                news.insert(0, line.text)
        self._waiting[:0] = [*begun_text, *news]
        return has_begun

    def _is_new_cause(self, found: ev.AnomalyFound) -> bool:
        """Return True unless another anomaly of the same rule began shortly before."""
        before = self._alerted.get(found.rule, -math.inf)
        self._alerted[found.rule] = elapsed = self.source.live_state.elapsed
        return abs(elapsed - before) >= SAME_CAUSE_S  # a restored checkpoint may lie far back

    def pop_due(self, now: float) -> str | None:
        """Return the collected messages, the newest first; None if there are none, or the last were sent just now.

        Args:
            now: Monotonic time, seconds.
        """
        if not self._waiting or now - self._sent < NOTIFY_INTERVAL_S:
            return None
        text, self._waiting, self._sent = " · ".join(self._waiting), [], now
        return text


def notification_escape(protocol: str, title: str, text: str, *, tmux: bool) -> str:
    """Return the escape sequence that makes a terminal show a desktop notification.

    Args:
        protocol: One of `NOTIFY_PROTOCOLS`.
        title: Title of the notification; "osc9" has none, and puts it before the text.
        tmux: Wrap it for the terminal around tmux, which passes it on if `allow-passthrough` is on.
    """
    title, text = (ellipsise(strip_control(part).replace(";", ","), MAX_NOTIFICATION_CHARS) for part in (title, text))
    body = f"9;{title}: {text}" if protocol == "osc9" else f"777;notify;{title};{text}"  # a ; would end a field
    escaped = f"\x1b]{body}\x07"
    return f"\x1bPtmux;{escaped.replace(chr(27), 2 * chr(27))}\x1b\\" if tmux else escaped
