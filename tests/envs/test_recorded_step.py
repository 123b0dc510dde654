"""Env-steps that are recorded and replayed equal launched ones to the bit: nothing that changes is a constant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from esper.tasks.task import Task
from tests.engine.populations import digits_profile, play, population
from tests.envs.tapes import taped


def small_epochs(task: Task) -> Task:
    """Return a task with two full batches and a smaller one in each epoch."""
    return replace(task, batch_size=16, samples_per_epoch=40)


@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_episodes_are_replayed_to_the_bit(amp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digits_profile()
    options = {"envs": 2, "amp": amp, "steps": 12}
    with population(task=small_epochs, **options) as pool:
        wanted = [play(pool, round_index, 12) for round_index in range(2)]
    with population(task=small_epochs, **options) as pool, taped(pool, monkeypatch) as tapes:
        found = [play(pool, round_index, 12) for round_index in range(2)]
        assert found == wanted
        print(len(tapes), sum(t.replays for t in tapes))
        assert sum(tape.replays > 1 for tape in tapes) > 10
