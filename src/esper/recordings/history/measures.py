"""The table of the measures of a run.

Each number of a run that lists, filters, summaries, comparisons and sweeps show is a row of this table, so that a name
is the same number wherever it occurs. To add a measure, add its row.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from esper.common.formatting import NOT_MEASURED, format_duration, format_number, pluralise
from esper.common.score_scale import PERCENT, ScoreScale
from esper.recordings.candidates.candidates import Candidate
from esper.recordings.history.summary import RoundSummary, RunSummary
from esper.recordings.state.state import RunState

SMOOTHED_ROUNDS = 5
"""Number of last rounds over which the smoothed score is the mean; over all rounds of a run with fewer."""


class MeasuredRun(Protocol):
    """A run whose measures were computed: `RunInfo` or `RunSummary`."""

    @property
    def measures(self) -> Mapping[str, float]:
        """Numbers of the run, keyed like `MEASURES`; those that were not measured are absent."""
        ...


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of a run. One of `of_round`, `of_state` and `of_summary` computes it; of a growth, `of_candidate` if it
    has that."""

    key: str
    """Name in filters, sort orders, files of sweeps, and JSON."""
    name: str
    """Name in tables; `{score}` stands for the name of the task's score. A measure of rounds leaves out the round."""
    short: str
    """Heading of its column in lists."""
    definition: str
    """Definition, in a few words that continue the name, for help and tooltips."""
    unit: Literal["count", "score", "return", "× host", "s", "1/s"] = "count"
    """Unit; a score has the unit and the direction of its `ScoreScale`."""
    limits: tuple[float, float] = (0.0, math.inf)
    """Minimum and maximum that the number can have; see `limits_in`."""
    is_less_better: bool = False
    """True if a smaller number is better; see `is_less_better_in`."""
    column_priority: int | None = None
    """Priority of its column in lists of runs; lower numbers get room first. None for a column only while a list is
    sorted by it."""
    of_round: Callable[[RoundSummary], float] | None = None
    """Returns the number of a finished round. The last finished round gives the number of the run. A sweep can optimise
    the mean over the last rounds."""
    of_candidate: Callable[[Candidate], float | None] | None = None
    """Returns the number of a candidate. The answer of a growth gives the number of the growth, because its last round
    may have trained networks that are only compared; before the answer, the best candidate so far."""
    candidate_name: str = ""
    """Name in tables as a number of a candidate; `{score}` stands for the name of the task's score."""
    of_state: Callable[[RunState], float | None] | None = None
    """Returns the number of a run from the state at its end; None if it was not measured."""
    of_summary: Callable[[RunSummary], float | None] | None = None
    """The same from all events of a run, which lists do not read."""

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Direction of better numbers, in the words of Optuna."""
        return "minimize" if self.is_less_better else "maximize"

    @property
    def is_listed(self) -> bool:
        """True if lists and filters of runs have the measure."""
        return self.of_summary is None

    def heading(self, score: str = "score", rounds: int = 1) -> str:
        """Return the name in tables.

        Args:
            score: Name of the task's score.
            rounds: Number of last rounds over which a measure of rounds is averaged.
        """
        name = self.name.format(score=score)
        if self.of_round is None:
            return name
        return f"last round: {name}" if rounds == 1 else f"last {pluralise(rounds, 'round')}: {name}"

    def heading_in(self, run: RunSummary, score: str) -> str:
        """Return the name in a table about a run; in that of a growth, it is about one network."""
        if run.search is None or self.of_candidate is None:
            return self.heading(score)
        return f"best network: {self.candidate_name.format(score=score)}"

    def label(self, score: str) -> str:
        """Return the short name with that of the task's score."""
        return f"{self.short} {score}" if self.unit == "score" else self.short

    def limits_in(self, scale: ScoreScale) -> tuple[float, float]:
        """Return minimum and maximum that the number can have, given the scale of the score."""
        return scale.limits if self.unit == "score" else self.limits

    def is_less_better_in(self, scale: ScoreScale) -> bool:
        """Return True if a smaller number is better, given the scale of the score."""
        return scale.best == "low" if self.unit == "score" else self.is_less_better

    def text(self, value: float | None, scale: ScoreScale = PERCENT) -> str:
        """Return the number, or a mean of it over runs or rounds, as text.

        Args:
            scale: Scale of the task's score.
        """
        if value is None:
            return NOT_MEASURED
        if self.unit == "score":
            return scale.text(value)
        if self.unit == "s":
            return format_duration(value)
        is_mean_count = self.unit == "count" and not value.is_integer()
        specs = {"return": "+.3f", "× host": ".2f"}
        return format_number(value, ",.1f" if is_mean_count else specs.get(self.unit, ",.0f"))

    def difference_text(self, value: float, scale: ScoreScale = PERCENT) -> str:
        """Return the difference between two values of the number as text with a sign. Arguments are as in `text`."""
        if self.unit == "score":
            return scale.difference(value)
        if self.unit == "s":
            return f"{'-' if value < 0 else '+'}{format_duration(abs(value))}"
        specs = {"return": "+.3f", "× host": "+.2f"}
        return format_number(value, specs.get(self.unit, "+,.1f" if value % 1 else "+,.0f"))

    def of(self, run: MeasuredRun | None) -> float | None:
        """Return the number of a run; None if it was not measured, or without a run."""
        return None if run is None else run.measures.get(self.key)

    def mean_over(self, rounds: Sequence[RoundSummary]) -> float:
        """Return the mean of a measure of rounds over one or more of them."""
        assert self.of_round is not None
        return statistics.fmean(map(self.of_round, rounds))


