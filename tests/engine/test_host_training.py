"""The number of steps after which the bare host no longer improves.

Shapes: N samples.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from esper.config import TaskError
from esper.engine import host_training
from esper.engine.fresh_scores import NetworkScores
from esper.engine.host_training import MAX_DOUBLINGS, choose_steps

HOSTS, SAMPLES = 6, 500


class Hosts:
    """Pools of hosts whose score rises until a step. Each sample is solved or not, differently for each host."""

    def __init__(self, flat_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[int] = []
        self._flat_after = flat_after
        self._generator = torch.Generator().manual_seed(0)
        self._step = 0
        monkeypatch.setattr(host_training, "measure_env", self._measure)

    def open(self, steps: int) -> Any:
        self.opened.append(steps)
        self._step = 0
        envs = [StubEnv(index) for index in range(HOSTS)]
        return nullcontext(SimpleNamespace(envs=envs, begin=lambda _: None, start_step=self._start_step))

    @property
    def _score(self) -> float:
        return 0.2 + 0.6 * min(self._step / self._flat_after, 1.0)

    def _start_step(self, actions: dict[Any, Any], step: int) -> Any:
        self._step = step + 1
        measured = SimpleNamespace(measured=SimpleNamespace(score=self._score if step else math.nan))
        return lambda: dict.fromkeys(actions, measured)

    def _measure(self, _: Any) -> NetworkScores:
        scores_N = (torch.rand(SAMPLES, generator=self._generator) < self._score).float()
        return NetworkScores(scores_N, scores_N)


@dataclass(frozen=True)
class StubEnv:
    index: int


@pytest.mark.parametrize(("flat_after", "expected"), [(5, 5), (18, 20), (100, 80)])
def test_steps_double_until_longer_trainings_are_not_better(
    flat_after: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(flat_after, monkeypatch)
    assert choose_steps(5, 0, hosts.open, lambda: False) == expected
    assert hosts.opened == [5 * 2**doubling for doubling in range(MAX_DOUBLINGS + 1) if 5 * 2**doubling <= 2 * expected]


def test_stop_request_ends_the_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(18, monkeypatch)
    assert choose_steps(5, 0, hosts.open, lambda: len(hosts.opened) == 2) is None


def test_host_without_a_finite_score_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TaskError, match="for 1 step had no finite score; give --steps yourself"):
        choose_steps(1, 0, Hosts(18, monkeypatch).open, lambda: False)
