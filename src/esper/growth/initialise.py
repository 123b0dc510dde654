"""Initial values for hosts and seeds, drawn from a given generator and from nothing else.

PyTorch's layers draw theirs from a global stream when they are built, so they depend on who built what before, and on
which thread. Here every parameter and buffer is set again, in the order of `module.modules()`. The draws happen on the
CPU, so that a module starts from the same values on every device.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_ZERO_START = "starts_at_zero"


def zero_start(module: ModuleT) -> ModuleT:
    """Mark a layer whose weight and bias `initialise` sets to zero, so that what follows it starts as nothing."""
    setattr(module, _ZERO_START, True)
    return module


@torch.no_grad()
def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Set every parameter and buffer of `module` anew, in place.

    Convolutions and linear layers: Kaiming-uniform for ReLU, biases zero. Norms: ones and zeros, fresh statistics.
    Layers marked by `zero_start`: zeros.

    Raises:
        TypeError: a layer owns parameters or buffers and is of none of these kinds.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            _kaiming_uniform(layer.weight, generator)
            if layer.bias is not None:
                layer.bias.zero_()
        elif isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            layer.weight.fill_(1.0)
            layer.bias.zero_()
            if isinstance(layer, nn.BatchNorm2d):
                layer.reset_running_stats()
        elif [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            raise TypeError(f"no initial values are defined for a {type(layer).__name__}; add them to initialise.py")
        if getattr(layer, _ZERO_START, False):
            for parameter in layer.parameters(recurse=False):
                parameter.zero_()


def _kaiming_uniform(weight: Tensor, generator: torch.Generator) -> None:
    fan_in = weight[0].numel()
    bound = math.sqrt(6.0 / fan_in)
    weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator), non_blocking=True)
