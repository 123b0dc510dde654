"""Successive halving: the schedule, the choice of the best candidate, and drawn plans."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from research.halving import FIRST_RUNG_EPISODES, MIN_SEARCH_EPISODES, find_best, halving_schedule
from research.target_search import draw_plans

from esper.training.policy.plan import check_names, parse_plan

OFFERED = {"early": ("norm", "conv_light"), "mid": ("depthwise",), "late": ("norm", "conv_heavy", "attention")}


def test_default_training_gives_81_candidates_and_four_rungs() -> None:
    schedule = halving_schedule(70 * 16)
    assert [(rung.candidates, len(rung.hosts)) for rung in schedule] == [(81, 3), (27, 10), (9, 31), (3, 93)]


@given(st.integers(MIN_SEARCH_EPISODES, 10**5))
def test_schedule_keeps_to_its_episodes_and_meets_no_host_twice(episodes: int) -> None:
    schedule = halving_schedule(episodes)
    assert episodes / 2 <= sum(rung.episodes for rung in schedule) <= episodes
    hosts = [host for rung in schedule for host in rung.hosts]
    assert hosts == list(range(len(hosts)))
    assert len(schedule[0].hosts) >= FIRST_RUNG_EPISODES
    assert schedule[-1].candidates == 3


@given(st.randoms(use_true_random=False))
def test_candidate_with_the_highest_return_is_found_without_noise(generator: random.Random) -> None:
    values = generator.sample(range(1000), 81)
    found = find_best(values, halving_schedule(1120), lambda playing, _: playing)
    assert values[found.candidate] == found.mean_return == max(values)


def test_later_rungs_correct_the_luck_of_earlier_ones() -> None:
    """Candidate 26 is the best; the first hosts favour another one, which is dropped after the next hosts."""
    generator = random.Random(1)
    noise = {host: [generator.gauss(0, 0.05) for _ in range(27)] for host in range(1000)}

    def play(candidates: Sequence[int], host: int) -> list[float]:
        return [
            candidate / 100 + noise[host][candidate] + (0.3 if host < 3 and candidate == 20 else 0)
            for candidate in candidates
        ]

    assert find_best(list(range(27)), halving_schedule(600), play).candidate == 26


@given(st.integers(1, 60), st.integers(0, 2**32))
def test_drawn_plans_are_different_and_can_be_followed(steps: int, seed: int) -> None:
    plans = draw_plans(20, OFFERED, steps, seed)
    assert len(set(plans)) == len(plans) <= 20
    assert plans == draw_plans(20, OFFERED, steps, seed)
    for plan in plans:
        ops = parse_plan(plan, steps)  # raises for two ops in one step, and for a step after the end
        check_names(ops, OFFERED)
        assert 1 <= len(ops) <= 3
        assert max(op.step for op in ops) <= max(steps / 2, len(ops))


@pytest.mark.parametrize(("count", "found"), [(5, 5), (100, 2)])
def test_fewer_plans_than_asked_are_drawn_if_there_are_no_more(count: int, found: int) -> None:
    assert len(draw_plans(count, {"only": ("norm", "attention")}, 2 if count == 100 else 40, 0)) == found
