"""The `demo` command."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.cli.commands.replay import find_demo
from esper.cli.main import main
from esper.history.address import find_moment
from esper.history.history import open_history
from esper.telemetry import events as ev
from tests.terminals import Terminal


def test_demo_is_replayed_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["demo", "--no-tui"]) == 0

    printed = capsys.readouterr()
    assert printed.out.startswith("run digits_impaired-")
    assert printed.err == ""


def test_demo_missing_from_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "lib" / "esper" / "cli" / "commands" / "replay.py"
    monkeypatch.setattr("esper.cli.commands.replay.__file__", str(module))

    assert main(["demo", "--no-tui"]) == 2

    directory = tmp_path / "lib" / "esper" / "demo"
    assert capsys.readouterr().err == (
        f"esper-sanctum: the demo is missing: directory {directory} not found; install the package again\n"
    )


def test_demo_draws_on_standard_output_if_standard_error_is_redirected(tmp_path: Path) -> None:
    with (
        (tmp_path / "errors.txt").open("wb") as errors,
        Terminal("demo", cwd=tmp_path, stderr=errors.fileno()) as terminal,
    ):
        terminal.wait_for("REPLAY")
        terminal.type("q")

        assert terminal.leave() == 0
        terminal.assert_restored()
    assert (tmp_path / "errors.txt").read_bytes() == b""


def test_demo_opens_like_a_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--no-tui", "--speed", "0"]) == 2
    assert "--speed 0.0 is not valid" in capsys.readouterr().err


def test_first_anomaly_of_the_demo_is_its_rollback() -> None:
    history = open_history(find_demo())
    moment = find_moment("anomaly:1", history)
    assert moment is not None
    state = history.state_at(moment.position)
    assert [anomaly.found.rule for anomaly in state.active_anomalies()] == ["governor rollback"]
    assert sum(isinstance(event, ev.AnomalyFound) for event in history.events()) <= 20
