"""NumberedSampler: draws of Optuna's samplers that depend only on the study and on the number of the trial."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial


class NumberedSampler(BaseSampler):
    """Sampler whose random numbers depend only on the study and on the number of the trial.

    Otherwise, the processes of a study would all draw the same settings, and a study that is started again would draw
    its first settings once more.

    Args:
        sampler: Sampler that proposes settings; any other than `tpe` draws at random.
        study: Name of the study.
    """

    def __init__(self, sampler: Literal["tpe", "random", "grid"], study: str) -> None:
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


def silence_optuna() -> None:
    """Keep Optuna from printing a line for each trial."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
