"""Measures of a run: what lists, filters, comparisons and sweeps call by one name is one number.

A measure is read from the information about a run, from its summary, or from the results of a finished round. These
give the same number for the same events.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from esper.formatting import format_duration, format_number
from esper.history.run_info import RunInfo
from esper.history.summary import RoundSummary, RunSummary

ObjectiveName = Literal["return", "score", "parameters"]
"""Name of a measure that a sweep can optimise."""
SMOOTHED_ROUNDS = 5
"""Number of last rounds over which the smoothed score is the mean."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of a run."""

    heading: str
    """Name in tables; `{score}` stands for the name of the task's score."""
    definition: str
    """Definition, in a few words that continue the heading, for help and tooltips."""
    unit: Literal["count", "%", "return", "× host", "s", "1/s"] = "count"
    """Unit; `%` stands for a fraction from 0 to 1 that screens show in percent."""
    limits: tuple[float, float] = (0.0, math.inf)
    """Minimum and maximum that the number can have."""
    is_less_better: bool = False
    """True if a smaller number is better."""
    of_info: Callable[[RunInfo], float | None] | None = None
    """Returns the number of a run in a list, None if it was not measured; None if lists do not have it."""
    of_summary: Callable[[RunSummary], float | None] | None = None
    """The same of a summary."""
    of_round: Callable[[RoundSummary], float] | None = None
    """Returns the number of a finished round; None if it is not one of a round."""

    @property
    def spec(self) -> str:
        """Format in tables, as for `format_number`."""
        return {"%": ".1%", "return": "+.3f", "× host": ".2f"}.get(self.unit, ",.0f")

    def text(self, value: float | None) -> str:
        """Return the number, or a mean of it over runs, as text for tables."""
        if self.unit == "s":
            return format_duration(value)
        is_mean_count = self.unit == "count" and value is not None and not value.is_integer()
        return format_number(value, ",.1f" if is_mean_count else self.spec)

    def in_summary(self, run: RunSummary) -> float | None:
        """Return the number of a run, that of its last finished round for a measure of rounds; None if not measured."""
        if self.of_round is not None:
            return self.of_round(run.finished[-1]) if run.finished else None
        return self.of_summary(run) if self.of_summary is not None else None


def _smoothed(info: RunInfo) -> float | None:
    recent = info.scores[-SMOOTHED_ROUNDS:]
    return statistics.fmean(recent) if recent else None


BEST = Measure(
    heading="best {score}",
    definition="the maximum of all envs and steps",
    unit="%",
    limits=(0.0, 1.0),
    of_info=lambda info: info.best_score,
    of_summary=lambda run: run.best.score if run.best else None,
)
LAST_SCORE = Measure(
    heading="last round: {score}",
    definition="at the end of the last finished round, median over the envs",
    unit="%",
    limits=(0.0, 1.0),
    of_info=lambda info: info.last_score,
    of_round=lambda finished: finished.score.median,
)
SMOOTHED_SCORE = Measure(
    heading="last rounds: {score}",
    definition=f"the median of each round, mean over the last {SMOOTHED_ROUNDS} rounds",
    unit="%",
    limits=(0.0, 1.0),
    of_info=_smoothed,
)
LAST_RETURN = Measure(
    heading="last round: mean return",
    definition="undiscounted return of the last finished round, mean over the envs",
    unit="return",
    limits=(-math.inf, math.inf),
    of_info=lambda info: info.last_return,
    of_round=lambda finished: finished.episode_return,
)
LAST_PARAMETERS = Measure(
    heading="last round: parameters, × host",
    definition="host and seeds at the end of the last finished round, relative to the bare host; mean over the envs",
    unit="× host",
    limits=(1.0, math.inf),
    is_less_better=True,
    of_info=lambda info: info.parameter_ratio,
    of_round=lambda finished: finished.parameter_ratio,
)
ANOMALIES = Measure(
    heading="anomalies",
    definition="number of their occurrences",
    is_less_better=True,
    of_info=lambda info: info.anomalies,
    of_summary=lambda run: sum(run.anomalies.values()),
)

LISTED = {
    "best": BEST,
    "last": LAST_SCORE,
    "smoothed": SMOOTHED_SCORE,
    "return": LAST_RETURN,
    "parameters": LAST_PARAMETERS,
    "anomalies": ANOMALIES,
}
"""Measures in lists of runs, keyed by their name in filters and by their sort key."""
OBJECTIVES: dict[ObjectiveName, Measure] = {"return": LAST_RETURN, "score": LAST_SCORE, "parameters": LAST_PARAMETERS}
"""Measures of rounds that a sweep can optimise, keyed by their name in its file."""
COMPARED = {
    "finished_rounds": Measure(
        heading="rounds finished", definition="by all envs", of_summary=lambda run: len(run.finished)
    ),
    "env_steps": Measure(heading="env-steps", definition="over all envs", of_summary=lambda run: run.env_steps),
    "env_steps_per_second": Measure(
        heading="env-steps/s",
        definition="by the time of all steps",
        unit="1/s",
        of_summary=lambda run: run.env_steps_per_second,
    ),
    "duration": Measure(
        heading="recorded", definition="without gaps between parts", unit="s", of_summary=lambda run: run.duration
    ),
    "best_score": BEST,
    "last_score": LAST_SCORE,
    "last_return": LAST_RETURN,
    "last_parameter_ratio": LAST_PARAMETERS,
    "planted": Measure(
        heading="seeds planted",
        definition="by all envs",
        of_summary=lambda run: sum(seeds.planted for seeds in run.seeds.values()),
    ),
    "fossilized": Measure(
        heading="seeds fossilized",
        definition="by all envs",
        of_summary=lambda run: sum(seeds.fossilized for seeds in run.seeds.values()),
    ),
    "culled": Measure(
        heading="seeds culled",
        definition="by all envs",
        of_summary=lambda run: sum(seeds.culled for seeds in run.seeds.values()),
    ),
    "anomalies": ANOMALIES,
    "skipped_batches": Measure(
        heading="skipped batches", definition="because of an overflow", of_summary=lambda run: run.skipped_batches
    ),
    "rollbacks": Measure(heading="rollbacks", definition="by the governor", of_summary=lambda run: run.rollbacks),
    "checkpoints": Measure(
        heading="checkpoints", definition="that were written", of_summary=lambda run: run.checkpoints
    ),
}
"""Measures that `compare` has, keyed by their name in its JSON."""
