"""The front, the choice and the answer of a growth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.intervals import t_interval
from esper.recordings.candidates.candidates import (
    BARE_HOST,
    WIDE_HOST,
    Candidate,
    choose,
    describe_answer,
    describe_candidate,
    front,
)

HOST = [0.700, 0.720, 0.690, 0.710, 0.705]


def candidate(name: str, scores: list[float], ratio: float = 1.0, returns: list[float] | None = None) -> Candidate:
    one = Candidate(
        name=name,
        origin="host" if name == BARE_HOST else "drawn",
        outcome="done",
        score=scores[0],
        net_return=scores[0],
        parameter_ratio=ratio,
        fresh_scores=scores,
        fresh_returns=returns or scores,
        fresh_hosts=list(range(1, 1 + len(scores))),
    )
    if one.is_fresh:
        one.score_interval = one.test_interval = t_interval(scores)
    if one.is_fresh and name != BARE_HOST:
        one.gain = t_interval([value - own for value, own in zip(one.fresh_returns, HOST, strict=False)])
        one.score_gain = t_interval([value - own for value, own in zip(scores, HOST, strict=False)])
    return one


def test_candidate_must_be_clearly_better_than_the_host() -> None:
    host = candidate(BARE_HOST, HOST)
    lucky = candidate("1:norm@a", [HOST[0] + 0.1, HOST[1] - 0.09, *HOST[2:]])
    assert choose([host, lucky], "score") is host
    assert describe_answer([host, lucky], "score", 15) == (
        "no candidate has a better score than your network, which has 70.5% [69.1, 71.9] on the test split; "
        "1 candidate was compared, in 5 fresh trainings each"
    )
    better = candidate("1:norm@a 3:depthwise@b", [score + 0.01 for score in HOST], 1.5)
    assert choose([host, lucky, better], "return") is better
    assert describe_answer([host, lucky, better], "score", 15) == (
        "norm in a at step 1, depthwise in b at step 3 has a better score than your network, by +1.0 [+1.0, +1.0] "
        "points: 71.5% [70.1, 72.9] against 70.5% [69.1, 71.9] on the test split, 1.5 times the parameters; 2 "
        "candidates were compared, in 5 fresh trainings each"
    )
    assert "has a better return (score minus rent) than your network, by +0.010 [+0.010, +0.010]: " in describe_answer(
        [host, better], "return", 15
    )


def test_better_return_with_a_lower_score_is_no_answer() -> None:
    host = candidate(BARE_HOST, HOST)
    cheap = candidate("1:norm@a", [score - 0.01 for score in HOST], returns=[score + 0.01 for score in HOST])
    assert choose([host, cheap], "return") is host


def test_answer_names_a_better_score_that_its_rent_outweighs() -> None:
    host = candidate(BARE_HOST, HOST)
    dear = candidate("1:norm@a", [score + 0.02 for score in HOST], 3.0, [score - 0.01 for score in HOST])
    answer = describe_answer([host, dear], "return", 15)
    assert answer.startswith("no candidate has a better return (score minus rent) than your network, which has 70.5% [")
    assert (
        "; norm in a at step 1 has a better score, 72.5% [71.1, 73.9], but not after its rent: --objective score "
        "chooses by the score alone; 1 candidate was compared" in answer
    )


@pytest.mark.parametrize(
    ("grown", "own", "sentence"),
    [
        (0.01, 0.02, "; both still improve at the end of the trainings, and longer trainings can change the answer"),
        (0.0, 0.02, "; your network still improves at the end of the trainings, and longer trainings can"),
        (0.01, 0.0, "; the grown network still improves at the end of the trainings, and longer trainings can"),
        (0.0, 0.0, ""),
    ],
)
def test_answer_says_if_the_training_was_too_short(grown: float, own: float, sentence: str) -> None:
    host, better = candidate(BARE_HOST, HOST), candidate("1:norm@a", [score + 0.01 for score in HOST])
    noise = [0.001, -0.002, 0.003, 0.0, -0.001]
    host.late_gains, better.late_gains = [own + value for value in noise], [grown + value for value in noise]
    answer = describe_answer([host, better], "score", 15)
    assert answer.endswith(" each" if not sentence else ": --steps 30")
    assert sentence in answer


def test_answer_names_a_broken_host_and_a_better_wide_one() -> None:
    grown = candidate("1:norm@a", [score + 0.01 for score in HOST], 1.5)
    wide = candidate(WIDE_HOST, [score + 0.02 for score in HOST], 1.5)
    answer = describe_answer([candidate(BARE_HOST, HOST), grown, wide], "score", 15)
    assert "; a wider network of this size has 72.5% [71.1, 73.9]; 1 candidate was compared" in answer
    broken = Candidate(name=BARE_HOST, origin="host", outcome="broke down", reason="a weight is not finite")
    assert choose([broken, grown], "score") is grown
    assert describe_answer([broken, grown], "score", 15) == (
        "norm in a at step 1: 71.5% [70.1, 72.9] on the test split, 1.5 times the parameters; 1 candidate was "
        "compared, in 5 fresh trainings each; your network has broken down, so there is no "
        "comparison"
    )
    assert describe_answer([broken], "score", 15).endswith("trained on fresh hosts: a weight is not finite")


def test_incomplete_and_compared_networks_are_never_chosen() -> None:
    host = candidate(BARE_HOST, HOST)
    failed_once = candidate("1:norm@a", [0.99] * 4)
    wide = candidate(WIDE_HOST, [0.99] * 5, 1.5)
    assert choose([host, failed_once, wide], "score") is host
    assert choose([Candidate(name="1:norm@a", origin="drawn", outcome="done", score=0.9)], "score") is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12), st.randoms())
def test_front_has_exactly_the_candidates_that_no_other_one_dominates(
    points: list[tuple[int, int]], order: random.Random
) -> None:
    found = [candidate(f"norm@a:{n}", [score / 10] * 2, 1 + size) for n, (score, size) in enumerate(points)]
    order.shuffle(found)
    chosen = {(one.mean_score, one.parameter_ratio) for one in front(found)}
    all_points = {(one.mean_score or 0.0, one.parameter_ratio or 0.0) for one in found}
    expected = {
        (score, size)
        for score, size in all_points
        if not any(s >= score and p <= size and (s, p) != (score, size) for s, p in all_points)
    }
    assert chosen == expected
    unconfirmed = Candidate(name="1:norm@b", origin="drawn", outcome="done", score=1.0, parameter_ratio=1.0)
    incomplete = candidate("2:norm@b", [1.0])
    assert not {id(unconfirmed), id(incomplete)} & {id(one) for one in front([*found, unconfirmed, incomplete])}


def test_candidates_are_described_in_words() -> None:
    assert describe_candidate(BARE_HOST) == "your network"
    assert (
        describe_candidate("4:x@y,tempo=5,alpha=0.7 10:cull@y")
        == "x in y at step 4 (tempo=5, alpha=0.7), cull in y at step 10"
    )
    assert describe_candidate("x@y:3") == "x@y:3"  # a damaged recording
    assert describe_candidate("/a@b/digits-1/checkpoints/round-00003-step-0006") == "digits-1/round-00003-step-0006"
