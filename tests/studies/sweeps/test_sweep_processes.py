"""Two processes of `sweep` share a study, and are killed: no trial is lost, and none is trained to its end twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import TrialState

from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.files.notes import read_notes
from esper.recordings.files.run_lock import is_live, read_holder
from esper.recordings.files.runs import list_runs
from esper.recordings.history.run_info import read_run_info
from esper.studies.sweeps.run_lookup import find_run
from tests.runs import recorded
from tests.studies.sweeps.fakes import make_plan, open_study

SWEEP = """
seeds = [1, 2]
over = 2
[run]
envs = 3
rounds = 4
steps = 4
checkpoint-every = 1
training.samples-per-epoch = 256
ppo.hidden = 16
ppo.epochs = 2
ppo.minibatches = 2
[vary]
"ppo.entropy-coef" = [0.0, 0.02, 0.08]
"""
TIMEOUT_S = 600.0


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "esper", "sweep", "s.toml", "--jobs", "1"]
    with (folder / "sweep.log").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)


def wait_for(condition: Callable[[], object], folder: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, (folder / "sweep.log").read_text()
        time.sleep(0.05)


def live_run_with_a_round(telemetry: Path, trials: set[int]) -> Path | None:
    """Return the live run of one of the trials that has finished a round, and so has a checkpoint."""
    for trial in trials:
        run = find_run(telemetry, "s", trial)
        if run is not None and is_live(run) and list_checkpoints(run):
            return run
    return None


@pytest.mark.slow
def test_killed_process_loses_no_trial(tmp_path: Path) -> None:
    telemetry = tmp_path / "telemetry"
    plan = make_plan(tmp_path, SWEEP)
    first, second = start(tmp_path), start(tmp_path)
    wait_for(lambda: live_run_with_a_round(telemetry, set(range(6))), tmp_path)

    first.kill()  # its run goes on without it
    assert first.wait() == -signal.SIGKILL
    first = start(tmp_path)
    wait_for(lambda: live_run_with_a_round(telemetry, set(range(2, 6))), tmp_path)
    second.kill()  # and now with its runs, as a machine that loses power
    for run in list_runs(telemetry):
        if is_live(run) and (holder := read_holder(run)):
            os.kill(holder.pid, signal.SIGKILL)
    assert second.wait() == -signal.SIGKILL
    second = start(tmp_path)
    assert (first.wait(TIMEOUT_S), second.wait(TIMEOUT_S)) == (0, 0), (tmp_path / "sweep.log").read_text()

    infos = open_study(plan, telemetry).trials()
    assert [info.state for info in infos] == [TrialState.COMPLETE] * 6
    assert len(open_study(plan, telemetry).study.trials) == 6  # none was added twice
    ends: dict[int | None, int] = dict.fromkeys(range(6), 0)
    for run in list_runs(telemetry):
        done = [event for event in recorded(run) if isinstance(event, ev.RunEnded) and event.outcome == "done"]
        ends[read_notes(run).trial] += len(done)
    assert ends == dict.fromkeys(range(6), 1)
    values = {(str(info.setting), info.seed): info.frozen.value for info in infos}
    assert len(set(values.values())) > 1  # real results: the random seeds differ
    assert " resumes" in (tmp_path / "sweep.log").read_text()


@pytest.mark.slow
def test_sigterm_stops_the_runs_with_a_checkpoint(tmp_path: Path) -> None:
    telemetry = tmp_path / "telemetry"
    plan = make_plan(tmp_path, SWEEP.replace("[1, 2]", "[1]").replace("[0.0, 0.02, 0.08]", "[0.02]"))
    sweep = start(tmp_path)
    wait_for(lambda: live_run_with_a_round(telemetry, {0}), tmp_path)
    sweep.terminate()
    assert sweep.wait(TIMEOUT_S) == 0
    (run,) = list_runs(telemetry)
    assert read_run_info(run, 0.0, 0.0).state == "stopped"
    assert [info.state for info in open_study(plan, telemetry).trials()] == [TrialState.RUNNING]
    assert start(tmp_path).wait(TIMEOUT_S) == 0
    assert list_runs(telemetry) == [run]
    assert read_run_info(run, 0.0, 0.0).state == "done"
    assert [info.state for info in open_study(plan, telemetry).trials()] == [TrialState.COMPLETE]
    assert sorted(path.name for path in run.glob("output*")) == ["output-2.log", "output.log"]
