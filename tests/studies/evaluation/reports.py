"""Reports of made-up episodes."""

from __future__ import annotations

from esper.common.score_scale import PERCENT
from esper.studies.evaluation.comparison import EvaluationReport, build_report
from esper.studies.evaluation.results import EpisodeResult, PolicyRun


def episode(
    value: float = 0.0, *, test_score: float = 0.9, ratio: float = 2.0, broke_down: bool = False
) -> EpisodeResult:
    """Return an episode with a return."""
    return EpisodeResult(
        test_score=test_score,
        validation_score=0.95,
        parameter_ratio=ratio,
        net_return=value,
        test_return=value - 0.05,
        steps=25,
        broke_down=broke_down,
        seeds=[],
    )


def run(*episodes: EpisodeResult) -> PolicyRun:
    return PolicyRun(episodes=list(episodes), cpu_seconds=12.3)


def report(runs: dict[str, list[PolicyRun]], *checkpoints: str) -> EvaluationReport:
    return build_report(
        runs,
        checkpoints=checkpoints,
        task="digits",
        score_name="accuracy",
        score_scale=PERCENT,
        steps=25,
        seed=7,
    )
