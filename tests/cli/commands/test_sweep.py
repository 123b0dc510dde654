"""The `sweep` command: dry run, results, best setting and refusals, without a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.common.configuration.files import resolve_config
from esper.studies.sweeps.worker import SweepWorker
from tests.studies.sweeps.fakes import GRID, FakeRuns, make_plan, open_study


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_study(folder: Path, text: str = GRID, **arguments: Any) -> None:
    study = open_study(make_plan(folder, text), folder / "telemetry")
    SweepWorker(study, [("cpu:0",)], lambda _: None, FakeRuns(**arguments), poll_s=0.01).run()


def test_dry_run_lists_the_trials_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(folder, GRID.replace("[run]", '[run]\ndevices = ["cpu:0"]'))
    assert main(["sweep", "s.toml", "--dry-run", "--jobs", "2"]) == 0
    assert capsys.readouterr().out == (
        "study s: 4 trials, 2 settings (grid) with random seeds 1 2; maximise return, mean of the last 2 rounds\n"
        "job 0: cpu:0\njob 1: cpu:0\n"
        "trial  seed  ppo.entropy-coef\n"
        "    0     1  0\n    1     1  0.08\n    2     2  0\n    3     2  0.08\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["s.toml"]


def test_option_that_changes_the_return_is_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(folder, f"{GRID}reward-weights.rent = [0.0, 0.1]\n")
    assert main(["sweep", "s.toml", "--dry-run"]) == 0
    assert "reward-weights.rent changes how the return is measured" in capsys.readouterr().err
    make_plan(folder, f'objective = "score"\n{GRID}reward-weights.rent = [0.0, 0.1]\n')
    assert main(["sweep", "s.toml", "--dry-run"]) == 0
    assert capsys.readouterr().err == ""


def test_results_compare_settings_over_common_seeds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The level of a random seed moves both settings, so the difference is exact although the intervals overlap."""
    run_study(folder, value=lambda options: float(options["ppo.entropy-coef"]) + 10 * int(options["seed"]))
    assert main(["sweep", "s.toml", "--results"]) == 0
    text = capsys.readouterr().out
    assert "last 2 rounds: mean return" in text
    assert "0.08               2/2  +15.080 [-48.451, +78.611]  754.0%" in text
    assert "-0.080 [-0.080, -0.080]" in text
    assert "the best setting, ppo.entropy-coef 0.08, differs from the one setting that can be compared with it" in text
    assert main(["sweep", "s.toml", "--results", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert (results["trials"]["complete"], results["indistinguishable"]) == (4, 0)
    assert results["settings"][1]["difference"]["by_seed"] == pytest.approx({"1": -0.08, "2": -0.08})


def test_best_setting_is_a_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_study(folder)
    assert main(["sweep", "s.toml", "--best", "best.toml"]) == 0
    config = resolve_config(folder / "best.toml", {})
    assert (config.ppo.entropy_coef, config.seed, config.rounds) == (0.08, 1, 3)
    assert "wrote the configuration of the best setting (ppo.entropy-coef 0.08) to best.toml" in capsys.readouterr().err


def test_two_objectives_have_a_front_and_no_best(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More return costs more parameters, so both settings are on the front."""
    run_study(folder, f'objectives = ["return", "parameters"]{GRID}')
    assert main(["sweep", "s.toml", "--results"]) == 0
    assert "the front of return and parameters: 2 of 2 settings, by their means" in capsys.readouterr().out
    assert main(["sweep", "s.toml", "--best", "best.toml"]) == 2
    assert "--best needs one objective; choose a setting from the front" in capsys.readouterr().err


REFUSED = {
    ("--results",): "the study has no storage at telemetry/studies/s.journal yet; start the sweep first",
    ("--results", "--dry-run"): "--dry-run has no results; remove it, or --results, --best and --json",
    ("--json", "--dry-run"): "--dry-run has no results; remove it, or",
    ("--jobs", "0"): "argument --jobs: '0' is not valid: it must be a whole number of 1 or more",
    ("--storage", "redis://h"): "a redis storage is not supported, because Optuna unpickles what it reads",
    ("--storage", "s.toml"): "s.toml is not a journal file of Optuna",
    ("--storage", "sqlite:////proc/x/y"): "cannot use the storage sqlite:////proc/x/y: ",
    ("--storage", "nonsense://u:secret@h/x"): "cannot use the storage nonsense://h/x: ",
    ("--storage", "/proc/none/x"): "cannot use the storage /proc/none/x: ",
    ("--telemetry-dir", "/proc/none"): "cannot record to /proc/none: ",
}


@pytest.mark.parametrize("options", REFUSED)
def test_refusals(options: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(folder)
    try:
        code = main(["sweep", "s.toml", *options])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert f"esper-sanctum: {REFUSED[options]}" in capsys.readouterr().err


def test_plans_vary_and_an_older_plan_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = GRID.replace("[run]", '[run]\npolicy = "plan"\n').partition("[vary]")[0] + "[vary]\nplan = {}\n"
    make_plan(folder, plans.format('["2:norm@early 3:norm@mid", "2:norm@mid"]'))
    assert main(["sweep", "s.toml", "--dry-run"]) == 0
    assert "    0     1  2:norm@early 3:norm@mid\n" in capsys.readouterr().out
    make_plan(folder, plans.format('["2:norm@mid", "norm@mid:2"]'))
    assert main(["sweep", "s.toml", "--dry-run"]) == 2
    assert "plan: 'norm@mid:2' is not a decision; expected STEP:BLUEPRINT@SLOT" in capsys.readouterr().err


def test_wrong_task_is_refused_before_anything_starts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_plan(folder, f"{GRID}task = ['digits', 'digit']\n")
    assert main(["sweep", "s.toml"]) == 2
    assert "unknown task 'digit'" in capsys.readouterr().err
    assert not (folder / "telemetry").exists()
