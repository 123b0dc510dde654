"""Tests of memory accounting against the sizes of the tensors themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.lanes.pool import EnvPool
from esper.tasks.splits import data_tensors
from esper.telemetry import events as ev
from tests.engine.populations import population
from tests.runs import LiveRun

FLOAT = 4


def owners(live: LiveRun) -> list[tuple[str, dict[str, int]]]:
    return [(event.device, event.owners) for event in live.events if isinstance(event, ev.DeviceSampled)]


def test_memory_owners_are_reported_on_their_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnvPool, "_start_workers", lambda *_: None)  # the copies of envs in workers do not count
    live = LiveRun(tmp_path, envs=3, rounds=2, steps=3, policy="ppo", devices=("cpu:0", "cpu:1"))
    live.start().finish()
    first, second = dict(owners(live)[-2:]).values()
    assert set(first) == {"hosts", "seeds", "optimizers", "policy", "data"}
    assert set(second) == {"hosts", "seeds", "optimizers"}
    assert first["hosts"] == 2 * second["hosts"]
    pool, agent = live.run.pool, live.run.trainer.state.agent
    assert first["data"] == sum(tensor.nbytes for tensor in data_tensors(pool.lanes[0].data))
    assert first["policy"] == sum(tensor.nbytes for tensor in agent.state_tensors().values())
    untrained = dict(owners(live)[:2])["cpu:0"]["policy"]
    moments = sum(tensor.nbytes for name, tensor in agent.state_tensors().items() if name.startswith("adam."))
    assert first["policy"] - untrained == moments > 0


def test_seed_memory_counts_until_the_round_ends(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, envs=1, rounds=1, steps=6, policy="full")
    live.start().finish()
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


def test_lanes_of_one_device_share_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnvPool, "_start_workers", lambda *_: None)
    with population(envs=2, lanes=("cpu:0", "cpu:1")) as pool:
        first, second = pool.lanes
        assert first.data is second.data
