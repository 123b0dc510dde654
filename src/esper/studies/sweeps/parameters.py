"""Parameters of Optuna for a sweep."""

from __future__ import annotations

from typing import cast

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from esper.studies.sweeps.plan import SweepPlan, Value, ValueRange


def make_distributions(plan: SweepPlan) -> dict[str, BaseDistribution]:
    """Return the distribution of each varied option, keyed like `ppo.gamma`."""
    found: dict[str, BaseDistribution] = {}
    for key, values in plan.vary.items():
        if not isinstance(values, ValueRange):
            found[key] = CategoricalDistribution(values)
        elif values.is_integer:
            step = int(values.step or 1)
            found[key] = IntDistribution(int(values.low), int(values.high), log=values.log, step=step)
        else:
            found[key] = FloatDistribution(values.low, values.high, log=values.log, step=values.step)
    return found


def suggest_value(trial: Trial, key: str, distribution: BaseDistribution) -> Value:
    """Return the value of a parameter of a trial, which is drawn if it is not fixed."""
    match distribution:
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(key, low, high, step=step, log=log)
        case IntDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_int(key, low, high, step=step, log=log)
        case CategoricalDistribution(choices=choices):
            return cast("Value", trial.suggest_categorical(key, choices))
        case _:
            raise AssertionError(f"{distribution} is not made here")
