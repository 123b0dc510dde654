"""Results of a study: ranks, differences over common seeds, front and importance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from esper.history.summary import RoundSummary
from esper.sweeps.report import results_text
from esper.sweeps.results import StudyResults, study_results
from esper.sweeps.study import ClaimedTrial
from esper.telemetry.series import five_numbers
from tests.sweeps.fakes import GRID, make_plan, open_study


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
    assert any("intervals of differences need two random seeds that settings share" in line for line in lines)


def test_settings_within_the_noise_are_not_distinguishable(tmp_path: Path) -> None:
    text = GRID.replace("[1, 2]", "[1, 2, 3]").replace("0.08]", "0.08, 5.0]")
    noise = {(0.0, 1): 0.3, (0.0, 2): -0.2, (0.0, 3): 0.1}
    results = results_of(
        tmp_path, text, lambda trial: -10 * (coefficient(trial) > 1) + noise.get((coefficient(trial), trial.seed), 0.0)
    )
    assert results.indistinguishable == 1
    assert any("is not distinguishable from 1 of the 2 other settings" in line for line in results_text(results))


def test_dominated_setting_is_not_on_the_front(tmp_path: Path) -> None:
    results = results_of(tmp_path, f'objectives = ["score", "parameters"]{GRID}', coefficient)
    assert [(setting.setting["ppo.entropy-coef"], setting.is_front) for setting in results.settings] == [
        (0.0, True),
        (0.08, False),
    ]
