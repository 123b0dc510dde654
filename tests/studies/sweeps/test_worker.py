"""Runs of a study: every trial is found, resumed or started, and ends once."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from esper.common.configuration.config import ConfigError
from esper.common.system.process import HostMemory
from esper.recordings.files.notes import RunNotes, read_notes
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.studies.sweeps import memory, trial_run, worker
from esper.studies.sweeps.paths import FileLock
from esper.studies.sweeps.results import study_results
from esper.studies.sweeps.worker import SweepWorker
from tests.studies.sweeps.fakes import GRID, FakeRuns, make_plan, open_study, write_run


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_run, "RESTART_DELAY_S", 0.0)


def work(folder: Path, runs: FakeRuns, text: str = GRID, jobs: int = 1) -> list[str]:
    """Start a sweep once, and return what it printed."""
    said: list[str] = []
    study = open_study(make_plan(folder, text), folder / "telemetry")
    SweepWorker(study, [("cpu:0",)] * jobs, said.append, runs, poll_s=0.01).run()
    return said


def states(folder: Path, text: str = GRID) -> list[TrialState]:
    return [info.state for info in open_study(make_plan(folder, text), folder / "telemetry").trials()]


def test_grid_is_run_seed_by_seed_once(tmp_path: Path) -> None:
    runs = FakeRuns()
    said = work(tmp_path, runs)
    assert [trial for trial, _ in runs.started] == [0, 1, 2, 3]
    assert (
        "trial 1 (ppo.entropy-coef 0.08, seed 1) done: last 2 rounds: mean return +0.800; run run-1-1; 2 left" in said
    )
    assert work(tmp_path, runs) == []  # nothing is left
    results = study_results(open_study(make_plan(tmp_path), tmp_path / "telemetry"))
    best, other = results.settings
    assert (best.setting, best.done, best.measures["return"].by_seed) == (
        {"ppo.entropy-coef": 0.08},
        2,
        {"1": pytest.approx(0.8), "2": pytest.approx(0.8)},
    )
    assert other.difference is not None
    assert (other.difference.mean, other.measures["score"].mean) == (pytest.approx(-0.8), 0)


def test_killed_runs_are_resumed_or_started_again(tmp_path: Path) -> None:
    """Killed with a checkpoint, before the first one, and before the run has a directory."""
    first = {0: "killed", 1: "lost", 2: "unborn"}
    runs = FakeRuns(lambda trial, attempt: first.get(trial, "done") if attempt == 1 else "done")
    work(tmp_path, runs)
    assert runs.started == [(0, None), (0, "run-0-1"), (1, None), (1, None), (2, None), (2, None), (3, None)]
    assert read_notes(tmp_path / "telemetry" / "run-1-1").archived
    assert states(tmp_path) == [TrialState.COMPLETE] * 4


def test_trials_of_a_killed_sweep_are_taken_over_with_their_runs(tmp_path: Path) -> None:
    runs = FakeRuns(lambda trial, attempt: "killed" if attempt == 1 else "done")
    study = open_study(make_plan(tmp_path), tmp_path / "telemetry")
    living, dead = study.claim(), study.claim()
    assert living is not None
    assert dead is not None
    telemetry = tmp_path / "telemetry"
    options = {"envs": 2, "rounds": 3, "seed": 1, "ppo.entropy-coef": 0.08}
    write_run(telemetry / "finished", options, RunNotes(study="s", trial=1), [0.5, 0.7, 0.9])
    dead.release()  # as the kernel does when a process is killed
    said = work(tmp_path, runs)
    assert said[0].startswith(
        "trial 1 (ppo.entropy-coef 0.08, seed 1) done: last 2 rounds: mean return +0.800; run finished"
    )
    assert 0 not in [trial for trial, _ in runs.started]  # another process works on it
    assert states(tmp_path)[:2] == [TrialState.RUNNING, TrialState.COMPLETE]


def test_run_of_an_earlier_sweep_is_followed_from_its_start(tmp_path: Path) -> None:
    """The process of trial 0 has no directory yet, only the lock that it inherited."""
    telemetry = tmp_path / "telemetry"
    study = open_study(make_plan(tmp_path), telemetry)
    inherited = FileLock.try_acquire(study.paths.run_lock(0))
    assert inherited is not None
    options = {"envs": 2, "rounds": 3, "seed": 1, "ppo.entropy-coef": 0.0}

    def train() -> None:
        (telemetry / "orphan").mkdir()
        lock = RunLock(RunDirectory(telemetry / "orphan"))
        write_run(telemetry / "orphan", options, RunNotes(study="s", trial=0), [1.0], None)
        write_run(telemetry / "orphan", options, RunNotes(study="s", trial=0), [1.0, 1.0, 3.0])
        lock.release()
        inherited.release()

    timer = threading.Timer(0.1, train)
    timer.start()
    runs = FakeRuns()
    said = work(tmp_path, runs)
    timer.join()
    assert [trial for trial, _ in runs.started] == [1, 2, 3]
    assert any("done: last 2 rounds: mean return +2.000; run orphan" in sentence for sentence in said)


def test_failed_and_stopped_runs_end_no_study(tmp_path: Path) -> None:
    runs = FakeRuns(lambda trial, attempt: {0: "failed", 1: "stopped"}.get(trial, "done") if attempt == 1 else "done")
    said = work(tmp_path, runs)
    assert any("trial 0 (ppo.entropy-coef 0, seed 1) failed: no disk" in sentence for sentence in said)
    assert states(tmp_path) == [TrialState.FAIL, TrialState.RUNNING, TrialState.COMPLETE, TrialState.COMPLETE]
    work(tmp_path, runs)  # resumes the stopped run, and does not repeat the failed one
    assert runs.started[-1] == (1, "run-1-1")
    assert states(tmp_path)[:2] == [TrialState.FAIL, TrialState.COMPLETE]


def test_run_that_is_always_killed_fails(tmp_path: Path) -> None:
    runs = FakeRuns(lambda trial, attempt: "unborn" if trial == 0 else "done")
    work(tmp_path, runs)
    (failed,) = study_results(open_study(make_plan(tmp_path), tmp_path / "telemetry")).failed
    assert failed.reason == "its process was killed 4 times without a checkpoint in between"


@pytest.mark.parametrize("case", ["refused", "other configuration"])
def test_refused_start_ends_the_sweep_with_its_sentence(tmp_path: Path, case: str) -> None:
    if case == "refused":
        expected = r"^trial 0 \(ppo.entropy-coef 0, seed 1\) could not start: no such device$"
        runs = FakeRuns(lambda trial, attempt: "refused" if (trial, attempt) == (0, 1) else "done")
    else:
        expected = r"notes of .*/theirs name trial 0 of study s, but its ppo.entropy-coef is 0.5 and not 0.0; correct"
        runs = FakeRuns()
        options = {"envs": 2, "rounds": 3, "seed": 1, "ppo.entropy-coef": 0.5}
        (tmp_path / "telemetry").mkdir()
        write_run(tmp_path / "telemetry" / "theirs", options, RunNotes(study="s", trial=0), [1.0] * 3)
    with pytest.raises(ConfigError, match=expected):
        work(tmp_path, runs)
    if case == "refused":  # the trial is not lost
        work(tmp_path, runs)
        assert states(tmp_path) == [TrialState.COMPLETE] * 4


def test_drawn_values_that_do_not_fit_together_fail(tmp_path: Path) -> None:
    """The check of the program before the start, or only the run itself, detects it."""
    text = """
