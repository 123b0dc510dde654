"""Growths of several ranks, started by torchrun: equal to those of one process to the bit."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from esper.recordings import events as ev
from esper.recordings.candidates.candidates import FROM_SCRATCH, WIDE_HOST
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.history.history import open_history
from esper.studies.harvest.structure import WEIGHTS_FILE
from esper.training.checkpoint.files import read_checkpoint
from tests.ranks import rank_processes
from tests.runs import computed, only_run, recorded

PATIENCE_S = 300
KILLS = 2
ENVS = 5
OPTIONS = (
    *("--no-tui", "--task", "{home}/small.py", "--envs", str(ENVS), "--trials", "9", "--steps", "6", "--seed", "3"),
    *("--compare", "--all"),
)

GROWS = """
import sys

from esper.studies.growth import growth

growth.FRESH_HOSTS = 3  # before other modules import it

from esper.cli.main import main
from esper.studies.growth import director, results
from esper.studies.harvest import grown
from esper.training.envs.env import Env

grown.export_program = lambda *_: "not tried"  # it takes ten seconds
train = Env.train_epoch


def choose(found, _):
    fresh = [one for one in found if one.fresh_scores and one.seeds and one.name != "from scratch"]
    return max(fresh, key=lambda one: one.name, default=None)


def train_epoch(env, step):
    if step == 2 and [slot.blueprint for slot in env.network.slots] == [None, "norm"]:
        raise ValueError("no such number")
    return train(env, step)


director.choose = results.choose = choose
Env.train_epoch = train_epoch
sys.exit(main())
"""
"""Program in which the trainings of a plan fail, and the answer has seeds, so that networks are compared with it."""

SMALL_TASK = """
import torch
import esper


def data(directory):
    x = torch.randn(320, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] * x[:, 3] > 0).long()
    return esper.Splits(train=(x[:200], y[:200]), validation=(x[200:260], y[200:260]), test=(x[260:], y[260:]))


def model(width=1.0):
    hidden = round(6 * width)
    inner = [torch.nn.Linear(hidden, hidden), torch.nn.Tanh()]
    return torch.nn.Sequential(torch.nn.Linear(6, hidden), torch.nn.Tanh(), *inner, torch.nn.Linear(hidden, 3))


task = esper.Task(
    name="small", model=model, wide_model=model, slots={"first": "1", "second": "3"}, data=data,
    optimizer=esper.AdamW(0.01), seed_optimizer=esper.AdamW(0.01),
)
"""


class Machines:
    """Machines without a common directory, each with its own torchrun, on which one command grows a network.

    Args:
        home: Directory of the program and of its task.
        directories: Working directory of each machine; rank 0 is on the first.
        ranks: Number of ranks of each machine.
        restarts: Limit of `--max-restarts`.
    """

    def __init__(self, home: Path, *directories: Path, ranks: int = 1, restarts: int = 0) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = ("--master-addr", "127.0.0.1", "--master-port", str(port), "--nproc-per-node", str(ranks))
        devices = [f"cpu:{index}" for index in range(ranks)]
        self.processes: list[subprocess.Popen[str]] = []
        for node, directory in enumerate(directories):
            directory.mkdir(exist_ok=True)
            launcher = ["-m", "torch.distributed.run", "--nnodes", str(len(directories)), "--node-rank", str(node)]
            launcher += [*address, "--max-restarts", str(restarts)]
            self.processes.append(start(home, directory, *launcher, str(home / "grows.py"), devices=devices))

    def kill(self, rank: str) -> None:
        """Kill a rank of the first machine, and wait until no rank of this start is left."""
        started = rank_processes(self.processes[0])
        if rank in started:  # else it has just ended
            started[rank].kill()
        psutil.wait_procs(started.values(), PATIENCE_S)

    def wait(self) -> str:
        """Wait until the growth has ended, and return the output of the first machine."""
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in self.processes]
        assert [process.returncode for process in self.processes] == [0] * len(outputs), outputs
        return outputs[0]


def start(home: Path, cwd: Path, *program: str, devices: list[str]) -> subprocess.Popen[str]:
    """Start the command of a growth."""
    options = [option.format(home=home) for option in OPTIONS]
    return subprocess.Popen(
        [sys.executable, *program, "grow", *options, "--devices", *devices],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the program and its task, and of a growth of one process in `alone`."""
    directory = tmp_path_factory.mktemp("ranks")
    (directory / "grows.py").write_text(GROWS)
    (directory / "small.py").write_text(SMALL_TASK)
    (directory / "alone").mkdir()
    process = start(directory, directory / "alone", str(directory / "grows.py"), devices=["cpu:0"])
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    return directory


