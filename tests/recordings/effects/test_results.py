"""Known results of an episode: which count, and the effects that follow from them."""

from __future__ import annotations

import pytest

from esper.common.decisions import Decision
from esper.recordings.effects.change import UNCHANGED, without_decision
from esper.recordings.effects.results import Reproduction, reproduced_results, results_by_software
from tests.recordings.effects.episodes import GROWN, episode, simulation

WITHOUT = without_decision(GROWN, 2)


def test_effect_is_the_difference_with_and_without() -> None:
    results = reproduced_results(GROWN, [simulation(), simulation(change=WITHOUT, net_return=0.2)])
    effect = results.effect_without(WITHOUT)
    assert effect is not None
    assert effect.net_return == pytest.approx(0.3)
    assert results.decision_effects() == {2: effect}


def test_approximate_result_without_a_known_cause_names_the_possible_ones() -> None:
    text = str(Reproduction(steps=8, differs_from=3, quantity="loss"))
    assert text.startswith("approximate: loss differs from step 3 on (no cause was found: another processor, or state")
    assert "of the network outside its buffers" in text
    assert "state" not in str(Reproduction(steps=8, differs_from=3, quantity="loss", cause="recorded on cuda:0"))


def test_results_of_another_recording_do_not_count() -> None:
    other = episode({1: Decision("advance", "mid")})
    assert reproduced_results(other, [simulation()]).get() is None
    assert reproduced_results(GROWN, [simulation()]).get() is not None


def test_effect_never_mixes_results_of_two_softwares_or_lengths() -> None:
    before = simulation(change=WITHOUT, software="before", net_return=0.0)
    shorter = simulation(change=WITHOUT, steps=6, net_return=0.0)
    assert reproduced_results(GROWN, [before, shorter, simulation()]).effect_without(WITHOUT) is None


def test_exact_reproduction_is_preferred_to_a_later_approximate_one() -> None:
    exact = simulation(software="before")
    approximate = simulation(differs_from=3)
    assert reproduced_results(GROWN, [exact, approximate]).get() == exact
    assert reproduced_results(GROWN, [approximate]).get() == approximate
    assert results_by_software(GROWN, [exact, approximate], "now").get() == approximate


def test_repeats_are_kept_apart_from_the_episode_itself() -> None:
    repeated = simulation(repeat=1, net_return=0.9)
    results = reproduced_results(GROWN, [simulation(), repeated])
    assert results.get(UNCHANGED, 1) == repeated
    assert results.get(UNCHANGED) != repeated
