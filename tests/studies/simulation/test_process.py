"""The process that simulates an episode for the dashboard: its messages, and its end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.common.configuration.config import ConfigError
from esper.common.system.process import python_command
from esper.recordings.effects.change import UNCHANGED, without_decision
from esper.recordings.effects.episode import RecordedEpisode, read_episode
from esper.recordings.effects.messages import SimulationRequest, SimulationUpdate
from esper.recordings.effects.store import EffectStore
from esper.recordings.events.codec import encode_json, make_decoder
from esper.recordings.history.history import open_history
from esper.studies.simulation.process import simulate
from tests.factory import run_started
from tests.recordings.effects.growing import growing_run
from tests.recordings.files.recordings import recording, write_segment

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


def updates_of(request: SimulationRequest) -> list[SimulationUpdate]:
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
