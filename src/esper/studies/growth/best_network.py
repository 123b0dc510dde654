"""BestNetwork: copy of the network with the best validation score of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from torch import Tensor

from esper.networks.seeds.tensors import copy_tensors
from esper.studies.harvest.model import grown_seeds
from esper.studies.harvest.structure import GrownSeed
from esper.training.envs.env import Env
from esper.training.policy.agent import strip_prefix

State: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BestNetwork:
    """The network of an env after the step with its best validation score.

    Attributes:
        score: Validation score, a fraction.
        round: Round, from 1.
        step: Number of completed steps of the round.
        parameter_ratio: Parameters of host and seeds that affect the output, divided by those of the host.
        tensors: Copies of its weights and buffers, on the CPU.
    """

    score: float
    env: int
    round: int
    step: int
    parameter_ratio: float
    seeds: list[GrownSeed]
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, env: Env, score: float, round_number: int, step: int) -> BestNetwork:
        """Copy the network of an env."""
        network = env.network
        seeds = grown_seeds(network.slots)
        grown = sum(seed.parameters for seed in seeds)
        return cls(
            score=score,
            env=env.index,
            round=round_number,
            step=step,
            parameter_ratio=network.host_ratio + grown / network.host_parameter_count,
            seeds=seeds,
            tensors=copy_tensors(network),
        )

    def seeds_differ(self, env: Env) -> bool:
        """Return True if other seeds affect the output of an env's network now."""
        return self.labels != [seed.label for seed in grown_seeds(env.network.slots)]

    @property
    def labels(self) -> list[str]:
        """Its seeds, such as `conv_heavy in s3`."""
        return [seed.label for seed in self.seeds]


def network_states(networks: Mapping[Any, BestNetwork]) -> list[State]:
    """Return networks for a checkpoint, without their tensors, as JSON-compatible values."""
    return [
        {"key": key, **{name: value for name, value in vars(network).items() if name != "tensors"}}
        | {"seeds": msgspec.to_builtins(network.seeds)}
        for key, network in networks.items()
    ]


def network_tensors(networks: Mapping[Any, BestNetwork]) -> dict[str, Tensor]:
    """Return the tensors of networks for a checkpoint, by name."""
    return {
        f"{index}.{name}": tensor
        for index, network in enumerate(networks.values())
        for name, tensor in network.tensors.items()
    }


def load_networks(states: list[State], tensors: Mapping[str, Tensor]) -> dict[Any, BestNetwork]:
    """Return the networks that `network_states` and `network_tensors` have stored."""
    found: dict[Any, BestNetwork] = {}
    for index, state in enumerate(states):
        fields = {name: value for name, value in state.items() if name not in ("key", "seeds")}
        seeds = msgspec.convert(state["seeds"], list[GrownSeed])
        found[state["key"]] = BestNetwork(**fields, seeds=seeds, tensors=strip_prefix(f"{index}.", tensors))
    return found
