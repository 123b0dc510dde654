"""The state of an env as named tensors, for checkpoints, rollback and worker processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from esper.training.envs.env import Env
from esper.training.envs.fused_ops import foreach_copy_


class WorkerEnvState(NamedTuple):
    """State of an env for a worker process: everything that the next epoch depends on, and everything it changes."""

    slots: list[dict[str, Any]]
    """Lifecycle state of each slot."""
    arrays: list[np.ndarray[Any, Any]]
    """Result of `Env.blocks`, as arrays."""
    scaler: dict[str, Any] | None
    """State of the loss scaler; None without loss scaling."""


def export_states(envs: Sequence[Env]) -> list[WorkerEnvState]:
    """Return the states of envs of one device, whose tensors are copied to the host together.

    On a CPU, the arrays share the memory of the envs: send them before the next epoch.
    """
    blocks = [env.blocks() for env in envs]
    moved = iter(_move_together([block for of_env in blocks for block in of_env], torch.device("cpu")))
    return [
        WorkerEnvState(
            [slot.lifecycle_state() for slot in env.network.slots],
            [_to_array(next(moved)) for _ in of_env],
            env.scaler.state_dict() if env.scaler else None,
        )
        for env, of_env in zip(envs, blocks, strict=True)
    ]


def load_lifecycle(env: Env, state: WorkerEnvState) -> None:
    """Load the lifecycle state of the slots into an env of the same host."""
    for slot, saved in zip(env.network.slots, state.slots, strict=True):
        slot.load_lifecycle_state(saved)
    env.sync_optimizers()


def load_tensor_states(envs: Sequence[Env], states: Sequence[WorkerEnvState]) -> None:
    """Load everything but the lifecycle state into envs of one device, whose slots must be in that state already."""
    blocks = [block for env in envs for block in env.blocks()]
    arrays = [array for state in states for array in state.arrays]
    if [block.numel() for block in blocks] != [array.size for array in arrays]:
        raise RuntimeError("the networks of the main process and of a worker process differ in size")
    values = [_to_tensor(array, block) for array, block in zip(arrays, blocks, strict=True)]
    if blocks:
        foreach_copy_(blocks, _move_together(values, blocks[0].device))
    for env, state in zip(envs, states, strict=True):
        if env.scaler and state.scaler:
            env.scaler.load_state_dict(state.scaler)


def _move_together(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors of one device on another one, copied in one transfer per dtype.

    Returns:
        Tensors of the same shapes, in the same order; the tensors themselves if they are on the device already.
    """
    if all(tensor.device == device for tensor in tensors):
        return list(tensors)
    moved: dict[int, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors}:
        chosen = {index: tensor for index, tensor in enumerate(tensors) if tensor.dtype is dtype}
        flat = torch.cat([tensor.reshape(-1) for tensor in chosen.values()]).to(device)
        parts = torch.split(flat, [tensor.numel() for tensor in chosen.values()])
        moved |= {index: part.view(chosen[index].shape) for index, part in zip(chosen, parts, strict=True)}
    return [moved[index] for index in range(len(tensors))]


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
    slot_optimizers = {f"slot{index}": optimizer for index, optimizer in env.slot_optimizers.items()}
    for owner, optimizer in {"host": env.host_optimizer, **slot_optimizers}.items():
        named |= optimizer.state_tensors(owner)
    return {name: value.detach() for name, value in named.items()}


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