sampler = "random"
settings = 6
[run]
rounds = 3
envs = 2
[vary]
"ppo.gamma" = [0.9, 1.0]
"ppo.horizon" = ["episode", "continuing"]
"""
    runs = FakeRuns(lambda trial, attempt: "refused" if trial == 5 else "done", lambda options: 1.0)
    work(tmp_path, runs, text)
    study = open_study(make_plan(tmp_path, text), tmp_path / "telemetry")
    reasons = {failed.trial: failed.reason for failed in study_results(study).failed}
    unfit = {
        info.trial for info in study.trials() if info.setting.values == {"ppo.gamma": 1.0, "ppo.horizon": "continuing"}
    }
    assert unfit
    assert reasons.keys() == unfit | {5}
    assert all("needs a --ppo.gamma below 1" in reasons[trial] for trial in unfit)


def test_pruned_run_keeps_its_last_report(tmp_path: Path) -> None:
    text = GRID.replace("seeds = [1, 2]", "seeds = [1, 2, 3, 4]\nprune = true").replace("rounds = 3", "rounds = 6")
    study = open_study(make_plan(tmp_path, text), tmp_path / "telemetry")
    telemetry = tmp_path / "telemetry"

    class Bad(FakeRuns):
        """Bad runs are live until they get SIGTERM, which stops them."""

        def __call__(self, arguments: Any, output: Path, inherited: int) -> Any:
            process = super().__call__(arguments, output, inherited)
            words = dict(pairwise(arguments))
            trial = int(words["--trial"])
            if trial != 7:
                return process
            run = telemetry / f"run-{trial}-1"
            options: dict[str, Any] = {"envs": 2, "rounds": 6, "seed": 4, "ppo.entropy-coef": 0.08}
            notes = RunNotes(study="s", trial=trial)
            write_run(run, options, notes, [-9.0] * 4, None)
            lock = RunLock(RunDirectory(run))
            process.code = None

            def terminate() -> None:
                write_run(run, options, notes, [-9.0] * 4, "stopped")
                lock.release()
                process.code = 0

            process.terminate = terminate
            return process

    SweepWorker(study, [("cpu:0",)], lambda _: None, Bad(), poll_s=0.01).run()
    last = study.trials()[7]
    assert (last.state, last.frozen.value) == (TrialState.PRUNED, -9)
    assert [setting.pruned for setting in study_results(study).settings] == [0, 1]  # a setting with all seeds is better


def test_run_waits_for_the_memory_that_the_largest_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA counts the visible GPUs, and NVML all of them."""
    study = open_study(make_plan(tmp_path), tmp_path / "telemetry", optuna.storages.InMemoryStorage())
    said: list[str] = []
    running = SweepWorker(study, [("cuda:1",)], said.append, FakeRuns(), poll_s=0.01)
    free = {"host": 2**30, 5: 2**30}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(worker, "host_memory", lambda: HostMemory(free["host"], 2**31))
    nvml = SimpleNamespace(
        nvmlDeviceGetHandleByIndex=int, nvmlDeviceGetMemoryInfo=lambda n: SimpleNamespace(free=free[n])
    )
    monkeypatch.setattr(memory, "load_nvml", lambda: nvml)
    assert running._missing_memory(("cuda:1",)) == ""  # nothing was measured yet
    for host, gpu in ((2**29, None), (2**28, 2**29)):
        trial = study.claim()
        assert trial is not None
        trial.note_memory(host, gpu)
    assert running._missing_memory(("cuda:1",)) == ""
    free[5] = 2**28
    expected = "a run of this study needs 512.0 MiB on cuda:1, and 256.0 MiB are free"
    assert running._missing_memory(("cuda:1",)) == expected
    free["host"] = 2**28
    assert running._missing_memory(("cpu:0",)) == "a run of this study needs 512.0 MiB, and 256.0 MiB are free"
