"""BestNetwork: copy of the network with the best validation score of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
from torch import Tensor

from esper.networks.seeds.tensors import copy_tensors
from esper.studies.harvest.model import grown_seeds
from esper.studies.harvest.structure import GrownSeed
from esper.training.envs.env import Env

State: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BestNetwork:
    """The network of an env after the step with its best validation score.

    Attributes:
        score: Validation score, a fraction.
        round: Round, from 1.
        step: Number of completed steps of the round.
        parameter_ratio: Parameters of host and seeds that affect the output, divided by those of the host.
        tensors: Copies of its weights and buffers, on the CPU; empty in a description.
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

    @property
    def description(self) -> BestNetwork:
        """The network without its tensors, which other ranks receive."""
        return replace(self, tensors={})

    def seeds_differ(self, env: Env) -> bool:
        """Return True if other seeds affect the output of an env's network now."""
        return self.labels != [seed.label for seed in grown_seeds(env.network.slots)]

    @property
    def labels(self) -> list[str]:
        """Its seeds, such as `conv_heavy in s3`."""
        return [seed.label for seed in self.seeds]


def network_state(network: BestNetwork) -> State:
    """Return a network for a checkpoint, without its tensors, as JSON-compatible values."""
    fields = {name: value for name, value in vars(network).items() if name != "tensors"}
    return fields | {"seeds": msgspec.to_builtins(network.seeds)}


def load_network(state: State, tensors: Mapping[str, Tensor]) -> BestNetwork:
    """Return the network that `network_state` has stored, with its tensors."""
    fields: State = {**state, "seeds": msgspec.convert(state["seeds"], list[GrownSeed])}
    return BestNetwork(**fields, tensors=tensors)