BEST = Measure(
    key="best",
    name="best {score} at any step",
    short="best env",
    definition="the best of all envs and steps, a single env at a single step; of a growth, in the trainings of its "
    "answer",
    unit="score",
    column_priority=9,
    of_candidate=lambda candidate: candidate.best_score,
    candidate_name="best {score} of a training",
    of_state=lambda state: state.best_env.best_score if state.best_env else None,
)
LAST_SCORE = Measure(
    key="score",
    name="median {score}",
    short="last",
    definition="at the end of the last finished round, median over the envs; of a growth, that of its answer, mean "
    "over fresh hosts",
    unit="score",
    column_priority=1,
    of_candidate=lambda candidate: candidate.mean_score,
    candidate_name="{score}",
    of_round=lambda finished: finished.score.median,
)
LAST_RETURN = Measure(
    key="return",
    name="mean return",
    short="mean ret",
    definition="undiscounted return of the last finished round, mean over the envs; of a growth, that of its answer, "
    "mean over fresh hosts",
    unit="return",
    limits=(-math.inf, math.inf),
    column_priority=3,
    of_candidate=lambda candidate: candidate.mean_return,
    candidate_name="return",
    of_round=lambda finished: finished.episode_return,
)
LAST_PARAMETERS = Measure(
    key="parameters",
    name="parameters, × host",
    short="×host",
    definition="host and seeds at the end of the last finished round, relative to the bare host, mean over the envs; "
    "of a growth, those of its answer",
    unit="× host",
    limits=(1.0, math.inf),
    is_less_better=True,
    column_priority=10,
    of_candidate=lambda candidate: candidate.parameter_ratio,
    candidate_name="parameters, × host",
    of_round=lambda finished: finished.parameter_ratio,
)
DURATION = Measure(
    key="duration",
    name="recorded time",
    short="recorded",
    definition="pauses included, without gaps between parts",
    unit="s",
    of_state=lambda state: state.elapsed,
)


def _smoothed_score(state: RunState) -> float | None:
    """Return the smoothed score; None for a growth, whose rounds train different candidates."""
    if state.search is not None:
        return None
    recent = [final.median for final in state.scores_by_round[-SMOOTHED_ROUNDS:]]
    return statistics.fmean(recent) if recent else None


