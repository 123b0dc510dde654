"""Samplers and parameters of Optuna for a sweep."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any, cast

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from esper.sweeps.plan import SamplerName, SweepPlan, Value, ValueRange


def make_distributions(plan: SweepPlan) -> dict[str, BaseDistribution]:
    """Return the distribution of each varied option, keyed like `ppo.gamma`."""
    found: dict[str, BaseDistribution] = {}
    for key, values in plan.vary.items():
        if isinstance(values, ValueRange):
            found[key] = _range_distribution(values)
        else:
            found[key] = CategoricalDistribution(values)
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


def _range_distribution(values: ValueRange) -> BaseDistribution:
    if values.is_integer:
        return IntDistribution(int(values.low), int(values.high), log=values.log, step=int(values.step or 1))
    return FloatDistribution(values.low, values.high, log=values.log, step=values.step)


class NumberedSampler(BaseSampler):
    """Sampler whose random numbers depend only on the study and on the number of the trial.

    Otherwise, the processes of a study would all draw the same settings, and a study that is started again would draw
    its first settings once more.

    Args:
        sampler: Sampler that proposes settings.
        study: Name of the study.
    """

    def __init__(self, sampler: SamplerName, study: str) -> None:
        self._kind = sampler
        self._study = study
        self._sampler: BaseSampler = RandomSampler(seed=0)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Make the sampler for a trial."""
        digest = hashlib.blake2b(f"{self._study}\n{trial.number}".encode(), digest_size=4).digest()
        seed = int.from_bytes(digest, "big")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # `constant_liar`, before Optuna 5
            is_tpe = self._kind == "tpe"
            self._sampler = TPESampler(seed=seed, constant_liar=True) if is_tpe else RandomSampler(seed=seed)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters that are drawn together."""
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw parameters together."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw one parameter."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)
