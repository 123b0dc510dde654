"""The state of an env as named tensors, for checkpoints, rollback and worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from esper.envs.env import Env
from esper.envs.fused_ops import foreach_copy_
from esper.envs.optimizer import FusedOptimizer


class WorkerEnvState(NamedTuple):
    """State of an env for a worker process: everything that the next epoch depends on, and everything it changes."""

    slots: list[dict[str, Any]]
    """Lifecycle state of each slot."""
    arrays: dict[str, np.ndarray[Any, Any]]
    """Result of `env_state_tensors`, as arrays."""
    scaler: dict[str, Any] | None
    """State of the loss scaler; None without loss scaling."""

    @classmethod
    def of(cls, env: Env) -> WorkerEnvState:
        """Return the state of an env on a CPU.

        The arrays share the env's memory: send them before its next epoch.
        """
        arrays = {name: _to_array(value) for name, value in env_state_tensors(env).items()}
        scaler = env.scaler.state_dict() if env.scaler else None
        return cls([slot.lifecycle_state() for slot in env.network.slots], arrays, scaler)

    def load_into(self, env: Env) -> None:
        """Load this state into an env of the same host."""
        for slot, saved in zip(env.network.slots, self.slots, strict=True):
            slot.load_lifecycle_state(saved)
        env.sync_optimizers()
        self.load_tensors_into(env)

    def load_tensors_into(self, env: Env) -> None:
        """Load everything but the slots' lifecycle state into an env, whose slots must be in that state already."""
        targets = env_state_tensors(env)
        copy_tensors_(targets, {name: _to_tensor(array, targets[name]) for name, array in self.arrays.items()})
        if env.scaler and self.scaler:
            env.scaler.load_state_dict(self.scaler)


def _to_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as an array that shares its memory; bfloat16, which NumPy does not have, as int16."""
    return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _to_tensor(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """Return the tensor of `_to_array`, of the same dtype as `like`."""
    tensor = torch.as_tensor(array)
    return tensor.view(torch.bfloat16) if like.dtype is torch.bfloat16 else tensor


def env_state_tensors(env: Env) -> dict[str, Tensor]:
    """Return the live weights, buffers and optimizer states of an env, by name, without frozen weights."""
    named = {f"network.{name}": value for name, value in env.network.state_tensors().items()}
    for owner, optimizer in _optimizers(env).items():
        named |= optimizer.state_tensors(owner)
    return {name: value.detach() for name, value in named.items()}


def load_env_tensors(env: Env, named: Mapping[str, Tensor]) -> None:
    """Copy the tensors of `env_state_tensors` into an env, whose slots must have been restored before.

    Raises:
        RuntimeError: A tensor is missing, or has another shape.
    """
    load_tensors(env_state_tensors(env), named)


@torch.no_grad()
def load_tensors(targets: Mapping[str, Tensor], named: Mapping[str, Tensor]) -> None:
    """Copy tensors into those of the same names. Tensors without a target are ignored.

    Raises:
        RuntimeError: A tensor is missing, or has another shape.
    """
    check_tensors(targets, named)
    for name, target in targets.items():
        target.copy_(named[name])


def check_tensors(targets: Mapping[str, Tensor], named: Mapping[str, Tensor]) -> None:
    """Check that every target has a tensor of the same name and shape.

    Raises:
        RuntimeError: A tensor is missing, or has another shape.
    """
    for name, target in targets.items():
        if name not in named:
            raise RuntimeError(f"{name} is missing")
        if named[name].shape != target.shape:
            raise RuntimeError(f"{name} has shape {list(named[name].shape)}, not {list(target.shape)}")


@torch.no_grad()
def copy_tensors_(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Overwrite tensors with values of the same names and shapes, in one pass per dtype."""
    for dtype in {value.dtype for value in values.values()}:
        names = [name for name, value in values.items() if value.dtype is dtype]
        foreach_copy_([targets[name] for name in names], [values[name] for name in names])


def _optimizers(env: Env) -> dict[str, FusedOptimizer]:
    return {"host": env.host_optimizer} | {
        f"slot{index}": optimizer for index, optimizer in env.slot_optimizers.items()
    }
