"""Results of a study: ranks, differences over common seeds, front and importance."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import optuna
import pytest

from esper.recordings.history.summary import RoundSummary
from esper.recordings.state.series import five_numbers
from esper.studies.sweeps.report import results_text
from esper.studies.sweeps.results import MeasureResult, SettingResult, StudyResults, compare_settings, study_results
from esper.studies.sweeps.study import ClaimedTrial
from tests.studies.sweeps.fakes import GRID, make_plan, open_study


def results_of(folder: Path, text: str, value: Callable[[ClaimedTrial], float | None]) -> StudyResults:
    """Run a study in memory. A trial without a value fails."""
    study = open_study(make_plan(folder, text), folder / "telemetry", optuna.storages.InMemoryStorage())
    while (trial := study.claim()) is not None:
        measured = value(trial)
        if measured is None:
            trial.fail("no disk")
        else:
            score = five_numbers([0.5])
            rounds = [RoundSummary(round=1, score=score, episode_return=measured, parameter_ratio=2 + measured)]
            trial.complete(Path("run"), rounds)
        trial.release()
    return study_results(study)


def coefficient(trial: ClaimedTrial) -> float:
    return float(trial.setting.values["ppo.entropy-coef"])


def test_importance_is_computed_over_settings(tmp_path: Path) -> None:
    text = GRID.replace("[1, 2]", "[1]").replace(
        "[0.0, 0.08]", "[0.0, 0.01, 0.02, 0.03, 0.04, 0.05]\n'ppo.gamma' = [0.9, 1.0]"
    )
    results = results_of(tmp_path, text, coefficient)
    importance = results.importance["return"]
    assert importance["ppo.entropy-coef"] > 0.9
    assert sum(importance.values()) == pytest.approx(1)
    assert any(line.startswith("importance for return (PED-ANOVA): ppo.entropy-coef") for line in results_text(results))


def test_setting_with_a_failed_seed_is_no_rival(tmp_path: Path) -> None:
    results = results_of(
        tmp_path, GRID, lambda trial: None if coefficient(trial) and trial.seed == 1 else coefficient(trial)
    )
    best, other = results.settings
    assert (best.setting["ppo.entropy-coef"], best.done, other.done, other.failed) == (0.0, 2, 1, 1)
    assert other.measures["return"].low is None  # one value has no spread
    lines = list(results_text(results))
    assert lines[0] == "study s: 4 of 4 trials finished (3 done, 0 pruned, 1 failed)"
    assert "failed: trial 1 (ppo.entropy-coef 0.08, seed 1): no disk" in lines
    assert any("no setting can be compared with it, because that needs two random seeds" in line for line in lines)


def test_settings_within_the_noise_are_not_distinguishable(tmp_path: Path) -> None:
    text = GRID.replace("[1, 2]", "[1, 2, 3]").replace("0.08]", "0.08, 5.0]")
    noise = {(0.0, 1): 0.3, (0.0, 2): -0.2, (0.0, 3): 0.1}
    results = results_of(
        tmp_path, text, lambda trial: -10 * (coefficient(trial) > 1) + noise.get((coefficient(trial), trial.seed), 0.0)
    )
    assert (results.compared, results.indistinguishable, results.differing_objectives) == (2, 1, ("return",))
    lines = list(results_text(results))
    assert any("ppo.entropy-coef 0, differs from 1 of the 2 settings" in line for line in lines)
    assert [line.split()[-1] for line in lines if line.startswith(("0.08 ", "5 "))] == ["no", "yes"]


@pytest.mark.parametrize(("settings", "seeds", "noisiest"), [(3, 3, 1.0), (5, 5, 5.0), (20, 3, 1.0)])
def test_equal_settings_are_called_different_in_at_most_five_of_100_studies(
    settings: int, seeds: int, noisiest: float
) -> None:
    """One interval for each setting calls some setting different in up to 79 of 100 studies."""
    rng, studies = np.random.default_rng(0), 100
    deviations = np.array([noisiest, *[1.0] * (settings - 1)])[:, None]
    found = 0
    for _ in range(studies):
        values = rng.normal(size=seeds) + deviations * rng.normal(size=(settings, seeds))
        found += any(setting.differs for setting in compare_settings(list(map(setting_of, values)), "return"))
    assert found <= 5


def test_setting_five_deviations_better_than_four_others_is_found() -> None:
    rng, found = np.random.default_rng(0), 0
    for _ in range(20):
        values = rng.normal(size=5) + rng.normal(size=(5, 5))
        values[2] += 5
        found += all(setting.differs for setting in compare_settings(list(map(setting_of, values)), "return")[1:])
    assert found >= 17


def setting_of(values: Sequence[float]) -> SettingResult:
    """Return a setting with a return for each random seed."""
    by_seed = {str(seed): float(value) for seed, value in enumerate(values)}
    result = MeasureResult(mean=statistics.fmean(by_seed.values()), by_seed=by_seed)
    return SettingResult(setting={}, seeds=len(by_seed), done=len(by_seed), measures={"return": result})


def test_setting_with_a_pruned_run_is_not_compared() -> None:
    """The pruner has left the best of its runs, so its mean is too good: above that of any other setting."""
    best, worse = setting_of([1.0, 1.1, 0.9]), setting_of([0.0, 0.1, -0.1])
    pruned = msgspec.structs.replace(setting_of([1.4, 1.5]), seeds=3, pruned=1)
    found = compare_settings([pruned, worse, best], "return")
    assert [setting.differs for setting in found] == [None, True, None]
    assert (found[0], found[2]) == (best, pruned)
    assert found[2].difference is None
    lines = list(results_text(msgspec.structs.replace(EMPTY, settings=found, compared=1, indistinguishable=0)))
    assert lines[-1] == "1 setting is not compared: the pruner leaves the better runs, so the mean is too good"


EMPTY = StudyResults(
    study="s",
    sampler="grid",
    objectives=("return",),
    over=1,
    trials=dict.fromkeys(["complete", "pruned", "fail", "running", "total"], 0),
    settings=[],
)


@pytest.mark.parametrize(("gain", "is_doubtful"), [(0.0, True), (10.0, False)])
def test_importance_without_a_difference_is_called_doubtful(tmp_path: Path, gain: float, is_doubtful: bool) -> None:
    text = GRID.replace("[0.0, 0.08]", "[0.0, 0.01, 0.02, 0.03, 0.04]\n'ppo.gamma' = [0.9, 1.0]")
    rng = np.random.default_rng(2)
    results = results_of(
        tmp_path, text, lambda trial: gain * float(trial.setting.values["ppo.gamma"]) + rng.normal(0.0, 1e-4)
    )
    (line,) = [line for line in results_text(results) if line.startswith("importance for return")]
    assert line.endswith("no setting is shown to differ from the best") is is_doubtful


def test_dominated_setting_is_not_on_the_front(tmp_path: Path) -> None:
    results = results_of(tmp_path, f'objectives = ["score", "parameters"]{GRID}', coefficient)
    assert [(setting.setting["ppo.entropy-coef"], setting.is_front) for setting in results.settings] == [
        (0.0, True),
        (0.08, False),
    ]
