"""The `demo` command."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import msgspec
import pytest

from esper.cli.main import main
from esper.common.configuration.config import Config
from esper.recordings import events as ev
from esper.recordings.effects.plantings import read_results, summarise_with_effects
from esper.recordings.effects.store import EffectStore
from esper.recordings.files.runs import find_demo
from esper.recordings.history.address import find_moment
from esper.recordings.history.history import open_history
from tests.terminals import Terminal


def test_demo_is_replayed_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["demo", "--no-tui"]) == 0

    printed = capsys.readouterr()
    assert printed.out.startswith("run digits_impaired-")
    assert printed.err == ""


def test_demo_with_faults_has_rollbacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--faults", "--no-tui"]) == 0
    assert "governor rollback" in capsys.readouterr().out


def test_demo_missing_from_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "lib" / "esper" / "recordings" / "files" / "runs.py"
    monkeypatch.setattr("esper.recordings.files.runs.__file__", str(module))

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
        assert b"next: `esper-sanctum` trains, `esper-sanctum demo --faults` shows faults" in terminal.output
    assert (tmp_path / "errors.txt").read_bytes() == b""


def test_demo_opens_like_a_replay(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--no-tui", "--speed", "0"]) == 2
    assert "--speed 0.0 is not valid" in capsys.readouterr().err


def test_demo_learns_by_default_settings_and_has_at_most_one_rollback() -> None:
    history = open_history(find_demo())
    summary = summarise_with_effects(history)
    defaults = json.loads(msgspec.json.encode(Config()))
    changed = {
        name
        for name, recorded in summary.config.items()
        for key, value in (recorded if isinstance(recorded, dict) else {name: recorded}).items()
        if value != (defaults[name] if isinstance(recorded, dict) else defaults)[key]
    }  # a key that is newer than the recording is missing there
    assert changed <= {"envs", "rounds", "seed", "slots", "training"}  # slots and training: those of the task
    medians = [finished.score[1] for finished in summary.finished]
    assert statistics.fmean(medians[-3:]) > statistics.fmean(medians[:3]) + 0.15
    assert summary.rollbacks <= 1
    assert min(seeds.fossilized for seeds in summary.seeds.values()) > 0
    assert sum(isinstance(event, ev.AnomalyFound) for event in history.events()) <= 2


def test_demo_has_exact_effects_of_the_best_episode_of_its_last_round() -> None:
    """`whatif telemetry/demo` answers from the stored simulations, and the dashboard shows them."""
    history = open_history(find_demo())
    *_, last = read_results(history, EffectStore(history.path).read())
    results = next(known for known in last.results if known.episode.env == 2)
    assert last.round == len(history.rounds)
    assert results.is_exact
    assert max(effect.net_return for effect in results.decision_effects().values()) > 0.1


def test_first_anomaly_of_the_demo_with_faults_is_its_rollback() -> None:
    history = open_history(find_demo(faults=True))
    moment = find_moment("anomaly:1", history)
    assert moment is not None
    state = history.state_at(moment.position)
    assert [anomaly.found.rule for anomaly in state.active_anomalies()] == ["governor rollback"]
    assert sum(isinstance(event, ev.AnomalyFound) for event in history.events()) <= 20
