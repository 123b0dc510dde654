"""Recorded runs to be simulated, and tasks whose envs break down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esper.networks.tasks import load_task
from esper.networks.tasks.prepare import prepare_task
from esper.recordings.effects.change import Change
from esper.recordings.effects.episode import RecordedEpisode, read_round
from esper.recordings.effects.results import Simulation
from esper.recordings.history.history import open_history
from esper.studies.simulation.simulator import SimulationJob, Simulator
from tests.runs import LiveRun

OWN_TASK = '''
"""A network of the user: batch norm, dropout, a frozen part, augmentation, an own blueprint; its loss can be NaN."""

import torch
from torch import nn

import esper


@esper.blueprint("bend_{name}", "BCHW", causal="never")
class Bend(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.last = esper.starts_at_zero(nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x):
        return x + self.last(self.drop(x).tanh())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.1))
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        logits = self.head(self.body(self.stem(x)).mean((2, 3)))
        return logits * (float("nan") if self.body.training and torch.rand(()) < {nan} else 1.0)


def data(directory):
    draw = torch.Generator().manual_seed(0)
    patterns = torch.randn(4, 1, 8, 8, generator=draw)

    def split(samples):
        y = torch.randint(4, (samples,), generator=draw)
        return patterns[y] + torch.randn(samples, 1, 8, 8, generator=draw), y

    return esper.Splits(train=split(128), validation=split(64), test=split(32))


task = esper.Task(
    name="{name}", model=Net, slots={{"early": "stem", "late": "body"}}, data=data, train=["body", "head"],
    augment=lambda x, y, generator: (x + 0.01 * torch.randn(x.shape), y),
    batch_size=32, optimizer=esper.SGD(0.05), seed_optimizer=esper.SGD(0.05),
    blueprints=["norm", "conv_light", "bend_{name}"],  # a worker does not know those of other tasks
)
'''


def write_task(directory: Path, name: str, nan: float = 0.0) -> str:
    """Write a task to a file.

    Args:
        nan: Probability that the output of a batch is NaN in training.

    Returns:
        Path of the file.
    """
    path = directory / f"{name}.py"
    path.write_text(OWN_TASK.format(name=name, nan=nan))
    return str(path)


def record(directory: Path, **options: Any) -> Path:
    """Return the directory of a finished run of random decisions; options override its configuration."""
    live = LiveRun(directory, **{"policy": "random", "rounds": 2, "steps": 6, "envs": 2, **options})
    assert live.start().finish().status == "done"
    return live.run.directory


def episodes(run: Path, *rounds: int) -> list[RecordedEpisode]:
    """Return all episodes of some rounds."""
    history = open_history(run)
    return [episode for number in rounds for episode in read_round(history, number).values()]


def simulate(
    found: Sequence[RecordedEpisode],
    *changes: Change,
    lanes: Sequence[str] = ("cpu:0",),
    num_plays: int = 99,
    repeat: int = 0,
    task: str | None = None,
) -> list[Simulation]:
    """Simulate episodes of one run, unchanged and with the same changes.

    Returns:
        Results by episode, in the order of the episodes, each first unchanged, then with each change.
    """
    simulator = Simulator(
        found[0].config, prepare_task(found[0].config, load_task(task) if task else None), lanes, num_plays, Path()
    )
    try:
        jobs = [SimulationJob(episode=episode, changes=changes, repeat=repeat) for episode in found]
        results = list(simulator.simulate(jobs, lambda _: None))
    finally:
        simulator.close()
    order = {(episode.round, episode.env): index for index, episode in enumerate(found)}
    return sorted(results, key=lambda result: order[result.round, result.env])