MEASURES: dict[str, Measure] = {
    measure.key: measure
    for measure in (
        LAST_SCORE,
        LAST_RETURN,
        Measure(
            key="smoothed",
            name=f"last ≤{SMOOTHED_ROUNDS} rounds: median {{score}}",
            short="smoothed",
            definition=f"the median of each round, mean over up to {SMOOTHED_ROUNDS} last rounds",
            unit="score",
            of_state=_smoothed_score,
        ),
        LAST_PARAMETERS,
        BEST,
        Measure(
            key="anomalies",
            name="anomalies",
            short="anomalies",
            definition="number of their occurrences",
            is_less_better=True,
            column_priority=12,
            of_state=lambda state: state.num_anomalies,
        ),
        Measure(
            key="planted",
            name="seeds planted",
            short="planted",
            definition="by all envs, in all rounds",
            column_priority=11,
            of_state=lambda state: sum(seeds.planted for seeds in state.blueprints.values()),
        ),
        Measure(
            key="fossilized",
            name="seeds fossilized",
            short="kept",
            definition="by all envs, in all rounds",
            of_state=lambda state: sum(seeds.fossilized for seeds in state.blueprints.values()),
        ),
        Measure(
            key="culled",
            name="seeds culled",
            short="culled",
            definition="by all envs, in all rounds",
            of_state=lambda state: sum(seeds.culled for seeds in state.blueprints.values()),
        ),
        DURATION,
        Measure(
            key="finished_rounds",
            name="rounds finished",
            short="finished",
            definition="in which all episodes have ended",
            of_summary=lambda run: len(run.finished),
        ),
        Measure(
            key="env_steps",
            name="env-steps",
            short="env-steps",
            definition="over all envs",
            of_summary=lambda run: run.env_steps,
        ),
        Measure(
            key="env_steps_per_second",
            name="env-steps/s",
            short="env-steps/s",
            definition="by the time of all steps",
            unit="1/s",
            of_summary=lambda run: run.env_steps_per_second,
        ),
        Measure(
            key="skipped_batches",
            name="skipped batches",
            short="skipped",
            definition="because of an overflow",
            is_less_better=True,
            of_summary=lambda run: run.skipped_batches,
        ),
        Measure(
            key="rollbacks",
            name="rollbacks",
            short="rollbacks",
            definition="by the governor",
            is_less_better=True,
            of_summary=lambda run: run.rollbacks,
        ),
        Measure(
            key="checkpoints",
            name="checkpoints written",
            short="checkpoints",
            definition="those that were deleted since included",
            of_summary=lambda run: run.checkpoints,
        ),
    )
}
"""All measures of a run, keyed by their names, in the order in which they are shown."""


def listed_measures() -> dict[str, Measure]:
    """Return the measures that lists and filters of runs have."""
    return {key: measure for key, measure in MEASURES.items() if measure.is_listed}


def objective_measures() -> dict[str, Measure]:
    """Return the measures that a sweep can optimise: those of finished rounds."""
    return {key: measure for key, measure in MEASURES.items() if measure.of_round is not None}


def measure_state(state: RunState) -> dict[str, float]:
    """Return the measures that lists have, from the state at the end of a run."""
    is_growth = state.search is not None
    candidate = state.search.result if state.search is not None else None
    last = None if is_growth else _last_round(state)
    found: dict[str, float | None] = {}
    for key, measure in MEASURES.items():
        if is_growth and measure.of_candidate is not None:
            found[key] = None if candidate is None else measure.of_candidate(candidate)
        elif measure.of_round is not None:
            found[key] = None if last is None else measure.of_round(last)
        elif measure.of_state is not None:
            found[key] = measure.of_state(state)
    return _measured(found)


def measure_summary(summary: RunSummary) -> dict[str, float]:
    """Return the other measures, from the summary of a run."""
    return _measured({key: measure.of_summary(summary) for key, measure in MEASURES.items() if measure.of_summary})


def _measured(values: Mapping[str, float | None]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if value is not None}


def _last_round(state: RunState) -> RoundSummary | None:
    """Return the results of the last finished round of a run; None before the first."""
    if not state.scores_by_round or state.last_return is None or state.last_parameter_ratio is None:
        return None
    return RoundSummary(
        round=state.rounds_ended,
        score=state.scores_by_round[-1],
        episode_return=state.last_return,
        parameter_ratio=state.last_parameter_ratio,
    )
