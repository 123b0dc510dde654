"""HostFactory: the growing networks of the envs of one device, with their shared weights and CUDA graphs."""

from __future__ import annotations

from typing import NamedTuple

import torch

from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.network import GrowingNetwork
from esper.networks.seeds.tensors import named_tensors
from esper.networks.tasks.family import structures_of
from esper.networks.tasks.hosts import build_host, frozen_tensors, share_tensors, widen
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.task import Task
from esper.training.envs.cuda_graphs import CudaGraphs


class HostKind(NamedTuple):
    """Structure and width of a host. Hosts that are equal in both differ in their weights only."""

    structure: int = 0
    """Index of the structure of a family."""
    width: float = 1.0
    """Factor of the widths, see `EpisodeKey.width`."""


HOST = HostKind()
"""Kind of the hosts of a task that is not a family."""


class HostFactory:
    """Builds the networks of the envs of one device. Frozen weights are stored once for all of them.

    Args:
        task: Task whose model function builds the hosts; each structure of a family has its own.

    Attributes:
        cuda_graphs: The CUDA graphs of the envs; None on a CPU.
    """

    def __init__(self, task: Task, profile: TaskProfile, device: torch.device, seed: int) -> None:
        self.task = task
        self.profile = profile
        self.device = device
        self.structures = structures_of(task)
        self.cuda_graphs = CudaGraphs(device) if device.type == "cuda" else None
        self._seed = seed
        self._shared: dict[HostKind, dict[str, torch.Tensor]] = {}
        """Frozen weights of host 0 of each kind, on the device. Every process takes those of the same host, because
        frozen weights may be random."""

    def task_of(self, kind: HostKind) -> Task:
        """Return the task of a structure, whose model builds hosts of a width."""
        task = self.structures[kind.structure]
        return task if kind.width == 1.0 else widen(task, kind.width)

    def build_network(self, host: int, gates: GateConfig, kind: HostKind = HOST) -> GrowingNetwork:
        """Build the network of an env, with the host of round 0."""
        built = build_host(self.task_of(kind), self._seed, host, 0)
        if host > 0 and kind not in self._shared and frozen_tensors(built):
            self.build_network(0, gates, kind)
        if kind in self._shared:
            share_tensors(built, self._shared[kind])
        profile = self.profile.of_structure(kind.structure)
        network = GrowingNetwork(
            built.model,
            profile.sites,
            gates,
            shares_prefix=profile.shares_prefix,
            frozen=built.frozen,
            bare_parameters=None if kind.width == 1.0 else profile.host_parameters,
        ).place(self.device, channels_last=profile.channels_last)
        # Two lanes that build host 0 at the same time have the same values: the first ones stay.
        self._shared.setdefault(kind, frozen_tensors(built))
        return network

    @torch.no_grad()
    def reset(self, network: GrowingNetwork, seed: int, host: int, round_index: int, kind: HostKind = HOST) -> None:
        """Give a network the weights of a fresh host, in place. Frozen weights stay."""
        fresh = build_host(self.task_of(kind), seed, host, round_index)
        values = named_tensors(fresh.model)
        for name, tensor in network.state_tensors().items():
            if name.startswith(_HOST_PREFIX):
                tensor.copy_(values[name.removeprefix(_HOST_PREFIX)], non_blocking=True)


_HOST_PREFIX = "host."
