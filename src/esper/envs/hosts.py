"""HostFactory: the growing networks of the envs of one device, and the weights that they share."""

from __future__ import annotations

import torch

from esper.growth.lifecycle import GateConfig
from esper.growth.network import GrowingNetwork
from esper.tasks.hosts import build_host, frozen_tensors, named_tensors, share_tensors
from esper.tasks.probe import TaskProfile
from esper.tasks.task import Task


class HostFactory:
    """Builds the networks of the envs of one device. Frozen weights are stored once for all of them.

    Args:
        task: Task whose model function builds the hosts.
        profile: Properties of the model.
        device: Device of the envs.
        seed: Random seed of the run.
    """

    def __init__(self, task: Task, profile: TaskProfile, device: torch.device, seed: int) -> None:
        self.task = task
        self.profile = profile
        self.device = device
        self._seed = seed
        self._shared: dict[str, torch.Tensor] = {}
        """Frozen weights of the first host, on the device."""

    def build_network(self, host: int, gates: GateConfig) -> GrowingNetwork:
        """Build the network of an env, with the host of round 0.

        Args:
            host: Index of the host in the population.
            gates: Thresholds of every slot.
        """
        built = build_host(self.task, self._seed, host, 0)
        if self._shared:
            share_tensors(built, self._shared)
        network = GrowingNetwork(
            built.model,
            self.profile.sites,
            gates,
            shares_prefix=self.profile.shares_prefix,
            frozen=built.frozen,
        ).place(self.device, channels_last=self.profile.channels_last)
        if not self._shared:
            self._shared = frozen_tensors(built)
        return network

    @torch.no_grad()
    def reset(self, network: GrowingNetwork, host: int, round_index: int) -> None:
        """Give a network the weights of a fresh host, in place. Frozen weights stay.

        Args:
            network: Network of `build_network`.
            host: Index of the host in the population.
            round_index: Index of the round, from 0.
        """
        fresh = build_host(self.task, self._seed, host, round_index)
        values = named_tensors(fresh.model)
        for name, tensor in network.state_tensors().items():
            if name.startswith(_HOST_PREFIX):
                tensor.copy_(values[name.removeprefix(_HOST_PREFIX)], non_blocking=True)


_HOST_PREFIX = "host."