def text_of(value: object) -> str:
    """Return an event or a state as text, in which all lanes have the same name, and all runs."""
    return re.sub(r"[^']*/small-[-\d]+", "run", re.sub(r"(\d/)?cpu:\d", "cpu", repr(value)))


def assert_equal(run: Path, alone: Path) -> None:
    """Assert equal events, regardless of their order within a step, and equal checkpoints, networks and candidates."""
    got, wanted = (computed(recorded(each)) for each in (run, alone))
    assert sorted(map(text_of, got)) == sorted(map(text_of, wanted))
    searched = [[text_of(event) for event in events if isinstance(event, ev.SearchEvent)] for events in (got, wanted)]
    assert searched[0] == searched[1]
    states = [(history := open_history(each)).state_at(history.length).search for each in (run, alone)]
    candidates = [text_of(state and state.candidates) for state in states]  # table, chart and front show them
    assert candidates[0] == candidates[1]
    of_run, of_alone = (read_checkpoint(list_checkpoints(each)[-1]) for each in (run, alone))
    assert of_run.tensors.keys() == of_alone.tensors.keys()
    for name, tensor in of_alone.tensors.items():
        assert torch.equal(of_run.tensors[name], tensor), name
    weights = [{path.parent.name: path.read_bytes() for path in each.rglob(WEIGHTS_FILE)} for each in (run, alone)]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_two_ranks_grow_as_one_process(home: Path) -> None:
    alone = only_run(home / "alone")
    ended = [event for event in recorded(alone) if isinstance(event, ev.TrialEnded)]
    assert {"done", "pruned", "failed"} <= {event.outcome for event in ended}
    assert {WIDE_HOST, FROM_SCRATCH} <= {event.candidate for event in ended}
    output = Machines(home, home / "two", ranks=2).wait()
    assert output.count("run done") == 1  # one rank speaks
    assert_equal(only_run(home / "two"), alone)


@pytest.mark.slow
def test_stopped_growth_continues_on_machines_that_do_not_see_its_directory(home: Path) -> None:
    """It begins with two ranks, and ends with three."""
    first = Machines(home, home / "first", ranks=2)
    deadline = time.monotonic() + PATIENCE_S
    while not any(map(list_checkpoints, (home / "first").glob("telemetry/*"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.processes[0].send_signal(signal.SIGTERM)
    first.processes[0].communicate(timeout=PATIENCE_S)
    run = only_run(home / "first")
    before = list_checkpoints(run)[-1]
    output = Machines(home, home / "first", home / "second", home / "third").wait()
    assert f"continues the growth telemetry/{run.name}" in output
    assert list_checkpoints(run)[-1] != before
    assert not (home / "second" / "telemetry").exists()
    assert_equal(run, only_run(home / "alone"))


@pytest.mark.slow
def test_random_kills_of_ranks_change_nothing(home: Path) -> None:
    draw, directory = random.Random(0), home / "killed"
    machines = Machines(home, directory, ranks=2, restarts=KILLS)

    def newest() -> list[str]:
        return sorted(path.name for path in directory.glob("telemetry/*/checkpoints/round-*"))[-1:]

    for _ in range(KILLS):
        before = newest()
        while newest() == before and machines.processes[0].poll() is None:
            time.sleep(0.05)
        time.sleep(draw.uniform(0, 2))
        machines.kill(draw.choice("01"))
    assert "Traceback" not in machines.wait()
    assert_equal(only_run(directory), only_run(home / "alone"))
