"""The process that simulates an episode for the dashboard: its messages, and its end."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.common.configuration.config import ConfigError
from esper.common.system.process import python_command
from esper.recordings.effects.change import UNCHANGED, WITHOUT_GROWTH, without_decision
from esper.recordings.effects.episode import RecordedEpisode, read_episode
from esper.recordings.effects.messages import AnyRequest, RoundsRequest, SimulationRequest, SimulationUpdate
from esper.recordings.effects.store import RESULTS_FILE, EffectStore
from esper.recordings.events.codec import encode_json, make_decoder
from esper.recordings.history.history import open_history
from esper.studies.simulation.process import simulate
from tests.factory import run_started
from tests.recordings.effects.growing import growing_run
from tests.recordings.files.recordings import recording, write_segment
from tests.studies.simulation.runs import record

PROGRAM = "from esper.studies.simulation.process import main; main()"


def train(directory: Path, *options: str) -> Path:
    """Train a tiny run, and return its directory."""
    size = ("--envs", "1", "--steps", "4", "--rounds", "1", "--devices", "cpu:0")
    assert main(["--no-tui", *size, *options, "--telemetry-dir", str(directory)]) == EXIT_OK
    (run,) = directory.iterdir()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two plantings."""
    plan = ("--policy", "plan", "--plan", "1:norm@early 2:norm@mid")
    return train(tmp_path_factory.mktemp("runs"), "--task", "digits", "--training.samples-per-epoch", "64", *plan)


def updates_of(request: AnyRequest) -> list[SimulationUpdate]:
    updates: list[SimulationUpdate] = []
    simulate(request, updates.append)
    return updates


def decided(episode: RecordedEpisode) -> list[int]:
    """Steps of the decisions of an episode."""
    return [step.step for step in episode.steps if step.op != "wait"]


def test_simulation_sends_episode_progress_and_results_and_stores_them(run: Path) -> None:
    first, *others = updates_of(SimulationRequest(recording=str(run), round=1, env=0))
    episode = read_episode(open_history(run), 1, 0)
    assert first.episode == episode
    assert decided(episode)[:2] == [1, 2]
    counts = [update.decisions for update in others[:2]]
    assert counts == [len(decided(episode))] * 2  # before torch is imported, and after the known effects were read
    assert others[2].progress is not None
    assert others[2].progress[0] == 0
    found = [update.simulation for update in others if update.simulation]
    assert found[0].change == UNCHANGED
    assert found[0].is_exact
    assert {simulation.change.key for simulation in found[1:]} == {
        without_decision(episode, step).key for step in decided(episode)
    }
    assert EffectStore(run).read() == found


def test_simulation_of_one_decision_computes_nothing_else(run: Path) -> None:
    (run / "what-if.jsonl").unlink(missing_ok=True)
    updates = updates_of(SimulationRequest(recording=str(run), round=1, env=0, without=[2]))
    assert len([update for update in updates if update.simulation]) == 2


def test_own_task_that_was_not_named_is_not_imported(tmp_path: Path) -> None:
    started, *others = growing_run()
    own = msgspec.structs.replace(started, task="own", config={**run_started(1).config, "task": "own.py"})
    write_segment(tmp_path / "run", 1, recording([own, *others]))
    with pytest.raises(ConfigError, match=r"is not built in; name it with --task FILE\.py"):
        simulate(SimulationRequest(recording=str(tmp_path / "run"), round=1, env=0), lambda _: None)
    with pytest.raises(ConfigError, match=r"is not built in; name it with --task FILE\.py"):
        references_of(tmp_path / "run")


@pytest.fixture
def rounds(tmp_path: Path) -> Path:
    """A run of two rounds with two hosts each, and a seed in each episode."""
    plan: dict[str, Any] = {"policy": "plan", "plan": "1:norm@early"}
    return record(tmp_path, **plan, steps=4)


def references_of(run: Path) -> list[SimulationUpdate]:
    """Updates for the references of both rounds, the last round first."""
    return updates_of(RoundsRequest(recording=str(run), rounds=[2, 1, 3], aim="references"))


def found_in(updates: list[SimulationUpdate]) -> list[tuple[int, list[int]]]:
    """Round and envs of all references that were sent."""
    return [(host.round, host.envs) for update in updates for host in update.references or ()]


BOTH_ROUNDS = [(2, [0]), (2, [1]), (1, [0]), (1, [1])]


def test_references_of_rounds_are_stored_and_simulated_once(rounds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updates = references_of(rounds)
    assert found_in(updates) == BOTH_ROUNDS
    stored = EffectStore(rounds).read()
    assert [found.change for found in stored].count(WITHOUT_GROWTH) == 4
    assert all(host.is_exact for update in updates for host in update.references or ())
    monkeypatch.setattr("esper.studies.simulation.recording.RecordingSimulator", None)
    assert sorted(found_in(references_of(rounds))) == sorted(BOTH_ROUNDS)
    assert EffectStore(rounds).read() == stored


def test_references_go_on_after_a_kill(rounds: Path) -> None:
    references_of(rounds)
    store = rounds / RESULTS_FILE
    lines = store.read_bytes().splitlines(keepends=True)
    whole = EffectStore(rounds).read()
    store.write_bytes(b"".join(lines[:-2]) + lines[-2][: len(lines[-2]) // 2])  # killed while it wrote the third
    assert sorted(found_in(references_of(rounds))) == sorted(BOTH_ROUNDS)
    resumed = EffectStore(rounds).read()
    assert {(found.round, found.env, found.change.key): found for found in resumed} == {
        (found.round, found.env, found.change.key): found for found in whole
    }
    assert [found.change for found in resumed].count(WITHOUT_GROWTH) == 4


def test_references_on_a_full_disk_are_sent_with_a_warning(rounds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("esper.recordings.effects.store.append_result", refuse)
    updates = references_of(rounds)
    assert found_in(updates) == BOTH_ROUNDS
    assert "No space left" in str(updates[-1].warning)
    assert EffectStore(rounds).read() == []


def test_effects_of_the_seeds_of_a_round_are_simulated_once(rounds: Path) -> None:
    request = RoundsRequest(recording=str(rounds), rounds=[2], aim="seeds")
    updates = updates_of(request)
    assert [update.episode.env for update in updates if update.episode] == [0, 1]
    assert len([update.simulation for update in updates if update.simulation]) == 4
    assert updates_of(request) == []


def test_process_says_why_it_cannot_read_and_ends_with_the_dashboard(tmp_path: Path) -> None:
    command, environment = python_command(f"import time; {PROGRAM}; time.sleep(600)")
    request = SimulationRequest(recording=str(tmp_path / "none"), round=1, env=0)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(encode_json(request) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert "no recording found" in str(make_decoder(SimulationUpdate).decode(line).error)
        process.stdin.close()
        assert process.wait(60) == 0
