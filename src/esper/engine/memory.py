"""Whose the memory is: bytes of live tensors by owner, from their sizes and without asking a device.

What a lane's worker has of an env is a copy, and counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from esper.envs.env import Env
from esper.lanes.lane import Lane
from esper.policy.agent import Agent


class Ledger:
    """Keeps the books of a run's tensors. What has not changed since the last look is not counted again.

    Args:
        lanes: of the run.
        envs: of the run, dealt round-robin over the lanes.
        agent: whose tensors are the policy's.
    """

    def __init__(self, lanes: Sequence[Lane], envs: Sequence[Env], agent: Agent) -> None:
        self._lanes = lanes
        self._envs = envs
        self._agent = agent
        self._topology: dict[int, object] = {}
        self._of_env: dict[int, dict[str, int]] = {}
        self._round = -1
        self._of_policy: dict[int, int] = {}

    def by_lane(self, round_index: int) -> list[dict[str, int]]:
        """For each lane, bytes by owner, as `DeviceSampled.owners` has them.

        What is there once for all lanes of a device, the data and the policy, counts to the first of them.
        """
        if self._round != round_index:
            self._round, self._of_policy = round_index, self._policy()
        return [self._of_lane(index) for index in range(len(self._lanes))]

    def _of_lane(self, index: int) -> dict[str, int]:
        counted = [self._count(env) for env in self._envs[index :: len(self._lanes)]]
        owners = {name: sum(env[name] for env in counted) for name in ("hosts", "seeds", "optimizers")}
        if index in self._of_policy:
            owners["policy"] = self._of_policy[index]
        lane = self._lanes[index]
        if index == self._first_on(lane.device):
            owners["data"] = _bytes(vars(lane.splits).values())
        return owners

    def _count(self, env: Env) -> dict[str, int]:
        # A host has been trained whenever this is asked, a seed from its first gradient norm on. The gradients may be a
        # worker's: they are reckoned, as large as the parameters, not looked for.
        slots = env.network.slots
        topology = [(slot.stage, slot.parameter_count, slot.grad_norm is None) for slot in slots]
        if self._topology.get(env.index) != topology:
            self._topology[env.index] = topology
            self._of_env[env.index] = {
                "hosts": _module_bytes(env.network.host, trained=True),
                "seeds": sum(_module_bytes(slot, trained=slot.grad_norm is not None) for slot in slots),
                "optimizers": sum(_bytes(each.momenta) for each in (env.host_optimizer, *env.slot_optimizers.values())),
            }
        return self._of_env[env.index]

    def _policy(self) -> dict[int, int]:
        """Bytes of the policy, by the lane that they count to; none where no lane has the policy's device."""
        found: dict[int, int] = {}
        for tensor in self._agent.tensors().values():
            index = self._first_on(tensor.device)
            if index is not None:
                found[index] = found.get(index, 0) + tensor.nbytes
        return found

    def _first_on(self, device: torch.device) -> int | None:
        return next((index for index, lane in enumerate(self._lanes) if lane.device == device), None)


def _module_bytes(module: nn.Module, *, trained: bool) -> int:
    """Parameters, with their gradients if there are any, and buffers."""
    return (2 if trained else 1) * _bytes(module.parameters()) + _bytes(module.buffers())


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
