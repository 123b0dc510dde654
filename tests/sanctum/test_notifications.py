"""Alerts, and the escape sequences of their notifications."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from textual.drivers.headless_driver import HeadlessDriver

from esper.recordings import events as ev
from esper.recordings.state.state import Keyframe
from esper.sanctum.actions.diagnosis import (
    MAX_NOTIFICATION_CHARS,
    NOTIFY_INTERVAL_S,
    NOTIFY_PROTOCOLS,
    SAME_CAUSE_S,
    Alerts,
    notification_escape,
)
from esper.sanctum.source import LiveSource
from tests.factory import START as START_TIME
from tests.factory import env_stepped, example_run, run_started, stamp
from tests.recordings.files.recordings import fold, recording, write_segment
from tests.sanctum.driving import emit, live, opened
from tests.sanctum.population import anomaly
from tests.sanctum.sessions import FakeSession
from tests.terminals import Terminal

START = [run_started(3), ev.RoundStarted(round=1)]
BROKEN = anomaly()


class StubAlerts:
    """Alerts of a run whose events a test supplies."""

    def __init__(self, *events: ev.AnyEvent) -> None:
        self.session = FakeSession(stamp([*START, *events]))
        self.source = LiveSource(self.session)
        self.source.start()
        self.alerts = Alerts(self.source)
        self.seq = len(START) + len(events)

    def scan(self, *events: ev.AnyEvent, now: float = 0.0, begun: ev.AnomalyFound | None = None) -> str | None:
        self.session.say(*stamp(events, first=self.seq + 1))
        self.seq += len(events)
        self.source.tick(0.0)
        self.begun = self.alerts.scan_new(begun)
        return self.alerts.pop_due(now)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (BROKEN, "env 02 is broken"),
        (
            ev.Paused(round=1, step=2, origin="engine", reason="the disk is full"),
            "paused at round 1 step 2 (engine): the disk is full",
        ),
        (ev.RunEnded(outcome="done"), "run done"),
        (ev.RunEnded(outcome="failed", reason="out of memory"), "run failed: out of memory"),
        (ev.Paused(round=1, step=2, origin="keyboard"), None),
        (ev.AnomalyEnded(rule="r", where="env 2", env=2), None),
        (env_stepped(), None),
    ],
)
def test_alerts_notify_of_important_events_only(event: ev.AnyEvent, expected: str | None) -> None:
    alerts = StubAlerts()
    assert alerts.scan() is None
    assert alerts.scan(event) == expected
    assert alerts.begun == isinstance(event, ev.AnomalyFound)
    assert alerts.scan(now=2 * NOTIFY_INTERVAL_S) is None


def test_alerts_in_quick_succession_are_merged_newest_first() -> None:
    alerts = StubAlerts()
    assert alerts.scan(BROKEN, now=100.0) == "env 02 is broken"
    assert alerts.scan(msgspec.structs.replace(BROKEN, rule="s", text="env 02 is slow"), now=100.2) is None
    assert alerts.begun
    assert alerts.scan(ev.RunEnded(outcome="stopped"), now=100.4) is None
    assert alerts.scan(now=100.0 + NOTIFY_INTERVAL_S) == "run stopped · env 02 is slow"


def test_alerts_of_one_rule_are_repeated_only_after_a_quiet_time() -> None:
    alerts = StubAlerts()
    ended = ev.AnomalyEnded(rule="r", where="env 2", env=2)
    assert alerts.scan(BROKEN) == "env 02 is broken"
    for now in (20.0, 40.0, 60.0):
        elsewhere = msgspec.structs.replace(BROKEN, where=f"env {now}", text="another env is broken")
        assert alerts.scan(ended, BROKEN, elsewhere, now=now) is None
        assert not alerts.begun
    later = msgspec.structs.replace(BROKEN, seq=alerts.seq + 2, time=START_TIME + 2 * SAME_CAUSE_S)
    alerts.session.say(*stamp([ended], first=alerts.seq + 1), later)
    assert alerts.scan(now=200.0) == "env 02 is broken"
    assert alerts.begun
    hour = 3600.0
    set_back = ev.ClockChanged(seq=later.seq + 1, time=later.time + hour - 2 * hour, seconds=-2 * hour)
    again = msgspec.structs.replace(BROKEN, seq=later.seq + 2, where="env 3", time=set_back.time)
    alerts.session.say(set_back, again)
    assert "env 02 is broken" in (alerts.scan(now=300.0) or "")


def test_alerts_skip_muted_rules() -> None:
    alerts = StubAlerts()
    alerts.session.emit(BROKEN)
    alerts.source.tick(0.0)
    assert not alerts.alerts.scan_new(BROKEN, {"r"})
    assert alerts.alerts.pop_due(0.0) is None


def test_alerts_report_a_silent_engine_once() -> None:
    alerts = StubAlerts()
    assert alerts.scan(begun=BROKEN) == "env 02 is broken"
    assert alerts.begun
    assert alerts.scan(now=20.0) is None


def test_alerts_skip_events_before_the_start() -> None:
    """A keyframe starts a late viewer or follows a restore: its anomalies are not new."""
    alerts = StubAlerts(BROKEN)
    alerts.session.say(Keyframe.from_state(fold(stamp([*START, BROKEN, BROKEN]))))
    assert alerts.scan() is None
    assert not alerts.begun
    alerts.seq += 1
    assert alerts.scan(BROKEN) == "env 02 is broken"


@pytest.mark.parametrize(
    ("sequence", "tmux", "expected"),
    [
        ("osc9", False, "\x1b]9;run 1: env 02, broken\x07"),
        ("osc777", False, "\x1b]777;notify;run 1;env 02, broken\x07"),
        ("osc9", True, "\x1bPtmux;\x1b\x1b]9;run 1: env 02, broken\x07\x1b\\"),
    ],
)
def test_notification_escape_sequences_are_exact(sequence: str, tmux: bool, expected: str) -> None:
    assert notification_escape(sequence, "run 1", "env 02; broken", tmux=tmux) == expected


@pytest.mark.parametrize("sequence", NOTIFY_PROTOCOLS)
def test_notification_text_cannot_inject_sequences(sequence: str) -> None:
    evil = "a\x07b\x1b]0;c\x1b\\\x9cd\n\r\x00\u202e" + 1000 * "e"
    sent = notification_escape(sequence, evil, evil, tmux=False)
    assert re.fullmatch(r"\x1b\][^\x00-\x1f\x7f-\x9f\u202e]*\x07", sent)
    assert sent.count(";") == {"osc9": 1, "osc777": 3}[sequence]
    assert len(sent) < 2 * MAX_NOTIFICATION_CHARS + 20


async def test_notifications_are_sent_only_when_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda _, text: sent.append(text))
    for protocol in (None, "osc777"):
        app, session = live(stamp(START), notify=protocol)
        async with opened(app) as pilot:
            await emit(pilot, session, BROKEN)
            app.update_stats(0.0)
            assert [text for text in sent if "env 02 is broken" in text] == ([sent[-1]] if protocol else [])


def test_notification_reaches_the_terminal(tmp_path: Path) -> None:
    write_segment(tmp_path / "run", 1, recording(example_run()))
    options = ("--speed", "inf", "--telemetry-dir", ".", "--notify", "osc777")
    with Terminal("replay", "run", *options, cwd=tmp_path) as terminal:
        terminal.wait_for("head tempo received no gradient")  # the notification has the same text
        terminal.type("q")
        assert terminal.leave() == 0
        terminal.assert_restored()
    [sent] = re.findall(rb"\x1b\](?:9|777);[^\x07]*\x07", terminal.output)
    title = b"esper-sanctum digits_impaired-20261121-015300"
    assert sent.startswith(b"\x1b]777;notify;" + title + b";run done \xc2\xb7 head tempo received no gradient")
