"""Check of whether the layout of a slot has the channels in the right axis.

A wrong layout raises no error: a seed for `[B, T, C]` also runs on `[B, C, L]`, because the length never changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from esper.common.user_code.references import user_errors
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.network import call_model
from esper.networks.seeds.outputs import Nested, first_tensor, list_tensors, map_tensors
from esper.networks.seeds.site import SlotSite

_SWAPPED = {Layout.BTC: Layout.BCL, Layout.BCL: Layout.BTC, Layout.BCHW: Layout.BHWC, Layout.BHWC: Layout.BCHW}
"""Layout with the channels in the other axis; the batch is in the first one."""
_CHANNEL_ATTRIBUTES = ("out_channels", "num_features", "num_channels", "normalized_shape", "embedding_dim", "embed_dim")
"""Attributes of modules with the number of channels of their output. The size of a linear layer is left out, because
such a layer often mixes positions."""


def find_doubtful_layouts(model: nn.Module, sites: Sequence[SlotSite], x: Nested) -> dict[str, str]:
    """Return why the layouts of some slots are probably wrong, keyed by the name of the slot.

    Weights fix the number of channels, and the number of positions follows the size of the input. This is no proof: a
    layer can mix a fixed number of positions. Therefore, a run only warns.

    Args:
        model: Model in evaluation mode. It is called with parts of the input.
        x: Batch of inputs.
    """
    sites = [site for site in sites if site.layout in _SWAPPED and not _may_mix_positions(model, site, x)]
    if not sites:
        return {}
    shapes = _slot_shapes(model, sites, x)
    sizes = {size for tensor in list_tensors(x) for size in tensor.shape[1:] if size > 1}
    following = {size: _following_axes(model, sites, x, shapes, size) for size in sizes}
    of_positions = {size for tensor in list_tensors(x) for size in _position_sizes(tensor)}
    found: dict[str, str] = {}
    for site in sites:
        shape, channel = shapes[site.name], site.layout.channel_axis
        axes = {axis for of_slots in following.values() for axis in of_slots[site.name]}
        is_position = any(channel in following[size][site.name] for size in sizes & of_positions)
        if reason := _find_reason(site, shape, axes, model.get_submodule(site.module), is_position=is_position):
            where = f"axis {channel} of the output of {site.module!r}, {list(shape)}"
            advice = f"did you mean layout={_SWAPPED[site.layout].value!r}?"
            found[site.name] = f"layout {site.layout} has the channels in {where}, but {reason}; {advice}"
    return found


def _following_axes(
    model: nn.Module, sites: Sequence[SlotSite], x: Nested, shapes: Mapping[str, torch.Size], size: int
) -> dict[str, set[int]]:
    """Return the axes of each slot whose size changes if the axes of the input of a given size are halved."""
    halved = _slot_shapes(model, sites, map_tensors(partial(halve, size=size), x))
    pairs = {
        site.name: zip(shapes[site.name], halved.get(site.name, shapes[site.name]), strict=False) for site in sites
    }
    return {name: {axis for axis, (old, new) in enumerate(pair) if old != new} for name, pair in pairs.items()}


def _find_reason(
    site: SlotSite, shape: torch.Size, following: set[int], module: nn.Module, *, is_position: bool
) -> str:
    """Return why the channels of a slot are probably in another axis; empty if they are not.

    Args:
        following: Axes whose size follows that of an axis of the input; empty if the model runs for one size only.
        is_position: True if the size of the channel axis follows that of an axis of the input that has positions.
    """
    positions = {*range(1, len(shape))} - {site.layout.channel_axis}
    fixed = positions - following
    if is_position and fixed:
        return f"its size follows the size of the input, and that of axis {min(fixed)} does not"
    declared = _declared_channels(module)
    if not following and declared != site.channels and declared in {shape[axis] for axis in positions}:
        return f"that module has {declared} channels"
    return ""


def _declared_channels(module: nn.Module) -> int | None:
    """Return the number of channels that a module declares, or the last layer of a sequence that declares one."""
    if isinstance(module, nn.Sequential):
        return next(filter(None, map(_declared_channels, reversed(list(module)))), None)
    for value in (cast("object", getattr(module, name, None)) for name in _CHANNEL_ATTRIBUTES):
        number = cast("tuple[object, ...]", value)[-1:] if isinstance(value, tuple) else (value,)
        if number and isinstance(number[0], int):
            return number[0]
    return None


def _may_mix_positions(model: nn.Module, site: SlotSite, x: Nested) -> bool:
    """Return True for a linear layer that may be over the positions of each channel, as in models of time series."""
    has_channels = any(tensor.is_floating_point() and tensor.dim() > 2 for tensor in list_tensors(x))
    return has_channels and len(site.layout) == 3 and isinstance(model.get_submodule(site.module), nn.Linear)


def _position_sizes(x: Tensor) -> list[int]:
    """Return the sizes of the axes of an input, except the batch and its smallest axis, which may be the channels."""
    sizes = list(x.shape[1:])
    return [size for size in sizes if size > min(sizes)] if x.is_floating_point() and len(sizes) > 1 else sizes


def halve(tensor: Tensor, size: int) -> Tensor:
    """Return the first half of a tensor along every axis of this size, except that of the batch."""
    for axis in range(1, tensor.dim()):
        if tensor.shape[axis] == size:
            tensor = tensor.narrow(axis, 0, size // 2)
    return tensor


@torch.no_grad()
def _slot_shapes(model: nn.Module, sites: Sequence[SlotSite], x: Nested) -> dict[str, torch.Size]:
    """Return the shape of each slot, keyed by its name; without those after the place where the model fails."""
    shapes: dict[str, torch.Size] = {}

    def keep(name: str, _module: nn.Module, _inputs: object, output: Nested) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            shapes[name] = tensor.shape

    handles = [model.get_submodule(site.module).register_forward_hook(partial(keep, site.name)) for site in sites]
    try:
        call_model(model, x)
    except user_errors():  # most models need inputs of one size; the slots before the failure are known
        pass
    finally:
        for handle in handles:
            handle.remove()
    return shapes
