"""Evaluation reports: compared pairs, and equal numbers in JSON, text and tables."""

import json

import pytest

from esper.cli.commands.evaluate import print_table, to_text
from esper.evaluation.comparison import EvaluationReport, bootstrap_mean, build_report, to_json
from esper.evaluation.episodes import EpisodeResult

RETURNS = {
    "ppo": [0.5, 0.6, 0.7],
    "heuristic": [0.4, 0.5, 0.6],
    "static": [0.1, 0.9, 0.5],
}


def comparison(*policies: str) -> EvaluationReport:
    results = {
        policy: [
            EpisodeResult(test_accuracy=0.9, validation_accuracy=0.95, parameter_ratio=2.0, net_return=value)
            for value in RETURNS[policy]
        ]
        for policy in policies
    }
    return build_report(results, checkpoint="runs/a", task="digits", steps=25, seed=7)


def pairs(found: EvaluationReport) -> list[tuple[str, str]]:
    return [(difference.policy, difference.against) for difference in found.differences]


def test_ppo_and_heuristic_are_compared_with_all() -> None:
    assert pairs(comparison("static", "heuristic", "ppo")) == [
        ("ppo", "static"),
        ("ppo", "heuristic"),
        ("static", "heuristic"),
    ]
    assert pairs(comparison("ppo", "static")) == [("ppo", "static")]
    assert pairs(comparison("heuristic", "static")) == [("static", "heuristic")]
    assert pairs(comparison("static")) == []


def test_differences_are_paired_by_episode() -> None:
    first, *_ = comparison("ppo", "heuristic", "static").differences
    assert first.net_return.mean == pytest.approx(0.1)
    assert first.net_return.low == pytest.approx(0.1)  # all pairwise differences are equal


def test_report_json_has_every_episode_and_estimate() -> None:
    found = json.loads(to_json(comparison("ppo", "static")))
    assert {key: found[key] for key in ("checkpoint", "task", "steps", "episodes", "seed", "level", "resamples")} == {
        "checkpoint": "runs/a",
        "task": "digits",
        "steps": 25,
        "episodes": 3,
        "seed": 7,
        "level": 0.95,
        "resamples": 10_000,
    }
    ppo, static = found["policies"]
    assert [episode["net_return"] for episode in static["episodes"]] == RETURNS["static"]
    expected = bootstrap_mean(RETURNS["ppo"], seed=7)
    assert ppo["net_return"] == {"mean": expected.mean, "low": expected.low, "high": expected.high}
    assert ppo["test_accuracy"]["mean"] == pytest.approx(0.9)


def test_report_distinguishes_better_from_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    found = comparison("ppo", "heuristic", "static")
    print_table(found)
    for text in (to_text(found), capsys.readouterr().out):
        assert "90.0% [90.0%, 90.0%]" in text
        assert "×2.00 [2.00, 2.00]" in text
        by_pair = {line.split("  ")[0].strip(): line for line in text.splitlines() if " − " in line}
        assert "+0.100 [+0.100, +0.100]" in by_pair["ppo − heuristic"]
        assert by_pair["ppo − heuristic"].rstrip().endswith("better")
        assert by_pair["ppo − static"].rstrip().endswith("undecided")
    assert "3 held-out episodes of 25 steps on digits, seed 7" in to_text(found)
