"""Results of a study, and the plan of a sweep, as lines of text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from esper.common.formatting import NOT_MEASURED, pluralise
from esper.common.printed_table import PrintedTable
from esper.recordings.history.measures import MEASURES, objective_measures
from esper.studies.sweeps.jobs import JobDevices
from esper.studies.sweeps.plan import SweepPlan, TrialSetting, ValueRange, value_text
from esper.studies.sweeps.results import MeasureResult, SettingResult, StudyResults


def results_text(results: StudyResults) -> Iterator[str]:
    """Yield the lines of the results of a study."""
    states = results.trials
    finished = states["complete"] + states["pruned"] + states["fail"]
    yield (
        f"study {results.study}: {finished} of {states['total']} trials finished "
        f"({states['complete']} done, {states['pruned']} pruned, {states['fail']} failed)"
        + (f"; {states['running']} more started" if states["running"] else "")
    )
    if not results.settings:
        return
    rounds = pluralise(results.over, "round")
    yield f"means over random seeds of the last {rounds}, each with its own 95 % t interval; best setting first"
    yield ""
    yield from _table(results)
    yield ""
    yield from _comparison(results)
    yield from _importance(results)
    for trial in results.failed:
        yield f"failed: trial {trial.trial} ({TrialSetting(values=trial.setting)}, seed {trial.seed}): {trial.reason}"


def _table(results: StudyResults) -> Iterator[str]:
    keys = list(results.settings[0].setting)
    measures = [*results.objectives, *(name for name in objective_measures() if name not in results.objectives)]
    has_pruned = any(setting.pruned for setting in results.settings)
    has_failed = any(setting.failed for setting in results.settings)
    has_difference = any(setting.difference for setting in results.settings)
    has_front = len(results.objectives) > 1
    head = [*keys, "done", *(["pruned"] if has_pruned else []), *(["failed"] if has_failed else [])]
    right = range(len(keys), len(head))
    head += [MEASURES[name].heading(rounds=results.over) for name in measures]
    head += ["minus best", "differs"] if has_difference else ["front"] if has_front else []
    rows: list[list[str]] = []
    for setting in results.settings:
        row = [value_text(setting.setting[key]) for key in keys]
        row.append(f"{setting.done}/{setting.seeds}")
        row += [str(setting.pruned)] if has_pruned else []
        row += [str(setting.failed)] if has_failed else []
        row += [_interval_text(setting.measures.get(name), MEASURES[name].text) for name in measures]
        if has_difference:
            row += _difference_cells(setting, results.objectives[0])
        elif has_front:
            row.append("yes" if setting.is_front else "")
        rows.append(row)
    yield from PrintedTable.from_cells(head, rows, right).lines()


def _interval_text(result: MeasureResult | None, text_of: Callable[[float], str]) -> str:
    if result is None:
        return NOT_MEASURED
    text = text_of(result.mean)
    if result.low is None or result.high is None:
        return text
    return f"{text} [{text_of(result.low)}, {text_of(result.high)}]"


def _difference_cells(setting: SettingResult, objective: str) -> list[str]:
    if setting.difference is None:
        return ["", ""]
    return [_interval_text(setting.difference, MEASURES[objective].difference_text), "yes" if setting.differs else "no"]


def _comparison(results: StudyResults) -> Iterator[str]:
    """Yield a sentence about the best setting, or about the front."""
    measured = [setting for setting in results.settings if setting.measures]
    if len(results.objectives) > 1:
        count = sum(setting.is_front for setting in measured)
        names = " and ".join(results.objectives)
        yield f"the front of {names}: {count} of {len(measured)} settings, by their means"
        return
    if len(measured) < 2:
        return
    best = TrialSetting(values=measured[0].setting)
    if results.indistinguishable is None:
        yield (
            f"the best mean is that of {best}; no setting can be compared with it, because that needs two random seeds "
            "that both have, and no pruned run"
        )
    else:
        compared, differing = results.compared, results.compared - results.indistinguishable
        which = "all" if differing == compared else f"{differing or 'any'} of the"
        others = "the one setting" if compared == 1 else f"{which} {compared} settings"
        verb = "differs from" if differing else "may be the best by chance: it is not shown to differ from"
        yield f"the best setting, {best}, {verb} {others} that can be compared with it"
        yield (
            "differs: beyond chance, after a correction for the choice of the best and for all comparisons; of 100 "
            "studies whose settings are all equal, at most 5 find a difference"
        )
        if missing := sum(setting.differs is None and not setting.pruned for setting in measured[1:]):
            yield f"{_not_compared(missing)}: a result of a random seed of the best is missing"
    if pruned := sum(setting.pruned > 0 for setting in measured):
        yield f"{_not_compared(pruned)}: the pruner leaves the better runs, so the mean is too good"


def _not_compared(count: int) -> str:
    return f"{pluralise(count, 'setting is', 'settings are')} not compared"


def _importance(results: StudyResults) -> Iterator[str]:
    for objective, importance in results.importance.items():
        text = ", ".join(f"{key} {value:.0%}" for key, value in importance.items())
        differs = objective in results.differing_objectives
        doubt = "" if differs else "; may be chance, because no setting is shown to differ from the best"
        yield f"importance for {objective} ({results.importance_evaluator}): {text}{doubt}"
    if results.importance_problem:
        yield f"importance of the options: not computed, because {results.importance_problem}"


def plan_text(plan: SweepPlan, jobs: Sequence[JobDevices], first: TrialSetting | None) -> Iterator[str]:
    """Yield the lines that `--dry-run` prints.

    Args:
        plan: The sweep.
        jobs: Devices of each job of this machine.
        first: First setting of random draws; None if it is not known.
    """
    rounds = pluralise(plan.over, "round")
    objectives = " and ".join(f"{MEASURES[name].direction[:-3]}ise {name}" for name in plan.objectives)
    yield (
        f"study {plan.name}: {plan.num_trials} trials, {plan.settings} settings ({plan.sampler}) "
        f"with random seeds {' '.join(map(str, plan.seeds))}; {objectives}, mean of the last {rounds}"
    )
    for index, devices in enumerate(jobs):
        yield f"job {index}: {' '.join(devices)}"
    if plan.sampler == "grid":
        rows = [
            [str(trial), str(seed), *map(value_text, setting.values.values())]
            for trial, (seed, setting) in enumerate(itertools.product(plan.seeds, plan.grid()))
        ]
        yield from PrintedTable.from_cells(["trial", "seed", *plan.vary], rows, right=(0, 1)).lines()
        return
    for key, values in plan.vary.items():
        yield f"{key}: {values if isinstance(values, ValueRange) else ', '.join(map(value_text, values))}"
    if first is not None:
        yield f"first setting: {first}"
