"""Causality of a model: whether an output depends on later positions of the input.

Shapes: B samples, T positions.
"""

# PyTorch does not declare the type of `unique`.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.networks.seeds.network import call_model, count_samples
from esper.networks.seeds.outputs import Nested, first_tensor, list_tensors, map_tensors


def is_causal(model: nn.Module, x: Nested) -> bool:
    """Return True if a change of the last position of the input leaves all earlier outputs as they are.

    False for a model with one output for all positions, such as a class: seeds may then look at all of them.

    Args:
        model: Model in evaluation mode, with perturbed weights: layers that start at zero would hide a dependence.
        x: Batch of sequences [B, T, …], or a dict of them.
    """
    with torch.no_grad():
        before, after = (first_tensor(call_model(model, inputs)) for inputs in (x, _with_other_last_position(x)))
    lengths = {tensor.shape[1] for tensor in list_tensors(x) if tensor.dim() > 1}
    if before is None or after is None or len(lengths) != 1:
        return False
    (length,), samples = lengths, count_samples(x)
    if length < 2:
        return False
    if before.shape[0] == samples * length:
        before, after = (output.reshape(samples, length, -1) for output in (before, after))
    # The positions may follow the classes, [B, K, T], and there may be as many classes as positions.
    axes = [axis for axis in range(1, before.dim()) if before.shape[axis] == length]
    return before.shape[0] == samples and any(_differ_at_end_only(before, after, axis) for axis in axes)


def _differ_at_end_only(before: Tensor, after: Tensor, axis: int) -> bool:
    before, after = before.movedim(axis, 0), after.movedim(axis, 0)
    return torch.equal(before[:-1], after[:-1]) and not torch.equal(before[-1], after[-1])


def _with_other_last_position(x: Nested) -> Nested:
    """Return inputs [B, T, …] with other values at the last position. Masks beside them are kept."""
    has_sequence = any(tensor.dim() > 1 and not _is_like_mask(tensor) for tensor in list_tensors(x))

    def change(tensor: Tensor) -> Tensor:
        if tensor.dim() < 2 or tensor.dtype is torch.bool or (has_sequence and _is_like_mask(tensor)):
            return tensor
        changed = tensor.clone()
        changed[:, -1] = tensor[:, -1] + 1.0 if tensor.is_floating_point() else _other_token(tensor)
        return changed

    return map_tensors(change, x)


def _is_like_mask(tensor: Tensor) -> bool:
    """Return True if a tensor has at most two different values, as masks do, but also tokens of two kinds."""
    return len(tensor.unique()) < 3


def _other_token(tokens_BT: Tensor) -> Tensor:
    last_B, first = tokens_BT[:, -1], tokens_BT.min()
    return torch.where(last_B == first, tokens_BT.max(), first)
