"""Evaluation reports: compared pairs, and equal numbers in JSON and text."""

import math
import re

import msgspec
import numpy as np
import pytest

from esper.cli.commands.evaluate import FEW_EPISODES, MAX_COLUMNS, report_text
from esper.common.intervals import t_interval
from esper.studies.evaluation.comparison import EvaluationReport
from tests.studies.evaluation.reports import episode, report, run

RETURNS = {
    "ppo": [0.5, 0.6, 0.7],
    "heuristic": [0.4, 0.5, 0.6],
    "static": [0.1, 0.9, 0.5],
}


def comparison(*policies: str) -> EvaluationReport:
    runs = {policy: [run(*map(episode, RETURNS[policy]))] for policy in policies}
    return report(runs, "runs/a")


def test_interval_of_training_seeds_is_over_seeds_and_episodes() -> None:
    """Three training seeds with the means 0.5, 0.6 and 0.7, in two episodes with the means 0.2 and 1.0."""
    trained = [run(episode(mean - 0.4), episode(mean + 0.4)) for mean in (0.5, 0.6, 0.7)]
    fixed = [run(episode(0.2), episode(0.4, broke_down=True))]
    found = report({"ppo": trained, "static": fixed}, "a", "b", "c")
    ppo, static = found.policies
    assert (ppo.over, static.over) == ("training seeds and episodes", "episodes")
    half_of_seeds = 4.302653 * 0.1 / math.sqrt(3)  # t quantile of two degrees of freedom
    half = math.hypot(half_of_seeds, 12.706205 * 0.8 / math.sqrt(2) / math.sqrt(2))
    assert (ppo.net_return.mean, ppo.net_return.low) == (pytest.approx(0.6), pytest.approx(0.6 - half))
    (difference,) = found.differences
    assert difference.over == "training seeds and episodes"
    assert difference.net_return.mean == pytest.approx(0.3)
    half = math.hypot(half_of_seeds, 12.706205 * 0.6 / math.sqrt(2) / math.sqrt(2))
    assert difference.net_return.high == pytest.approx(0.3 + half)
    assert (ppo.breakdowns, static.breakdowns) == (0.0, 0.5)
    assert ppo.worst_return == pytest.approx(0.1)
    assert [len(episodes) for episodes in ppo.episodes] == [2, 2, 2]


def test_policies_of_training_seeds_are_compared_seed_by_seed() -> None:
    trained = [run(episode(mean), episode(mean)) for mean in (0.5, 0.6, 0.7)]
    wide = [run(episode(mean - 0.1), episode(mean - 0.1)) for mean in (0.5, 0.6, 0.7)]
    found = report({"ppo": trained, "wide": wide}, "a", "b", "c")
    (difference,) = found.differences
    assert difference.over == "training seeds and episodes"
    assert (difference.net_return.low, difference.net_return.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert found.policies[1].cpu_seconds == pytest.approx(3 * 12.3)


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
    found = msgspec.to_builtins(comparison("ppo", "static"))
    assert {key: found[key] for key in ("checkpoints", "task", "steps", "episodes", "seed", "level")} == {
        "checkpoints": ["runs/a"],
        "task": "digits",
        "steps": 25,
        "episodes": 3,
        "seed": 7,
        "level": 0.95,
    }
    ppo, static = found["policies"]
    assert [[episode["net_return"] for episode in run] for run in static["episodes"]] == [RETURNS["static"]]
    expected = t_interval(RETURNS["ppo"])
    assert ppo["net_return"] == {"mean": expected.mean, "low": expected.low, "high": expected.high}
    assert ppo["test_score"]["mean"] == pytest.approx(0.9)


def test_report_distinguishes_better_from_undecided() -> None:
    text = report_text(comparison("ppo", "heuristic", "static"), 80)
    assert "90.0% [90.0, 90.0]" in text
    assert "×2 [2, 2]" in text
    by_pair = {line.split("  ")[0].strip(): line for line in reversed(text.splitlines()) if " − " in line}
    assert "+0.100 [+0.100, +0.100]" in by_pair["ppo − heuristic"]
    assert by_pair["ppo − heuristic"].endswith("better")
    assert by_pair["ppo − static"].endswith("undecided")
    assert "3 held-out episodes of 25 steps on digits, random seed 7" in text


@pytest.mark.parametrize("training_seeds", [1, 3])
def test_equal_policies_are_called_better_or_worse_in_at_most_five_of_100_tables(training_seeds: int) -> None:
    """Seven policies make eleven comparisons. Each interval alone decides in 21 and 27 of 100 tables."""
    rng, tables, wrong = np.random.default_rng(1), 100, 0
    for _ in range(tables):
        of_hosts, of_training = (
            rng.normal(size=32),
            0.1 * rng.normal(size=training_seeds) if training_seeds > 1 else [0],
        )
        runs = {
            policy: [run(*map(episode, of_hosts + rng.normal(size=32)))]
            for policy in ("heuristic", "static", "random", "full", "periodic", "pretrained")
        }
        runs["ppo"] = [run(*map(episode, of_hosts + shift + rng.normal(size=32))) for shift in of_training]
        differences = report(runs, "a").differences
        assert len(differences) == 11
        wrong += any(difference.verdict != "undecided" for difference in differences)
    assert wrong <= 5


def test_verdict_needs_more_than_its_own_interval_in_a_table_of_three() -> None:
    """A difference with t = 2.3 and p = 0.036 in 16 episodes decides alone, and not as the best of three."""
    gains = [0.594 - 1, 0.594 + 1] * 8
    noise = [-1.0, -1.0, 1.0, 1.0] * 4
    runs = {
        "ppo": [run(*map(episode, gains))],
        "static": [run(*[episode(0.0)] * 16)],
        "heuristic": [run(*(episode(gain + shift) for gain, shift in zip(gains, noise, strict=True)))],
    }
    table = report(runs, "a")
    alone = report({policy: runs[policy] for policy in ("ppo", "static")}, "a")
    assert [difference.verdict for difference in table.differences] == ["undecided"] * 3
    assert table.differences[0].net_return == alone.differences[0].net_return
    assert table.differences[0].net_return.excludes_zero
    assert alone.differences[0].verdict == "better"
    assert "5% is the error rate of all 3 comparisons" in " ".join(report_text(table, 80).split())


def test_report_of_two_episodes_has_no_impossible_interval_and_says_that_they_are_few() -> None:
    """The t interval of two scores of 20 and 50 % is [-155.6, 225.6] %."""
    name = "plan:1:conv_light@early 2:depthwise@mid,tempo=5,alpha=0.7,style=linear_gate"
    runs = {
        policy: [run(episode(test_score=0.2, ratio=1.2), episode(test_score=0.5, ratio=2.8)) for _ in "ab"]
        for policy in ("ppo", name)
    }
    runs["static"] = [run(episode(test_score=1.0), episode(test_score=1.0))]
    found = report(runs, "a", "b")
    text = report_text(found, 80)
    assert re.search(r"35\.0% \[0\.0, 100\.0\] +×2 \[1, ", text)
    assert "-65.0 [-100.0, +100.0]" in text
    assert "2 episodes are few" in " ".join(text.split())
    many = report({"ppo": [run(*[episode()] * FEW_EPISODES)]}, "a")
    assert "are few" not in report_text(many, 80)
    assert max(map(len, text.splitlines())) <= MAX_COLUMNS
    assert f"\n{name}\n" in text
