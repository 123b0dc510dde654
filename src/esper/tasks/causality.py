"""Causality of a model: whether an output depends on later positions of the input.

Shapes: B samples, T positions.
"""

# PyTorch does not declare the type of `unique`.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.growth.network import call_model, count_samples
from esper.growth.outputs import Nested, first_tensor, list_tensors, map_tensors


def is_causal(model: nn.Module, x: Nested) -> bool:
    """Return True if a change of the last position of the input leaves all earlier outputs as they are.

    False for a model with one output for all positions, such as a class: seeds may then look at all of them.

    Args:
        model: Model in evaluation mode, with perturbed weights: layers that start at zero would hide a dependence.
        x: Batch of sequences [B, T, …], or a dict of them.
    """
    changed = map_tensors(_with_other_last_position, x)
    with torch.no_grad():
        before, after = (first_tensor(call_model(model, inputs)) for inputs in (x, changed))
    lengths = {tensor.shape[1] for tensor in list_tensors(x) if tensor.dim() > 1}
    if before is None or after is None or len(lengths) != 1:
        return False
    (length,), samples = lengths, count_samples(x)
    is_per_position = before.shape[:2] == (samples, length) or before.shape[0] == samples * length
    if length < 2 or not is_per_position:
        return False
    before, after = (output.reshape(samples, length, -1) for output in (before, after))
    return torch.equal(before[:, :-1], after[:, :-1]) and not torch.equal(before[:, -1], after[:, -1])


def _with_other_last_position(tensor: Tensor) -> Tensor:
    """Return an input [B, T, …] with other values at the last position; masks are kept."""
    if tensor.dim() < 2 or tensor.dtype is torch.bool or len(tensor.unique()) < 3:
        return tensor
    changed = tensor.clone()
    changed[:, -1] = tensor[:, -1] + 1.0 if tensor.is_floating_point() else _other_token(tensor)
    return changed


def _other_token(tokens_BT: Tensor) -> Tensor:
    last_B, first = tokens_BT[:, -1], tokens_BT.min()
    return torch.where(last_B == first, tokens_BT.max(), first)
