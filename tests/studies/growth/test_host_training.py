"""The number of steps after which the bare host no longer improves.

Shapes: N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import cast

import pytest
import torch

from esper.common.configuration.config import Config, TaskError
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.studies.growth import host_training
from esper.studies.growth.host_training import MAX_DOUBLINGS, choose_steps, train_hosts
from esper.training.engine.episode import Episode
from esper.training.lanes.errors import FaultError
from esper.training.lanes.pool import EnvPool
from tests.ranks import together
from tests.training.engine.populations import population

SAMPLES = 500


class Hosts:
    """Hosts whose score rises until a step. Each sample is solved or not, differently for each host."""

    def __init__(self, flat_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trained: list[int] = []
        self._flat_after = flat_after
        self._generator = torch.Generator().manual_seed(0)
        monkeypatch.setattr(host_training, "train_hosts", self._train)

    def choose(self, steps: int, is_stopped: Callable[[], bool] = lambda: False) -> int | None:
        return choose_steps(Config(steps=steps), lambda _: nullcontext(cast("EnvPool", None)), is_stopped)

    def _train(self, _: EnvPool, config: Config, is_stopped: Callable[[], bool]) -> list[torch.Tensor] | None:
        self.trained.append(config.steps)
        score = 0.2 + 0.6 * min(config.steps / self._flat_after, 1.0)
        hosts = config.envs if config.steps > 1 else 0  # after one step, no score is finite
        scores = [(torch.rand(SAMPLES, generator=self._generator) < score).float() for _ in range(hosts)]
        return None if is_stopped() else scores


@pytest.mark.parametrize(("flat_after", "expected"), [(5, 5), (18, 20), (100, 80)])
def test_steps_double_until_longer_trainings_are_not_better(
    flat_after: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(flat_after, monkeypatch)
    assert hosts.choose(5) == expected
    assert hosts.trained == [
        5 * 2**doubling for doubling in range(MAX_DOUBLINGS + 1) if 5 * 2**doubling <= 2 * expected
    ]


def test_stop_request_ends_the_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(18, monkeypatch)
    assert hosts.choose(5, lambda: len(hosts.trained) == 2) is None


def test_host_without_a_finite_score_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskError, match="for 1 step had no finite score; give --steps yourself"):
        Hosts(18, monkeypatch).choose(1)


@pytest.mark.parametrize("number", [3, 12])
def test_ranks_train_the_hosts_together(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of twelve ranks have no host."""

    def train(own: range, config: Config, is_stopped: Callable[[], bool]) -> list[torch.Tensor] | None:
        if is_stopped():
            raise FaultError("out of reach")
        if config.steps == 100 and 0 in own:
            return None
        draws = [torch.rand(SAMPLES, generator=torch.Generator().manual_seed(config.steps + host)) for host in own]
        return [(draw_N < min(0.04 * config.steps, 0.7)).float() for draw_N in draws]

    monkeypatch.setattr(host_training, "train_hosts", train)

    def choose(ranks: RankGroup, steps: int = 5, failing: int | None = None) -> int | str | None:
        try:
            return choose_steps(
                Config(steps=steps),
                lambda hosts: nullcontext(cast("EnvPool", ranks.env_range(hosts.envs))),
                lambda: ranks.rank == failing,
                ranks,
            )
        except FaultError as fault:
            return str(fault)

    assert together(number, choose) == [choose(SINGLE_RANK)] * number == [20] * number
    assert together(number, partial(choose, steps=100)) == [None] * number  # one of them was stopped
    assert together(number, partial(choose, failing=2)) == ["out of reach"] * number


def test_trained_hosts_have_the_scores_of_their_best_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    tick, scores = host_training.tick_slots, dict[int, list[float]]()

    def note_and_tick(episodes: Sequence[Episode]) -> object:
        scores.update({episode.env.index: episode.view.scores[1:] for episode in episodes})
        return tick(episodes)

    monkeypatch.setattr(host_training, "tick_slots", note_and_tick)
    with population(envs=3, steps=3) as pool:
        best = train_hosts(pool, pool._config, lambda: False)
        assert best is not None
        assert [float(one.mean()) for one in best] == pytest.approx([max(scores[env]) for env in range(3)])
        assert train_hosts(pool, pool._config, lambda: len(scores[0]) == 1) is None
        assert len(scores[0]) == 1
