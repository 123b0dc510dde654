"""Trials of a study in its storage: each setting and random seed counts once, whichever processes add it."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState

from esper.common.configuration.config import ConfigError
from esper.recordings.files.notes import RunNotes
from esper.studies.sweeps import study as study_module
from esper.studies.sweeps.results import study_results
from esper.studies.sweeps.storage import open_storage
from esper.studies.sweeps.study import HOST_ATTR, SweepStudy, first_random_setting
from tests.studies.sweeps.fakes import GRID, make_plan, open_study, write_run

DRAWN = """
sampler = "random"
settings = 3
seeds = [5, 6]
[vary]
"ppo.learning-rate" = { low = 1e-4, high = 1e-2, log = true }
"ppo.epochs" = { low = 1, high = 4 }
policy = ["ppo", "random"]
"""


def finish(study: SweepStudy, value: float = 1.0) -> list[tuple[int, str, int]]:
    """Claim and complete all trials, and return their numbers, settings and random seeds."""
    done: list[tuple[int, str, int]] = []
    while (trial := study.claim()) is not None:
        done.append((trial.number, str(trial.setting), trial.seed))
        trial._study.tell(trial._trial, value, state=TrialState.COMPLETE)
        trial.release()
    return done


def test_trials_added_by_two_machines_at_once_count_once(tmp_path: Path) -> None:
    """Machines that share only a database have no common lock, so each adds the whole grid."""
    plan, storage = make_plan(tmp_path), optuna.storages.InMemoryStorage()
    first = open_study(plan, tmp_path / "a", storage)
    for attrs in ({"setting": 0, "seed": 1, "trial": 0}, {"setting": 1, "seed": 2, "trial": 3}):
        first.study.enqueue_trial({"ppo.entropy-coef": 0.0}, user_attrs=attrs)
    second = open_study(plan, tmp_path / "b", storage)
    assert len(first.study.trials) == 6
    assert [(number, seed) for number, _, seed in finish(second)] == [(0, 1), (1, 1), (2, 2), (3, 2)]
    assert finish(first) == []
    assert [trial.state for trial in first.study.trials] == [TrialState.COMPLETE] * 4 + [TrialState.FAIL] * 2
    assert study_results(first).trials["total"] == study_results(first).trials["complete"] == 4


def test_threads_and_connections_claim_each_trial_once(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, DRAWN)
    studies = [open_study(plan, tmp_path / "telemetry") for _ in range(2)]
    found: list[list[tuple[int, str, int]]] = [[], [], [], []]

    def work(index: int) -> None:
        found[index] += finish(studies[index % 2])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = sorted(itertools.chain(*found))
    assert [number for number, _, _ in done] == list(range(6))
    assert sorted(seed for _, _, seed in done) == [5, 5, 5, 6, 6, 6]
    settings = {setting for _, setting, _ in done}
    assert len(settings) == 3  # each with both random seeds
    assert all((setting, 5) in [item[1:] for item in done] for setting in settings)


def test_draws_depend_on_the_study_and_not_on_the_process(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, DRAWN)
    settings = [finish(open_study(plan, tmp_path / name)) for name in ("a", "b")]
    assert settings[0] == settings[1]
    assert settings[0][0][1] == str(first_random_setting(plan))


def test_study_can_grow_by_settings_and_seeds(tmp_path: Path) -> None:
    before = finish(open_study(make_plan(tmp_path, DRAWN), tmp_path / "telemetry"))
    larger = DRAWN.replace("settings = 3", "settings = 4").replace("[5, 6]", "[5, 6, 7]")
    added = finish(open_study(make_plan(tmp_path, larger), tmp_path / "telemetry"))
    assert len(added) == 6
    assert {setting for _, setting, _ in before} == {setting for _, setting, seed in added if seed == 7 and _ < 9}


def test_random_seed_added_in_front_takes_new_numbers(tmp_path: Path) -> None:
    """The notes of runs name the numbers, so none may be used twice."""
    before = finish(open_study(make_plan(tmp_path), tmp_path / "telemetry"))
    added = finish(open_study(make_plan(tmp_path, GRID.replace("[1, 2]", "[3, 1, 2]")), tmp_path / "telemetry"))
    assert [(number, seed) for number, _, seed in before + added] == [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3)]


def test_trial_without_setting_is_completed_by_the_next_process(tmp_path: Path) -> None:
    """A kill between the creation of a trial and its draws leaves a trial without anything."""
    study = open_study(make_plan(tmp_path, DRAWN), tmp_path / "telemetry")
    study.study.ask()
    assert open_study(study.plan, tmp_path / "telemetry").claim().number == 1  # pyright: ignore[reportOptionalMemberAccess]
    study.study._storage.set_trial_user_attr(study.study.trials[0]._trial_id, HOST_ATTR, "other")
    assert study.claim().number == 2  # pyright: ignore[reportOptionalMemberAccess]
    assert study.elsewhere == {0}


@pytest.mark.parametrize(("age", "is_taken"), [(60.0, False), (700.0, True)])
def test_trial_of_another_machine_is_taken_over_once_its_run_is_silent(
    tmp_path: Path, age: float, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks may not work between machines, so only time tells."""
    telemetry = tmp_path / "telemetry"
    plan = make_plan(tmp_path)
    with monkeypatch.context() as other:
        other.setattr("socket.gethostname", lambda: "other")
        theirs = open_study(plan, telemetry).claim()
    assert theirs is not None
    theirs.release()
    options = {"envs": 2, "rounds": 3, "seed": 1, "ppo.entropy-coef": 0.0}
    run = write_run(telemetry / "theirs", options, RunNotes(study="s", trial=0), [1.0], None)
    for path in run.iterdir():
        os.utime(path, (time.time() - age, time.time() - age))
    study = open_study(plan, telemetry)
    found = study.claim()
    assert found is not None
    assert (found.number, study.elsewhere) == ((0, set()) if is_taken else (1, {0}))


