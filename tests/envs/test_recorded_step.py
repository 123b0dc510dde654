"""Env-steps that are recorded and replayed equal launched ones to the bit: nothing that changes is a constant."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.domain import Curve, Stage
from esper.envs import cuda_graphs
from esper.envs.env import Env
from esper.envs.env_state import env_state_tensors
from esper.envs.governor import LastGoodState
from esper.envs.graph_check import graph_problem
from esper.envs.stopwatch import PhaseTimer
from esper.growth.blend import Blend
from esper.growth.slot import Slot
from esper.seeding import make_generator
from esper.tasks.optimizers import AdamW
from esper.tasks.splits import Splits
from esper.tasks.task import Task
from tests.engine.populations import digits_profile, live_on, play, population
from tests.envs.tapes import Tape, taped

BLUEPRINTS = digits_profile().sites[1].blueprints


def small_epochs(task: Task) -> Task:
    """Return a task with two full batches and a smaller one in each epoch."""
    return replace(task, batch_size=8, samples_per_epoch=20, optimizer=AdamW(0.003))


def few_samples(splits: Splits) -> Splits:
    """Return splits with a small validation split."""
    x, y = splits.validation
    return replace(splits, validation=(x[:40], y[:40]))


@contextmanager
def launched_and_recorded(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[tuple[Env, Env, list[Tape]]]:
    """Two equal envs: one whose kernels are launched, and one that is recorded."""
    given: dict[str, Any] = {"task": small_epochs, "splits": few_samples, "steps": 40, **options}
    with population(**given) as launched, population(**given) as recorded, taped(recorded, monkeypatch) as tapes:
        for pool in (launched, recorded):
            pool.reset(0)
        yield launched.envs[0], recorded.envs[0], tapes


def step_both(envs: Sequence[Env], step: int) -> None:
    """Train and validate both envs, and compare results and states."""
    launched, recorded = (env.run_epoch(step, PhaseTimer(), last=False) for env in envs)
    for expected, found in zip(launched, recorded, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    expected, found = map(env_state_tensors, envs)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name


def replays(tapes: Sequence[Tape]) -> int:
    """Return how often tapes were replayed in place of a launch, and forget it."""
    total = sum(max(tape.replays - 1, 0) for tape in tapes)
    for tape in tapes:
        tape.replays = min(tape.replays, 1)
    return total


def test_episodes_are_replayed_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"envs": 2, "steps": 12, "task": small_epochs, "splits": few_samples}
    with population(**options) as pool:
        wanted = [play(pool, round_index, 12) for round_index in range(2)]
    with population(**options) as pool, taped(pool, monkeypatch) as tapes:
        found = [play(pool, round_index, 12) for round_index in range(2)]
        assert found == wanted
        assert replays(tapes) > 20


@pytest.mark.parametrize(
    ("blueprint", "blend"),
    [
        pytest.param(blueprint, blend, marks=() if index % len(Blend) == choice else pytest.mark.slow)
        for index, blueprint in enumerate(BLUEPRINTS)
        for choice, blend in enumerate(Blend)
    ],
)
def test_every_seed_is_replayed_in_every_stage(blueprint: str, blend: Blend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alphas, learning rates and counts of Adam change between the replays."""
    with launched_and_recorded(monkeypatch, amp="fp16") as (*envs, tapes):
        for slot in each_slot(envs):
            slot.germinate(blueprint, blend, Curve.LINEAR, 5, 1.0, make_generator(0, "seed"))
            slot.tick()
        synchronise(envs)
        stages = set[Stage]()
        for step in range(28, 40):
            step_both(envs, step)
            stages |= {slot.stage for slot in each_slot(envs)}
            for slot in each_slot(envs):
                live_on(slot, advance=step > 29)
            synchronise(envs)
        assert stages == {Stage.TRAINING, Stage.BLENDING, Stage.PROBATIONARY, Stage.FOSSILIZED}
        assert replays(tapes) >= 3 * 8  # of 12 steps, three have a new topology


def each_slot(envs: Sequence[Env]) -> list[Slot]:
    return [env.network.slots[1] for env in envs]


def synchronise(envs: Sequence[Env]) -> None:
    for env in envs:
        env.sync_optimizers()


