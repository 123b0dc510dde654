"""Memory accounting: bytes of live tensors by owner.

Not counted: the copy of an env in a worker process, its last good state, and buffers and memory of CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from esper.networks.seeds.slot import Slot
from esper.networks.seeds.tensors import module_tensors
from esper.networks.tasks.splits import data_tensors
from esper.training.envs.env import Env
from esper.training.envs.optimizer import ModuleOptimizer
from esper.training.lanes.pool import EnvPool
from esper.training.policy.agent import Agent


class _HostBytes(NamedTuple):
    """Bytes of the tensors of a host."""

    bytes: int
    """Trained weights with their gradients, and buffers."""
    optimizer: int
    frozen: int
    """Weights that all hosts of a device share."""


class _KeptBytes(NamedTuple):
    """Bytes of the seeds and the blend gate that were ever planted in a slot."""

    modules: int
    """Number of these modules."""
    seeds: int
    optimizers: int


class MemoryAccountant:
    """Counts tensor bytes per lane and owner: of each kind of host once per round, of kept seeds when one is added.

    Seeds are kept after their removal, and so count until the end of the run.
    Computed from tensor sizes, without querying the device.
    """

    def __init__(self, pool: EnvPool, agent: Agent) -> None:
        self._lanes = pool.lanes
        self._envs_by_lane = pool.group_by_lane(pool.envs)
        self._agent = agent
        self._round = -1
        self._policy_bytes: dict[int, int] = {}
        self._host_bytes: dict[int, _HostBytes] = {}
        """Keyed by index of the structure."""
        self._kept_bytes: dict[tuple[int, int, int], _KeptBytes] = {}
        """Keyed by the indices of env, structure and slot."""
        self._gradient_bytes: dict[Hashable, int] = {}
        """Bytes of the gradients of a seed, keyed by everything that they depend on."""

    def bytes_by_lane(self, round_index: int) -> list[dict[str, int]]:
        """Return the bytes by owner of each lane, keyed like `DeviceSampled.owners`.

        Data, frozen weights and policy exist once per device; they count towards the first lane of the device.
        """
        if self._round != round_index:
            self._round, self._policy_bytes = round_index, self._count_policy()
            self._host_bytes = {}
        return [self._lane_bytes(index) for index in range(len(self._lanes))]

    def _lane_bytes(self, index: int) -> dict[str, int]:
        envs = self._envs_by_lane[index]
        owners: dict[str, int] = {"hosts": 0, "seeds": 0, "optimizers": 0}
        for env in envs:
            host = self._count_host(env)
            owners["hosts"] += host.bytes
            owners["optimizers"] += host.optimizer
            for slot_index, slot in enumerate(env.network.slots):
                kept = self._count_kept(env, slot_index, slot)
                owners["seeds"] += kept.seeds + self._count_gradients(env, slot_index, slot)
                owners["optimizers"] += kept.optimizers
        if index in self._policy_bytes:
            owners["policy"] = self._policy_bytes[index]
        lane = self._lanes[index]
        if index == self._first_on(lane.device):
            owners["data"] = _bytes(data_tensors(lane.data))
            owners["hosts"] += self._count_host(envs[0]).frozen if envs else 0
        return owners

    def _count_host(self, env: Env) -> _HostBytes:
        # Gradients may live in a worker, so their size is computed from the parameters. By the first call every host
        # has been trained.
        structure = env.context.structure
        if structure not in self._host_bytes:
            network, owned = env.network, env.network.host_tensors()
            known = {id(tensor) for tensor in owned}
            frozen = _bytes(tensor for tensor in module_tensors(network.host) if id(tensor) not in known)
            trained = _bytes(network.host_parameters())
            self._host_bytes[structure] = _HostBytes(
                trained + _bytes(owned), _optimizer_bytes(env.host_optimizer), frozen
            )
        return self._host_bytes[structure]

    def _count_kept(self, env: Env, index: int, slot: Slot) -> _KeptBytes:
        place = env.index, env.context.structure, index
        found = self._kept_bytes.get(place)
        if found is None or found.modules != len(slot.kept):
            kept = slot.kept.modules
            found = self._kept_bytes[place] = _KeptBytes(
                len(kept),
                sum(_bytes(module_tensors(module)) for module in kept),
                sum(_optimizer_bytes(env.optimizer_of(module)) for module in kept),
            )
        return found

    def _count_gradients(self, env: Env, index: int, slot: Slot) -> int:
        if slot.grad_norm is None:
            return 0
        kind = env.context.structure, index, slot.blueprint, slot.gate is None
        if kind not in self._gradient_bytes:
            self._gradient_bytes[kind] = _bytes(slot.parameters())
        return self._gradient_bytes[kind]

    def _count_policy(self) -> dict[int, int]:
        """Return the bytes of the policy, keyed by lane index; empty if no lane uses the device of the policy."""
        found: dict[int, int] = {}
        for tensor in self._agent.state_tensors().values():
            index = self._first_on(tensor.device)
            if index is not None:
                found[index] = found.get(index, 0) + tensor.nbytes
        return found

    def _first_on(self, device: torch.device) -> int | None:
        return next((index for index, lane in enumerate(self._lanes) if lane.device == device), None)


def _optimizer_bytes(optimizer: ModuleOptimizer) -> int:
    return _bytes(value for values in optimizer.state.values() for value in values)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
