"""The tensors of an env by name: what a checkpoint, the governor and a lane's worker keep of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import (
    Tensor,
    _foreach_copy_,  # pyright: ignore[reportPrivateImportUsage]  (what optimizers and clipping are made of)
)

from esper.engine.env import Env
from esper.engine.sgd import SGD
from esper.policy.agent import below


def env_tensors(env: Env) -> dict[str, Tensor]:
    """Weights, buffers and momenta of an env by name: the live ones."""
    named = {f"network.{name}": value for name, value in env.network.state_dict().items()}
    for owner, optimizer in _optimizers(env).items():
        named |= {f"momentum.{owner}.{index}": momentum for index, momentum in enumerate(optimizer.momenta)}
    return named


def load_env(env: Env, named: Mapping[str, Tensor]) -> None:
    """Take over what `env_tensors` gave. The env's slots have been restored: its modules are those of the tensors.

    Raises:
        RuntimeError: a tensor is missing, or has another shape.
    """
    env.network.load_state_dict(below("network.", named))
    for owner, optimizer in _optimizers(env).items():
        for index, momentum in below(f"momentum.{owner}.", named).items():
            optimizer.momenta[int(index)].copy_(momentum)


@torch.no_grad()
def copy_tensors(to: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Write values over tensors of the same names and shapes, in as few passes as there are dtypes."""
    for kind in {value.dtype for value in values.values()}:
        names = [name for name, value in values.items() if value.dtype is kind]
        _foreach_copy_([to[name] for name in names], [values[name] for name in names])


def _optimizers(env: Env) -> dict[str, SGD]:
    return {"host": env.host_optimizer} | {
        f"slot{index}": optimizer for index, optimizer in env.slot_optimizers.items()
    }
