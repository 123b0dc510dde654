"""Verdict on the cause of a drop of the score: whether the drop stays away without the suspected decision."""

from __future__ import annotations

import math
from typing import NamedTuple

from esper.common.score_scale import ScoreScale
from esper.recordings.effects.results import Trajectory

MAX_REMAINING_DROP = 0.5
"""Fraction of the drop, below which the drop without the decision must be for a confirmation."""


class Verdict(NamedTuple):
    """A drop of the score with and without a decision, both at the same step."""

    recorded: float
    """Loss of score from the best one of the episode before the step to the one after it, positive."""
    without: float
    """Loss to the score without the decision; negative if that one is better."""
    scale: ScoreScale

    @property
    def is_confirmed(self) -> bool:
        """True if the decision is a cause: without it, less than half of the drop is left."""
        return self.without < MAX_REMAINING_DROP * self.recorded

    def __str__(self) -> str:
        word = "confirmed" if self.is_confirmed else "refuted"
        without, recorded = (self.scale.difference(self.scale.gain(-loss)) for loss in (self.without, self.recorded))
        return f"{word}: without it {without} instead of {recorded}".replace("-", "−").replace("−0.0 ", "+0.0 ")


def judge_cause(recorded: Trajectory, without: Trajectory, step: int, scale: ScoreScale) -> Verdict | None:
    """Return the verdict on a decision as the cause of a drop of the score.

    Both scores are compared with the best one of the episode with the decision. The best one without it is no measure:
    a decision that had raised the score would be confirmed, because a score that never rose cannot fall.

    Args:
        recorded: The simulated episode without a change.
        without: The same without the decision.
        step: Step of the drop, from 2.
        scale: Scale of the scores.

    Returns:
        None if the score did not drop in that step, or is not known in one of the episodes, after a breakdown.
    """
    if step < 2 or min(len(recorded.scores), len(without.scores)) <= step:
        return None
    best = max(map(scale.gain, recorded.scores[1:step]))
    score, score_without = scale.gain(recorded.scores[step]), scale.gain(without.scores[step])
    if not all(map(math.isfinite, (best, score, score_without))) or score >= best:
        return None
    return Verdict(best - score, best - score_without, scale)
