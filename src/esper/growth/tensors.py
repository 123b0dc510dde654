"""The tensors of a module: its parameters, then its buffers. A tensor with several names has the first one."""

from __future__ import annotations

from torch import Tensor, nn


def module_tensors(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module."""
    return [*module.parameters(), *module.buffers()]


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
