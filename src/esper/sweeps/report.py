"""Results of a study, and the plan of a sweep, as lines of text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from esper.formatting import NOT_MEASURED, align_columns, format_number
from esper.sweeps.jobs import JobDevices
from esper.sweeps.plan import DIRECTIONS, ObjectiveName, Setting, SweepPlan, ValueRange, value_text
from esper.sweeps.results import MeasureResult, SettingResult, StudyResults
from esper.telemetry.sentences import pluralise

FORMATS: dict[str, str] = {"return": ".4f", "score": ".4f", "parameters": ".2f"}
UNITS = {"return": "return", "score": "score", "parameters": "parameters ×host"}


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
    yield f"means over random seeds of the last {rounds}, with 95 % t intervals; best setting first"
    yield ""
    yield from _table(results)
    yield ""
    yield from _comparison(results)
    yield from _importance(results)
    for trial in results.failed:
        yield f"failed: trial {trial.trial} ({Setting(values=trial.setting)}, seed {trial.seed}): {trial.reason}"


def _table(results: StudyResults) -> Iterator[str]:
    keys = list(results.settings[0].setting)
    measures = [*results.objectives, *(name for name in DIRECTIONS if name not in results.objectives)]
    has_pruned = any(setting.pruned for setting in results.settings)
    has_failed = any(setting.failed for setting in results.settings)
    has_difference = any(setting.difference for setting in results.settings)
    has_front = len(results.objectives) > 1
    head = [*keys, "done", *(["pruned"] if has_pruned else []), *(["failed"] if has_failed else [])]
    right = range(len(keys), len(head))
    head += [UNITS[name] for name in measures]
    head += ["minus best"] if has_difference else ["front"] if has_front else []
    rows = [head]
    for setting in results.settings:
        row = [value_text(setting.setting[key]) for key in keys]
        row.append(f"{setting.done}/{setting.seeds}")
        row += [str(setting.pruned)] if has_pruned else []
        row += [str(setting.failed)] if has_failed else []
        row += [_measure_text(setting.measures.get(name), name) for name in measures]
        if has_difference:
            row.append(_difference_text(setting, results.objectives[0]))
        elif has_front:
            row.append("yes" if setting.is_front else "")
        rows.append(row)
    yield from align_columns(rows, list(right))


def _measure_text(measure: MeasureResult | None, name: str) -> str:
    if measure is None:
        return NOT_MEASURED
    spec = FORMATS[name]
    text = format_number(measure.mean, spec)
    if measure.low is None or measure.high is None:
        return text
    return f"{text} [{format_number(measure.low, spec)}, {format_number(measure.high, spec)}]"


def _difference_text(setting: SettingResult, objective: ObjectiveName) -> str:
    if setting.difference is None:
        return ""
    return _measure_text(setting.difference, objective)


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
    best = Setting(values=measured[0].setting)
    others = len(measured) - 1
    compared = sum(setting.difference is not None and setting.difference.low is not None for setting in measured[1:])
    if results.indistinguishable is None:
        yield f"the best mean is that of {best}; intervals of differences need two random seeds that settings share"
    elif results.indistinguishable:
        yield (
            f"the best setting, {best}, is not distinguishable from {_count_text(results.indistinguishable, others)} "
            "(the interval of the difference over common random seeds contains 0)"
        )
    else:
        yield (
            f"the best setting, {best}, differs from {_count_text(compared, others)} "
            "(no interval of a difference over common random seeds contains 0)"
        )


def _count_text(count: int, others: int) -> str:
    """Return how many of the other settings."""
    if count < others:
        return f"{count} of the {others} other settings"
    return "the other setting" if others == 1 else f"all {others} other settings"


def _importance(results: StudyResults) -> Iterator[str]:
    for objective, importance in results.importance.items():
        text = ", ".join(f"{key} {value:.0%}" for key, value in importance.items())
        yield f"importance for {objective} ({results.importance_evaluator}): {text}"
    if results.importance_problem:
        yield f"importance of the options: not computed, because {results.importance_problem}"


def plan_text(plan: SweepPlan, jobs: Sequence[JobDevices], first: Setting | None) -> Iterator[str]:
    """Yield the lines that `--dry-run` prints.

    Args:
        plan: The sweep.
        jobs: Devices of each job of this machine.
        first: First setting of random draws; None if it is not known.
    """
    rounds = pluralise(plan.over, "round")
    objectives = " and ".join(f"{DIRECTIONS[name][:-3]}ise {name}" for name in plan.objectives)
    yield (
        f"study {plan.name}: {plan.num_trials} trials, {plan.settings} settings ({plan.sampler}) "
        f"with random seeds {' '.join(map(str, plan.seeds))}; {objectives}, mean of the last {rounds}"
    )
    for index, devices in enumerate(jobs):
        yield f"job {index}: {' '.join(devices)}"
    if plan.sampler == "grid":
        rows = [["trial", "seed", *plan.vary]]
        for trial, (seed, setting) in enumerate(itertools.product(plan.seeds, plan.grid())):
            rows.append([str(trial), str(seed), *map(value_text, setting.values.values())])
        yield from align_columns(rows, (0, 1))
        return
    for key, values in plan.vary.items():
        yield f"{key}: {values if isinstance(values, ValueRange) else ', '.join(map(value_text, values))}"
    if first is not None:
        yield f"first setting: {first}"
