"""The tensors of an env by name: what a checkpoint and the governor keep of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from esper.engine.env import Env
from esper.named_tensors import below


def env_tensors(env: Env) -> dict[str, Tensor]:
    """Weights, buffers and momenta of an env by name: the live ones."""
    named = {f"network.{name}": value for name, value in env.network.state_dict().items()}
    for owner, optimizer in _optimizers(env).items():
        for index, state in optimizer.state_dict()["state"].items():
            named[f"momentum.{owner}.{index}"] = state["momentum_buffer"]
    return named


def load_env(env: Env, named: Mapping[str, Tensor]) -> None:
    """Take over what `env_tensors` gave. The env's slots have been restored: its modules are those of the tensors.

    Raises:
        RuntimeError: a tensor is missing, or has another shape.
    """
    env.network.load_state_dict(below("network.", named))
    for owner, optimizer in _optimizers(env).items():
        parameters = optimizer.param_groups[0]["params"]
        for index, buffer in below(f"momentum.{owner}.", named).items():
            optimizer.state[parameters[int(index)]]["momentum_buffer"].copy_(buffer)


def _optimizers(env: Env) -> dict[str, torch.optim.SGD]:
    return {"host": env.host_optimizer} | {
        f"slot{index}": optimizer for index, optimizer in env.slot_optimizers.items()
    }
