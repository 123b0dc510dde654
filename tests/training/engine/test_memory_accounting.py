"""Tests of memory accounting against the sizes of the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from esper.networks.tasks.splits import data_tensors
from esper.recordings import events as ev
from esper.training.engine.memory_accountant import MemoryAccountant
from esper.training.lanes.pool import EnvPool
from tests.runs import LiveRun
from tests.training.engine.populations import population, script

FLOAT = 4


def owners(live: LiveRun) -> list[tuple[str, dict[str, int]]]:
    return [(event.device, event.owners) for event in live.events if isinstance(event, ev.DeviceSampled)]


def test_memory_owners_are_reported_on_their_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnvPool, "_start_workers", lambda *_: None)  # the copies of envs in workers do not count
    live = LiveRun.finished(tmp_path, envs=3, rounds=2, steps=3, policy="ppo", devices=("cpu:0", "cpu:1"))
    first, second = dict(owners(live)[-2:]).values()
    assert set(first) == {"hosts", "seeds", "optimizers", "policy", "data"}
    assert set(second) == {"hosts", "seeds", "optimizers"}
    assert first["hosts"] == 2 * second["hosts"]
    pool, agent = live.run.pool, live.run.trainer.state.agent
    assert first["data"] == sum(tensor.nbytes for tensor in data_tensors(pool.lanes[0].data))
    assert first["policy"] == sum(tensor.nbytes for tensor in agent.state_tensors().values())
    assert any(name.startswith("adam.") for name in agent.state_tensors())


def test_seed_memory_counts_until_the_round_ends(tmp_path: Path) -> None:
    live = LiveRun.finished(tmp_path, envs=1, rounds=1, steps=6, policy="full")
    (env,) = live.run.pool.envs
    told = [each for _, each in owners(live)]
    for event in live.events:
        if isinstance(event, ev.EnvStepped):
            grown = sum(slot.parameters for slot in event.slots)
            trained = sum(slot.parameters for slot in event.slots if slot.grad_norm is not None)
            assert told[event.step - 1]["seeds"] == FLOAT * (grown + trained)
    host, seeds = env.network.host_parameter_count, sum(slot.parameter_count for slot in env.network.slots)
    buffers = sum(buffer.nbytes for buffer in env.network.host.buffers())
    assert told[-1]["hosts"] == 2 * FLOAT * host + buffers
    assert told[-1]["seeds"] == 2 * FLOAT * seeds > told[0]["seeds"]
    assert told[-1]["optimizers"] == FLOAT * (host + seeds)


def test_counts_of_kinds_equal_the_tensors_of_every_env() -> None:
    """Sizes are counted once per kind of host and seed in a round; here, the hosts grow between two rounds."""
    agent = SimpleNamespace(state_tensors=dict[str, Tensor])
    with population(envs=3) as pool:
        memory = MemoryAccountant(pool, cast("Any", agent))
        for round_index in range(2):
            pool.reset(round_index)
            if round_index == 1:
                for env in pool.envs:
                    env.network.host.register_buffer("cache", torch.zeros(100))
            for step in range(8):
                pool.step([script(env.index, step, env.network.slots) for env in pool.envs], step)
                (told,) = memory.bytes_by_lane(round_index)
                slots = [slot for env in pool.envs for slot in env.network.slots]
                hosts = [env.network.host for env in pool.envs]
                kept = [
                    (env, module)
                    for env in pool.envs
                    for module in (env.network.host, *(m for slot in env.network.slots for m in slot.kept.modules))
                ]
                assert told["hosts"] == sum(2 * size(host.parameters()) + size(host.buffers()) for host in hosts)
                seeds = [module for slot in slots for module in slot.kept.modules]
                gradients = sum(size(slot.parameters()) for slot in slots if slot.grad_norm is not None)
                assert told["seeds"] == gradients + sum(
                    size(seed.parameters()) + size(seed.buffers()) for seed in seeds
                )
                states = [env.optimizer_of(module).state.values() for env, module in kept]
                assert told["optimizers"] == sum(size(values) for state in states for values in state)
                for env in pool.envs:
                    env.tick()


def size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def test_lanes_of_one_device_share_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnvPool, "_start_workers", lambda *_: None)
    with population(envs=2, lanes=("cpu:0", "cpu:1")) as pool:
        first, second = pool.lanes
        assert first.data is second.data
