"""Plays that run side by side."""

from __future__ import annotations

from pathlib import Path

from esper.cli.main import main
from esper.networks.tasks.prepare import prepare_task
from esper.recordings.effects.change import without_steps
from esper.recordings.effects.episode import read_round
from esper.recordings.history.history import open_history
from esper.studies.simulation.simulator import SimulationJob, Simulator


def test_play_begins_after_the_others_have_ended(tmp_path: Path) -> None:
    size = ("--envs", "2", "--steps", "4", "--rounds", "1", "--devices", "cpu:0", "--training.samples-per-epoch", "64")
    assert main(["--no-tui", "--task", "digits", "--policy", "random", *size, "--telemetry-dir", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    short, whole = read_round(open_history(run), 1).values()
    short = short._replace(steps=short.steps[:2], ended=None)
    jobs = [
        SimulationJob(episode=short, changes=[without_steps([1])]),  # ends after step 2
        SimulationJob(episode=whole, changes=[without_steps([4])]),  # begins with step 4
    ]
    simulator = Simulator(whole.config, prepare_task(whole.config), ["cpu:0"], 4, tmp_path)
    found = list(simulator.simulate(jobs, lambda _: None))
    simulator.close()
    assert [len(simulation.trajectory.rewards) for simulation in found] == [2, 4, 2, 4]