def test_graphs_survive_rollback_and_new_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, loss scale and data are new, and their addresses are not."""
    with launched_and_recorded(monkeypatch, amp="fp16") as (*envs, tapes):
        kept = [LastGoodState(env) for env in envs]
        for step in range(3):
            step_both(envs, step)
            for good in kept if step == 0 else ():
                good.save()
        replays(tapes)
        for good in kept:
            good.rollback()
        step_both(envs, 3)
        for env in envs:
            env.reset(env.key._replace(round=1))
        step_both(envs, 0)
        for env in envs:
            assert env.scaler
            env.scaler.set_scale(torch.tensor(float("inf")))  # the step is skipped
        step_both(envs, 1)
        assert replays(tapes) == 3 * 5


def test_moved_tensors_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with launched_and_recorded(monkeypatch) as (*envs, tapes):
        graphs = envs[1]._hosts.cuda_graphs
        assert graphs
        for step in range(3):
            step_both(envs, step)
        recorded = graphs.recordings
        weight = envs[1].host_optimizer.parameters[0]
        weight.data = weight.data.clone()
        step_both(envs, 3)
        (notice,) = graphs.take_notices()
        assert notice == "a tensor that CUDA graphs read has moved: they are dropped and recorded again"
        replays(tapes)
        for step in (4, 5):
            step_both(envs, step)
        assert (graphs.recordings, replays(tapes)) == (2 * recorded, 10)


def test_old_graphs_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with launched_and_recorded(monkeypatch) as (*envs, _):
        graphs = envs[1]._hosts.cuda_graphs
        assert graphs
        answers = cycle([True, False])  # it is short until graphs are dropped
        monkeypatch.setattr(cuda_graphs, "is_memory_short", lambda _: next(answers))
        for blueprint in BLUEPRINTS[:3]:
            for slot in each_slot(envs):
                slot.reset()
                slot.germinate(blueprint, Blend.ADD, Curve.LINEAR, 3, 1.0, make_generator(0, "seed"))
                slot.tick()
            synchronise(envs)
            for step in range(2):
                step_both(envs, step)
            assert len(graphs._kept) == 1
        assert graphs.take_notices() == [
            "memory is short: CUDA graphs that were not used for longest make room, or kernels are launched"
        ]
        recordings = graphs.recordings
        assert recordings > 0
        monkeypatch.setattr(cuda_graphs, "is_memory_short", lambda _: True)
        for slot in each_slot(envs):
            slot.reset()
        synchronise(envs)
        for step in range(3):
            step_both(envs, step)
        assert graphs.recordings == recordings  # dropping graphs did not help, so nothing is recorded


def dropped_loss(output: Tensor, y: Tensor) -> Tensor:
    """A loss that draws from torch's generator, in training and in evaluation mode."""
    return torch.nn.functional.cross_entropy(torch.nn.functional.dropout(output, 0.3), y)


def seeded_loss(output: Tensor, y: Tensor) -> Tensor:
    """A loss that draws from Python's generator, which is seeded for each epoch."""
    return torch.nn.functional.cross_entropy(output * (1 + random.random()), y)


calls = itertools.count()


def counted_loss(output: Tensor, y: Tensor) -> Tensor:
    """A loss that depends on the number of its calls."""
    return torch.nn.functional.cross_entropy(output * (1 + next(calls) % 40), y)


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (None, None),
        (dropped_loss, None),
        (seeded_loss, "epoch 1, training differs between recorded and launched kernels"),
        (counted_loss, "epoch 1, training differs when it is repeated from the same state"),
    ],
)
def test_dry_run_finds_numbers_that_python_draws(
    loss: Callable[[Tensor, Tensor], Tensor] | None, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tape, like a graph, contains the number of the recording."""
    # Half of the epoch's batches are launched or recorded, and the others replayed.
    longer = {"batch_size": 8, "samples_per_epoch": 28}
    found = dry_run(monkeypatch, amp="fp16", task=lambda task: replace(task, loss=loss, **longer))
    assert found == problem


def test_dry_run_finds_what_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(output, y) * max(output.abs().max().item(), 1.0)

    def score(output: Tensor, y: Tensor) -> Tensor:
        return (output.argmax(1) == y).float() * float(output.numel() > loss(output, y).item())

    problem = dry_run(monkeypatch, task=lambda task: replace(small_epochs(task), loss=loss, score=score))
    assert problem == (
        "a CUDA graph cannot record the kernels, so they are launched one by one: "
        "a value is read while the stream is capturing"
    )


def dry_run(monkeypatch: pytest.MonkeyPatch, **options: Any) -> str | None:
    with population(**{"task": small_epochs, "splits": few_samples, **options}) as pool, taped(pool, monkeypatch):
        env = pool.envs[0]
        graphs = env._hosts.cuda_graphs
        assert graphs
        problem = graph_problem(env, graphs)
        assert not graphs.structures
        assert graphs.recordings == 0
        return problem
