"""Padding of sequences: the mask of a slot, and operators that leave padded positions out.

A mask is bool [B, T], True at real positions; None if all positions are real.

Shapes: B samples, C channels, L or T positions, G groups of channels.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

INVERTED = "~"
"""Sign before the name of an input that is True at padded positions."""


def read_mask(inputs: Mapping[str, Any], name: str | None) -> Tensor | None:
    """Return the mask of a slot; None if it has none, or if the model was called without this input.

    Args:
        inputs: Inputs of the model, by name; not read without a mask.
        name: Name of the input, after `INVERTED` if it is True at padded positions.
    """
    if name is None:
        return None
    mask = inputs.get(name.removeprefix(INVERTED))
    if mask is None:
        return None
    return mask.logical_not() if name.startswith(INVERTED) else mask.bool()


def hide_padding(x: Tensor, mask: Tensor | None, channel_axis: int) -> Tensor:
    """Return features with zeros at padded positions."""
    return x if mask is None else x.masked_fill(~mask.unsqueeze(channel_axis), 0.0)


def call_seed(seed: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output of a seed, which receives the mask if its `forward` has an argument of this name.

    Args:
        x: Features in a canonical layout, with zeros at padded positions.
    """
    return seed(x) if mask is None or not _takes_mask(type(seed)) else seed(x, mask)


@lru_cache
def _takes_mask(kind: type[nn.Module]) -> bool:
    return "mask" in inspect.signature(kind.forward).parameters


def mean_over_positions(x_BCL: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over the real positions, [B, C], of features with zeros at padded ones."""
    if mask is None:
        return x_BCL.mean(2)
    total_BC = _exact(x_BCL).sum(2)
    return (total_BC / mask.sum(1, keepdim=True).clamp(min=1)).to(x_BCL.dtype)


def group_norm(norm: nn.GroupNorm, x: Tensor, mask: Tensor | None) -> Tensor:
    """Normalise features [B, C, L], or of any other size without a mask, by the statistics of the real positions.

    With a mask, padded positions of the result are zero.
    """
    if mask is None:
        return norm(x)
    samples, _, length = x.shape
    groups_BGCL = _exact(x).reshape(samples, norm.num_groups, -1, length)
    padded_B11L = ~mask[:, None, None]
    count_B111 = (mask.sum(1)[:, None, None, None] * groups_BGCL.shape[2]).clamp(min=1)
    mean_BG11 = groups_BGCL.masked_fill(padded_B11L, 0.0).sum((2, 3), keepdim=True) / count_B111
    centred_BGCL = (groups_BGCL - mean_BG11).masked_fill(padded_B11L, 0.0)
    variance_BG11 = centred_BGCL.square().sum((2, 3), keepdim=True) / count_B111
    normalised_BCL = (centred_BGCL * torch.rsqrt(variance_BG11 + norm.eps)).reshape(x.shape)
    return hide_padding(normalised_BCL * norm.weight[:, None] + norm.bias[:, None], mask, 1).to(x.dtype)


def attention_mask(mask: Tensor | None, length: int, *, causal: bool) -> Tensor | None:
    """Return which keys each query may read, bool [B, 1, 1 or T, T], for a mask; None without a mask.

    Every query has a key, because the gradient of an attention without keys is not finite.
    """
    if mask is None:
        return None
    keys_B11T = mask[:, None, None]
    if not causal:
        return keys_B11T | ~keys_B11T.any(3, keepdim=True)
    earlier_TT = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
    return (earlier_TT & keys_B11T) | torch.eye(length, dtype=torch.bool, device=mask.device)


def _exact(x: Tensor) -> Tensor:
    """Return 16-bit features in float32, in which sums over positions neither overflow nor round."""
    return x.float() if x.dtype.itemsize == 2 else x
