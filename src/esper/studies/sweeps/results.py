"""Results of a study: its settings compared over their random seeds.

Each interval holds for its own value. A setting is called different from the best one only after a correction for all
comparisons of the study (`esper.common.intervals.differ_from_best`).
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import optuna
from optuna.trial import TrialState

from esper.common.intervals import differ_from_best, t_interval
from esper.recordings.history.measures import MEASURES, objective_measures
from esper.studies.sweeps.parameters import make_distributions
from esper.studies.sweeps.plan import SweepPlan, Value
from esper.studies.sweeps.study import REASON_ATTR, RUN_ATTR, SweepStudy, TrialInfo

MIN_IMPORTANCE_SETTINGS = 10
"""Minimum number of settings with a result for the importance of options: fewer say nothing."""
IMPORTANCE_EVALUATOR = "PED-ANOVA"


class MeasureResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measure of a setting: mean over the random seeds, and its interval if there are two or more."""

    mean: float
    low: float | None = None
    high: float | None = None
    by_seed: dict[str, float]
    """Value of each random seed."""


class SettingResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Results of one setting."""

    setting: dict[str, Value]
    """Values of the varied options, keyed like `ppo.gamma`."""
    seeds: int
    """Number of random seeds of the study."""
    done: int
    """Number of runs with a result."""
    pruned: int = 0
    failed: int = 0
    measures: dict[str, MeasureResult] = {}
    """Measures over the runs that are done; absent before the first."""
    difference: MeasureResult | None = None
    """Objective minus that of the best setting, over the random seeds of the best; absent for settings that are not
    compared with it, and with two objectives."""
    differs: bool | None = None
    """True if the difference is beyond chance, after the correction for all comparisons; absent like `difference`."""
    is_front: bool = False
    """With two objectives: no other setting is at least as good in both, and better in one."""


class FailedTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trial whose run failed."""

    trial: int
    setting: dict[str, Value]
    seed: int
    reason: str
    run: str | None = None


