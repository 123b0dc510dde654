"""`--on-alert COMMAND`: one JSON object per anomaly, and commands that fail or hang."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from esper.cli import alerts
from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.recordings import events as ev
from esper.recordings.history.history import open_history

ALARMING = ("--no-tui", "--envs", "2", "--rounds", "1", "--steps", "4", "--devices", "cpu:0", "--policy", "static")
NEARLY_FULL = ("--training.samples-per-epoch", "128", "--anomalies.memory", "0.00001")
"""Threshold that the memory of any machine exceeds."""


def train(directory: Path, command: str) -> list[ev.AnyEvent]:
    """Train a run in which one anomaly begins, and return its events."""
    assert main([*ALARMING, *NEARLY_FULL, "--telemetry-dir", str(directory), "--on-alert", command]) == EXIT_OK
    [run] = directory.iterdir()
    return [*open_history(run).events()]


def test_command_gets_one_json_object_per_anomaly(tmp_path: Path) -> None:
    received = tmp_path / "received.jsonl"
    script = tmp_path / "on alert.py"
    script.write_text(f"import sys; open({str(received)!r}, 'a').write(sys.stdin.read())")
    events = train(tmp_path / "runs", f"{sys.executable} '{script}'")
    [found] = [event for event in events if isinstance(event, ev.AnomalyFound)]
    [alert] = [json.loads(line) for line in received.read_text().splitlines()]
    assert alert == {
        "run": next((tmp_path / "runs").iterdir()).name,
        "rule": "memory nearly full",
        "severity": "warning",
        "where": "cpu:0",
        "envs": [],
        "text": found.text,
        "value": found.value,
        "threshold": found.threshold,
        "round": 1,
        "step": 1,
        "time": found.time,
    }


def test_failing_command_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = train(tmp_path, "false")
    logged = [event.text for event in events if isinstance(event, ev.Logged)]
    printed = capsys.readouterr().err
    assert " ".join([*logged, printed]).count("--on-alert false failed with exit code 1") == 1


def test_hanging_command_delays_the_end_by_a_limit_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(alerts, "COMMAND_LIMIT_S", 0.2)
    events = train(tmp_path, "sleep 600")
    texts = [event.text for event in events if isinstance(event, ev.Logged)]
    assert "was ended, because it ran for more than" in " ".join([*texts, capsys.readouterr().err])


@pytest.mark.parametrize("command", ["no-such-program", "'open", ""])
def test_invalid_command_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no-tui", "--on-alert", command]) == 2
    assert "--on-alert" in capsys.readouterr().err
