from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.recordings.effects.change import WITHOUT_GROWTH, without_decision
from esper.recordings.effects.paying import paying_plantings
from esper.recordings.effects.plantings import planting_effects, read_results
from esper.recordings.effects.results import EpisodeResults
from esper.recordings.effects.store import EffectStore
from esper.recordings.history.history import open_history
from tests.recordings.effects.growing import growing_run
from tests.recordings.effects.stored import RENT, simulated, store_effects
from tests.recordings.files.recordings import recording, write_segment


def known(folder: Path) -> list[EpisodeResults]:
    """All results of a recording."""
    rounds = read_results(open_history(folder), EffectStore(folder).read())
    return [results for of_round in rounds for results in of_round.results]


def test_planting_effects_are_means_over_the_episodes_with_results(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(growing_run(rounds=3)))
    store_effects(tmp_path, 1, 0, {2: 0.3, 4: 0.5, 5: -0.1})
    store_effects(tmp_path, 3, 0, {2: 0.1}, differs_from=4)
    effects = planting_effects(known(tmp_path))
    depthwise, norm = effects["depthwise"], effects["norm"]
    assert (depthwise.net.mean, depthwise.net.n, depthwise.exact) == (pytest.approx(0.2), 2, False)
    assert depthwise.net.low is not None
    assert depthwise.net.low < 0 < depthwise.net.mean  # an interval of two values is wide
    assert (norm.net.mean, norm.net.n, norm.net.low, norm.exact) == (pytest.approx(-0.1), 1, None, True)
    for worth in (depthwise, norm):  # the planting, and another decision about the seed
        assert worth.rent.mean == pytest.approx(2 * RENT)
        assert worth.gain.mean == pytest.approx(worth.net.mean + worth.rent.mean)


def test_planting_effects_of_an_unfinished_episode_do_not_count(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(growing_run(ends=False)))
    store_effects(tmp_path, 1, 0, {2: 0.3})
    assert len(known(tmp_path)) == 1
    assert planting_effects(known(tmp_path)) == {}


def test_results_of_a_round_that_is_not_recorded_are_left_out(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(growing_run()))
    episode = store_effects(tmp_path, 1, 0, {2: 0.3})
    EffectStore(tmp_path).add(simulated(episode._replace(round=7)))
    EffectStore(tmp_path).add(simulated(episode._replace(round=7), without_decision(episode, 2), 0.5))
    (depthwise,) = planting_effects(known(tmp_path)).values()
    assert (depthwise.net.n, depthwise.exact) == (1, True)


def test_show_has_the_mean_effect_where_it_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segment(tmp_path, 1, recording(growing_run(rounds=2)))
    store_effects(tmp_path, 1, 0, {2: 0.25})
    store_effects(tmp_path, 2, 0, {2: 0.15}, differs_from=3)
    assert main(["show", str(tmp_path)]) == 0
    lines = {words[0]: words for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert lines["seeds"][-8:] == ["gain", "rent", "net", "effect", "on", "the", "return", "n"]
    gain, _, _, rent, _, _, net, *_, count = lines["depthwise"][-10:]
    assert (gain, rent, net, count) == ("≈+0.220", "≈+0.020", "≈+0.200", "2")
    assert lines["norm"][-4:] == ["–"] * 4
    assert main(["show", str(tmp_path), "--json"]) == 0
    seeds = json.loads(capsys.readouterr().out)["seeds"]
    assert seeds["depthwise"]["worth"]["net"]["mean"] == pytest.approx(0.2)
    assert not seeds["depthwise"]["worth"]["exact"]
    assert "worth" not in seeds["norm"]


def test_show_has_the_score_without_growth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segment(tmp_path, 1, recording(growing_run(rounds=2)))
    for number, differs_from, text in ((1, None, "90.0%, 90.0% to"), (2, 3, "90.0%, ≈41.2% without growth, 90.0% to")):
        episode = store_effects(tmp_path, number, 0, {}, differs_from)
        EffectStore(tmp_path).add(simulated(episode, WITHOUT_GROWTH, 0.488))
        assert main(["show", str(tmp_path)]) == 0
        assert text in capsys.readouterr().out
    assert main(["show", str(tmp_path), "--json"]) == 0
    references = json.loads(capsys.readouterr().out)["references"]
    assert [(found["round"], found["score"], found["exact"]) for found in references] == [
        (1, pytest.approx(0.412), True), (2, pytest.approx(0.412), False)
    ]  # fmt: skip


def test_plantings_that_pay_are_those_of_completely_measured_episodes(tmp_path: Path) -> None:
    """Effects of single decisions do not count: users ask for those of remarkable ones."""
    write_segment(tmp_path, 1, recording(growing_run(rounds=4)))
    store_effects(tmp_path, 3, 0, {2: 0.9})
    assert paying_plantings(known(tmp_path)) is None
    store_effects(tmp_path, 1, 0, {2: 0.3, 5: 0.004})
    single = paying_plantings(known(tmp_path))
    assert single
    assert (single.n, single.pays, single.fraction, str(single)) == (2, 1, None, "1 of 2 (exact, 1 episode)")
    store_effects(tmp_path, 2, 0, {2: 0.2, 5: 0.1}, differs_from=3)
    found = paying_plantings(known(tmp_path))
    assert found
    assert found.effect
    assert (found.n, found.pays, found.episodes, found.exact) == (4, 3, 2, 1)
    assert found.effect.mean == pytest.approx(0.604 / 4)
    assert str(found).startswith("≈3 of 4, ≈75% [")
    assert str(found).endswith("] (1 of 2 episodes exact)")