def test_study_with_other_options_is_refused(tmp_path: Path) -> None:
    open_study(make_plan(tmp_path), tmp_path / "telemetry")
    with pytest.raises(ConfigError, match=r"\[vary\] ppo.entropy-coef was \[0.0, 0.08\], now \[0.08, 0.0\]"):
        open_study(make_plan(tmp_path, GRID.replace("[0.0, 0.08]", "[0.08, 0.0]")), tmp_path / "telemetry")
    with pytest.raises(ConfigError, match=r"another version of .*: seeds had 1, 2; restore it"):
        open_study(make_plan(tmp_path, GRID.replace("[1, 2]", "[3]")), tmp_path / "telemetry")
    moved = GRID.replace("[run]", '[run]\ndevices = ["cpu:0"]\n')
    open_study(make_plan(tmp_path, moved), tmp_path / "telemetry")  # another machine may have other devices


def test_study_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plans may count steps from 0."""
    with monkeypatch.context() as earlier:
        earlier.setattr(study_module, "STUDY_FORMAT", 1)
        open_study(make_plan(tmp_path), tmp_path / "telemetry")
    with pytest.raises(ConfigError, match=r"study 's' has format 1; .* reads format 2; give the sweep another name"):
        open_study(make_plan(tmp_path), tmp_path / "telemetry")


def test_results_of_a_study_without_storage_are_refused(tmp_path: Path) -> None:
    study = open_study(make_plan(tmp_path), tmp_path / "telemetry")
    study.paths.journal.unlink()
    with pytest.raises(ConfigError, match=r"has no storage at .* yet; start the sweep first"):
        open_storage("", study.paths, create=False)
    assert not study.paths.journal.exists()


def test_journal_with_incomplete_line_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna would append to the line that a loss of power has cut, and could never read the file again."""
    monkeypatch.chdir(tmp_path)  # the path of the journal file is relative, as it is by default
    plan = make_plan(tmp_path)
    journal = open_study(plan, Path("telemetry")).paths.journal
    journal.write_bytes(journal.read_bytes()[:-20])
    claimed = open_study(plan, Path("telemetry")).claim()
    assert claimed is not None
    assert all(line.startswith(b"{") for line in journal.read_bytes().splitlines())
    assert len(open_study(plan, Path("telemetry")).trials()) == 4


def test_lock_of_killed_process_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is a link to a relative path is broken, and Optuna would wait for it for ever."""
    monkeypatch.chdir(tmp_path)
    plan = make_plan(tmp_path)
    journal = open_study(plan, Path("telemetry")).paths.journal
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 20.0).__next__, sleep=lambda _: None)
    monkeypatch.setattr("optuna.storages.journal._file.time", clock)
    Path(f"{journal}.lock").touch()
    assert open_study(plan, Path("telemetry")).claim() is not None
    assert not Path(f"{journal}.lock").exists()
