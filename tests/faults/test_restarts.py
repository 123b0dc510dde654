"""torchrun restarts a run whose ranks are killed: it resumes, and ends as one that was not killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints, step_number_of
from tests.ranks import rank_processes
from tests.runs import computed, only_run, recorded

TIMEOUT_S = 300
KILLS = 4
OPTIONS = (
    *("--no-tui", "--devices", "cpu:0", "cpu:1", "--envs", "3", "--steps", "4", "--checkpoint-every", "1"),
    *("--training.samples-per-epoch", "256", "--ppo.hidden", "16", "--ppo.epochs", "2", "--ppo.minibatches", "2"),
)


class Launched:
    """A run that torchrun has started.

    Args:
        restarts: Limit of `--max-restarts`.
        ranks: Number of ranks.
    """

    def __init__(self, cwd: Path, *options: str, restarts: int = 0, ranks: int = 2) -> None:
        self.cwd = cwd
        launcher = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
        self.output = cwd / "output.txt"
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *launcher, "-m", "esper", *OPTIONS, *options],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def ranks(self) -> dict[str, psutil.Process]:
        """Return the processes of the ranks that run now."""
        return rank_processes(self.process)

    def progress(self) -> tuple[str, int]:
        """Return the newest segment that is being written, and its number of steps."""
        found = ("", 0)
        for path in self.cwd.glob("telemetry/*/events-*.jsonl"):
            with suppress(FileNotFoundError):  # it was packed meanwhile
                found = max(found, (path.name, path.read_bytes().count(b'"PhaseTimed"')))
        return found

    def wait_for_a_step(self) -> None:
        """Wait until a further step is recorded, or the run has ended."""
        before = self.progress()
        self.wait_until(lambda: (now := self.progress()) > before and now[1] > 0)

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Wait until something happens, or the run has ended."""
        deadline = time.monotonic() + TIMEOUT_S
        while not happened() and self.process.poll() is None:
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.02)

    def kill(self, rank: str) -> None:
        """Kill a rank, and wait until no rank of this start is left."""
        started = self.ranks()
        if rank not in started:
            return  # it has just ended
        started[rank].kill()
        self.wait_until(lambda: not any(each.is_running() for each in started.values()))

    def end(self) -> None:
        if self.process.poll() is None:
            for each in [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]:
                each.kill()
            self.process.wait()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    launched: list[Launched] = []

    def start(*options: str, cwd: Path = tmp_path, **arguments: int) -> Launched:
        launched.append(Launched(cwd, *options, **arguments))
        return launched[-1]

    yield start
    for each in launched:
        each.end()


@pytest.mark.slow
def test_random_kills_of_ranks_change_nothing(launch: Callable[..., Launched], tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = launch("--rounds", "6", cwd=tmp_path / "whole")
    assert whole.process.wait(TIMEOUT_S) == 0, whole.output.read_text()
    draw = random.Random(0)
    run = launch("--rounds", "6", restarts=KILLS)
    for _ in range(KILLS):
        run.wait_until(lambda: len(run.ranks()) == 2)
        if draw.random() < 0.7:  # while it trains, else while it is set up
            run.wait_for_a_step()
            time.sleep(draw.uniform(0, 2))
        else:
            time.sleep(draw.uniform(0, 6))
        run.kill(draw.choice("01"))
    assert run.process.wait(TIMEOUT_S) == 0, run.output.read_text()
    assert "Traceback" not in run.output.read_text()
    assert repr(computed(recorded(only_run(tmp_path)))) == repr(computed(recorded(only_run(whole.cwd))))


@pytest.mark.slow
def test_the_run_continues_with_fewer_ranks(launch: Callable[..., Launched], tmp_path: Path) -> None:
    """As after the loss of a machine: the scheduler starts the same command with one rank."""
    first = launch("--rounds", "3", "--resume", "auto")
    first.wait_until(lambda: any(map(list_checkpoints, tmp_path.glob("telemetry/*"))))
    first.kill("1")
    assert first.process.wait(TIMEOUT_S) == 1
    assert "rank 0 has lost another of the 2 ranks" in first.output.read_text()
    second = launch("--rounds", "3", "--resume", "auto", ranks=1)
    assert second.process.wait(TIMEOUT_S) == 0, second.output.read_text()
    run = only_run(tmp_path)
    assert f"continues telemetry/{run.name}" in second.output.read_text()
    assert f"run {run.name}: done" in second.output.read_text()
    third = launch("--rounds", "3", "--resume", "auto", ranks=1)
    assert third.process.wait(TIMEOUT_S) == 0, third.output.read_text()
    assert "has finished all of its rounds (3);" in third.output.read_text()
    assert only_run(tmp_path) == run


@pytest.mark.slow
def test_a_restart_does_not_go_back_to_the_checkpoint_that_was_named(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:
    first = launch("--rounds", "2", ranks=1)
    assert first.process.wait(TIMEOUT_S) == 0, first.output.read_text()
    run = only_run(tmp_path)
    named, _ = list_checkpoints(run)
    second = launch("--rounds", "12", "--keep", "1", "--resume", str(named), restarts=1)
    second.wait_until(lambda: step_number_of(list_checkpoints(run)[-1])[0] > 3)
    second.kill("1")
    assert second.process.wait(TIMEOUT_S) == 0, second.output.read_text()
    restored = [
        event.path for event in recorded(run) if isinstance(event, ev.CheckpointSaved) and event.origin == "restore"
    ]
    assert len(restored) == 2
    assert Path(restored[0]) == named
    assert step_number_of(Path(restored[1]))[0] > 3
