"""FreshScores: intervals over hosts and samples, and how often they call noise an improvement.

Shapes: H hosts, N samples.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.common.intervals import crossed_interval, joint_level
from esper.common.score_scale import PERCENT
from esper.recordings import events as ev
from esper.recordings.candidates.candidates import BARE_HOST, WIDE_HOST, Candidate, choose
from esper.recordings.state.search_state import SearchState
from esper.studies.growth.fresh_scores import GAIN_LEVEL, FreshScores, NetworkScores
from esper.studies.growth.growth import FRESH_HOSTS

Array = np.ndarray


def measured(scores_by_name: dict[str, Array], rent: float = 0.0) -> list[Candidate]:
    """Return candidates with these scores, [H, N], on the validation and the test split, as a growth measures them."""
    search, fresh = SearchState(info=ev.SearchInfo(objective="score")), FreshScores(PERCENT, 0.1)
    for name, scores_HN in scores_by_name.items():
        origin = "host" if name == BARE_HOST else "comparison" if name == WIDE_HOST else "drawn"
        for host, scores_N in enumerate(scores_HN, 1):
            part = torch.from_numpy(scores_N).float()
            fresh.add(name, host, NetworkScores(part, part))
            search.apply(ev.TrialStarted(round=host, env=0, candidate=name, origin=origin, fresh=host))
            score = float(part.double().mean())
            net_return = score - (0.0 if name == BARE_HOST else rent)
            search.apply(
                ev.TrialEnded(
                    round=host, step=1, env=0, candidate=name, fresh=host, outcome="done",
                    score=score, net_return=net_return, parameter_ratio=1.0,
                )
            )  # fmt: skip
    for event in fresh.measure(search.candidates, "return" if rent else "score"):
        search.apply(event)
    return search.candidates


def noise(rng: np.random.Generator, samples: int) -> dict[str, Array]:
    """Return scores of the bare host and three candidates of equal worth.

    A sample is easy for all networks with seeds, or for all without, by chance; and hosts differ.
    """
    easy_N = rng.normal(0.0, 0.5, samples)
    scores: dict[str, Array] = {}
    for name in (BARE_HOST, "1:norm@a", "1:mlp@a", "1:mlp@b"):
        shared_N = easy_N if name else -easy_N
        own_N = rng.normal(0.0, 0.3, samples)
        hosts_H1 = rng.normal(0.0, 0.05, (FRESH_HOSTS, 1))
        difficulty_HN = shared_N + own_N + hosts_H1 + rng.normal(0.0, 0.5, (FRESH_HOSTS, samples))
        scores[name] = (difficulty_HN > 0).astype(np.float32)
    return scores


def test_equal_candidates_are_rarely_called_better() -> None:
    """With the hosts as the only source of chance, a better one was named in 31 % of these growths."""
    rng = np.random.default_rng(0)
    answers = [choose(measured(noise(rng, 200)), "score") for _ in range(200)]
    named = sum(answer is not None and answer.name != BARE_HOST for answer in answers)
    assert named <= 0.05 * len(answers)


def test_gain_is_paired_and_corrected_for_the_number_of_finalists() -> None:
    rng = np.random.default_rng(1)
    host_HN = (rng.random((FRESH_HOSTS, 300)) < 0.7).astype(np.float64)
    better_HN = np.where(rng.random(host_HN.shape) < 0.2, 1.0, host_HN)
    scores = {BARE_HOST: host_HN, "1:a@a": better_HN, "1:b@a": host_HN, WIDE_HOST: better_HN}
    found = {one.name: one for one in measured(scores)}
    expected = crossed_interval(better_HN - host_HN, joint_level(2, GAIN_LEVEL))
    gain = found["1:a@a"].gain
    assert gain is not None
    assert (gain.mean, gain.low, gain.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert found["1:a@a"].is_better
    assert not found["1:b@a"].is_better
    assert found[BARE_HOST].gain is None
    assert found[WIDE_HOST].gain is None
    assert found[WIDE_HOST].test_interval == found["1:a@a"].test_interval
    own = crossed_interval(host_HN)
    interval = found[BARE_HOST].score_interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((own.low, own.high))


def test_rent_shifts_the_gain_and_not_its_width() -> None:
    rng = np.random.default_rng(2)
    host_HN = (rng.random((FRESH_HOSTS, 300)) < 0.7).astype(np.float64)
    better_HN = np.where(rng.random(host_HN.shape) < 0.2, 1.0, host_HN)
    one = measured({BARE_HOST: host_HN, "1:a@a": better_HN}, rent=0.25)[1]
    assert one.gain is not None
    assert one.score_gain is not None
    assert one.gain.mean == pytest.approx(one.score_gain.mean - 0.25)
    assert one.gain.high - one.gain.low == pytest.approx(one.score_gain.high - one.score_gain.low)
    assert not one.is_better


def test_scores_survive_a_checkpoint() -> None:
    first, later = FreshScores(PERCENT, 0.1), FreshScores(PERCENT, 0.1)
    for host in (1, 2):
        first.add("1:a@a 2:b@b", host, NetworkScores(torch.rand(5), torch.rand(3)))
        first.add(BARE_HOST, host, NetworkScores(torch.rand(5), torch.rand(3)))
    later.load_state_dict(first.state_dict(), first.state_tensors())
    assert later.state_dict() == first.state_dict()
    assert {name: tensor.tolist() for name, tensor in later.state_tensors().items()} == {
        name: tensor.tolist() for name, tensor in first.state_tensors().items()
    }