class StudyResults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Results of a study, as `sweep --json` prints them."""

    study: str
    sampler: str
    objectives: tuple[str, ...]
    over: int
    """Number of last rounds over which each measure is averaged."""
    trials: dict[str, int]
    """Number of trials in each state, and `total`."""
    settings: list[SettingResult]
    """Settings with a finished trial: those with all random seeds first, and of these the best first."""
    compared: int = 0
    """Number of settings that were compared with the best one."""
    indistinguishable: int | None = None
    """Number of compared settings whose difference to the best may be chance; absent if none was compared."""
    importance: dict[str, dict[str, float]] = {}
    """Importance of each varied option, keyed by objective and option; they sum to 1."""
    differing_objectives: tuple[str, ...] = ()
    """Objectives in which a setting differs from the best one beyond chance; the importance for others may be luck."""
    importance_evaluator: str | None = None
    importance_problem: str | None = None
    """Why the importance was not computed."""
    failed: list[FailedTrial] = []


def study_results(study: SweepStudy) -> StudyResults:
    """Return the current results of a study."""
    plan, infos = study.plan, study.trials()
    groups: dict[int, list[TrialInfo]] = {}
    for info in infos:
        groups.setdefault(info.group, []).append(info)
    settings = [_setting_result(plan, group) for group in groups.values() if group[0].setting.values]
    settings = _rank(plan, [setting for setting in settings if setting.done or setting.pruned or setting.failed])
    measured = [setting for setting in settings if setting.measures]
    compared = [setting for setting in settings if setting.differs is not None]
    importance, problem = _importance(plan, settings)
    states = {state.name.lower(): sum(info.state == state for info in infos) for state in TrialState}
    return StudyResults(
        study=plan.name,
        sampler=plan.sampler,
        objectives=plan.objectives,
        over=plan.over,
        trials={**states, "total": plan.num_trials},
        settings=settings,
        compared=len(compared),
        indistinguishable=sum(not setting.differs for setting in compared) if compared else None,
        importance=importance,
        differing_objectives=tuple(
            name for name in plan.objectives if any(setting.differs for setting in compare_settings(measured, name))
        ),
        importance_evaluator=IMPORTANCE_EVALUATOR if importance else None,
        importance_problem=problem,
        failed=[_failed_trial(info) for info in infos if info.state == TrialState.FAIL],
    )


def _setting_result(plan: SweepPlan, group: Sequence[TrialInfo]) -> SettingResult:
    done = [info for info in group if info.state == TrialState.COMPLETE]
    by_measure = {
        name: {info.seed: info.frozen.user_attrs[name] for info in done if name in info.frozen.user_attrs}
        for name in objective_measures()
    }
    return SettingResult(
        setting=dict(group[0].setting.values),
        seeds=len(plan.seeds),
        done=len(done),
        pruned=sum(info.state == TrialState.PRUNED for info in group),
        failed=sum(info.state == TrialState.FAIL for info in group),
        measures={name: _measure(values, MEASURES[name].limits) for name, values in by_measure.items() if values},
    )


def _measure(by_seed: Mapping[int, float], limits: tuple[float, float] = (-math.inf, math.inf)) -> MeasureResult:
    """Return the mean of values, keyed by random seed, with its interval inside the limits."""
    values = list(by_seed.values())
    named = {str(seed): value for seed, value in sorted(by_seed.items())}
    if len(values) < 2:
        return MeasureResult(mean=values[0], by_seed=named)
    interval = t_interval(values).clip(*limits)
    return MeasureResult(mean=statistics.fmean(values), low=interval.low, high=interval.high, by_seed=named)


def _rank(plan: SweepPlan, settings: list[SettingResult]) -> list[SettingResult]:
    """Return the settings, best first, with the front or the differences to the best."""
    first = plan.objectives[0]
    measured = [setting for setting in settings if setting.measures]
    others = [setting for setting in settings if not setting.measures]
    if len(plan.objectives) == 1:
        return [*compare_settings(measured, first), *others]
    measured.sort(key=lambda setting: _order(setting, first))
    front = [_is_on_front(setting, measured, plan.objectives) for setting in measured]
    measured = [
        msgspec.structs.replace(setting, is_front=is_front) for setting, is_front in zip(measured, front, strict=True)
    ]
    measured.sort(key=lambda setting: not setting.is_front)
    return [*measured, *others]


def _order(setting: SettingResult, objective: str) -> tuple[bool, bool, float]:
    """Return the sort key of a setting, smaller for better ones.

    A mean over some of the random seeds is no fair rival: their level differs, and the pruner leaves the good ones.
    """
    return setting.done < setting.seeds, bool(setting.pruned), _loss(setting, objective)


def compare_settings(settings: Sequence[SettingResult], objective: str) -> list[SettingResult]:
    """Return the settings, best first, with the differences of those that can be compared with the best one.

    A setting is compared if it has every random seed of the best, which are at least two, and no pruned run. The
    settings share the random seeds, so the values are paired.
    """
    if not settings:
        return []
    best, *others = sorted(settings, key=lambda setting: _order(setting, objective))
    of_best = best.measures[objective].by_seed

    def can_compare(setting: SettingResult) -> bool:
        has_seeds = setting.measures[objective].by_seed.keys() >= of_best.keys()
        return has_seeds and len(of_best) > 1 and not setting.pruned and not best.pruned

    compared = [best, *filter(can_compare, others)]
    values = [[setting.measures[objective].by_seed[seed] for seed in of_best] for setting in compared]
    differs = iter(differ_from_best(values) if len(compared) > 1 else [])
    return [
        best,
        *(
            msgspec.structs.replace(setting, difference=_difference(setting, best, objective), differs=next(differs))
            if can_compare(setting)
            else setting
            for setting in others
        ),
    ]


def _loss(setting: SettingResult, objective: str) -> float:
    """Return the mean of an objective, with the sign that makes smaller values better."""
    mean = setting.measures[objective].mean
    return mean if MEASURES[objective].is_less_better else -mean


def _is_on_front(setting: SettingResult, others: Sequence[SettingResult], objectives: Sequence[str]) -> bool:
    losses = [_loss(setting, objective) for objective in objectives]
    for other in others:
        theirs = [_loss(other, objective) for objective in objectives]
        if theirs != losses and all(their <= loss for their, loss in zip(theirs, losses, strict=True)):
            return False
    return True


def _difference(setting: SettingResult, best: SettingResult, objective: str) -> MeasureResult:
    """Return the difference of a setting to the best one, paired by random seed."""
    values = setting.measures[objective].by_seed
    return _measure({int(seed): values[seed] - ours for seed, ours in best.measures[objective].by_seed.items()})


def _importance(plan: SweepPlan, settings: Sequence[SettingResult]) -> tuple[dict[str, dict[str, float]], str | None]:
    """Return the importance of each option for each objective, or why it was not computed.

    It is computed over the means of the settings, so that the luck of a random seed counts less.
    """
    measured = [setting for setting in settings if setting.measures]
    if len(plan.vary) < 2:
        return {}, "only one option varies"
    if len(measured) < MIN_IMPORTANCE_SETTINGS:
        return {}, f"{len(measured)} settings have a result; {MIN_IMPORTANCE_SETTINGS} are needed"
    distributions, found = make_distributions(plan), dict[str, dict[str, float]]()
    for objective in plan.objectives:
        study = optuna.create_study()  # in memory, and minimising
        for setting in measured:
            study.add_trial(
                optuna.create_trial(
                    params=dict[str, Any](setting.setting), distributions=distributions, value=_loss(setting, objective)
                )
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that all are equal, which the numbers show
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found[objective] = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return found, None


def _failed_trial(info: TrialInfo) -> FailedTrial:
    attrs = info.frozen.user_attrs
    return FailedTrial(
        trial=info.trial,
        setting=dict(info.setting.values),
        seed=info.seed,
        reason=attrs.get(REASON_ATTR, "no reason is stored"),
        run=attrs.get(RUN_ATTR),
    )
