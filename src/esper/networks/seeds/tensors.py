"""The tensors of a module: its parameters, then its buffers. A tensor with several names has the first one."""

from __future__ import annotations

from torch import Tensor, nn


def module_tensors(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module."""
    return [*module.parameters(), *module.buffers()]


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def copy_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the parameters and buffers of a module on the CPU, by name."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in named_tensors(module).items()}
