"""Checks of padding: the mask that a slot names, and the seeds that read padded positions.

A batch is cut, and lengthened again by padding. If this does not change the output of the host, it must not change the
output of the host with a seed either.

Shapes: B samples, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.common.formatting import suggest
from esper.common.user_code.references import describe_type, user_errors
from esper.networks.seeds.blend import Blend
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.masks import INVERTED, read_mask
from esper.networks.seeds.network import GrowingNetwork, call_model
from esper.networks.seeds.outputs import Nested, list_tensors, map_tensors
from esper.networks.seeds.site import SlotSite
from esper.networks.tasks.checks.prefix import output_distance, plant_trial_seed
from esper.networks.tasks.task import Slot

_SEQUENCES = (Layout.BCL, Layout.BTC)
"""Canonical layouts whose slots can have a mask."""
_TOLERANCE = 1e-4
"""Maximum relative difference between outputs, in float32, that counts as rounding."""


def find_mask_problem(slot: Slot, layout: Layout, x: Nested, features: Tensor) -> str:
    """Return the problem of a slot's mask and its remedy; empty without a problem, or without a mask.

    Args:
        x: Inputs of a batch.
        features: Output of the slot's submodule for this batch.
    """
    mask = slot.mask
    if mask is None:
        return ""
    if not isinstance(cast("object", mask), str):
        return f"mask must be the name of an input, not {describe_type(mask)}"
    if layout.canonical not in _SEQUENCES:
        return f"mask={mask!r} is for sequences, layout BCL, BTC or TBC, and the layout is {layout}; leave it out"
    if not isinstance(x, Mapping):
        return f"mask={mask!r} names an input, and the inputs are one tensor; return a dict of inputs from `data`"
    name, inputs = mask.removeprefix(INVERTED), cast("Mapping[str, Tensor]", x)
    if name not in inputs:
        return f"the model has no input {name!r} for mask={mask!r}; {suggest(name, inputs)}"
    sizes = dict(zip(layout.canonical, layout.to_canonical(features).shape, strict=True))
    expected = [size for axis, size in sizes.items() if axis != "C"]
    shape = list(inputs[name].shape)
    if shape != expected:
        found = f"the input {name!r} has shape {shape}, and the slot has {expected} samples and positions"
        return f"{found}; name an input [B, T] with a value for each position of the slot"
    if not _has_marks(inputs[name]):
        return f"the input {name!r} of {inputs[name].dtype} has values other than 0 and 1; pass a bool tensor"
    return ""


def leave_out_readers(
    build_model: Callable[[], nn.Module], sites: Sequence[SlotSite], x: Nested
) -> tuple[tuple[SlotSite, ...], dict[str, str]]:
    """Return the slots without the blueprints that read padded positions, and their problems in words, keyed by slot.

    Nothing is left out if the model itself depends on padding. A slot whose mask marks the wrong positions loses all
    blueprints.

    Args:
        build_model: Function that returns a model with perturbed weights. It is called if an input may be a mask.
        x: Inputs of a batch.
    """
    inputs: Mapping[str, Tensor] = cast("Any", x) if isinstance(x, Mapping) else {}
    candidates = [name for name, tensor in inputs.items() if tensor.dim() == 2 and _has_marks(tensor)]
    if not candidates or not any(site.layout.canonical in _SEQUENCES for site in sites):
        return tuple(sites), {}
    model = build_model().eval()
    masks = [mask for name in candidates for mask in (name, INVERTED + name) if _ignores_padding(model, inputs, mask)]
    network = GrowingNetwork(model, sites, GateConfig()).eval()
    kept, problems = list(sites), dict[str, str]()
    for index, site in enumerate(sites):
        names = [site.mask.removeprefix(INVERTED)] if site.mask else candidates
        mask = next((mask for mask in masks if mask.removeprefix(INVERTED) in names), None)
        if site.layout.canonical not in _SEQUENCES or mask is None:
            continue
        line = f"write esper.Slot({site.module!r}, layout={site.layout.value!r}, mask={mask!r})"
        if site.mask not in (None, mask):
            problems[site.name] = f"mask={site.mask!r} marks the padded positions as real; {line}"
            kept[index] = replace(site, blueprints=())
        elif readers := [*_readers(network, index, _lengthened(inputs, mask)[:2])]:
            if site.mask:
                line = "add a second argument `mask` to their forward, which is bool [B, T] or None"
            found = "these seeds read padding, which the model itself ignores, and are not offered there"
            problems[site.name] = f"{found}: {', '.join(readers)}; to use them, {line}"
            kept[index] = replace(site, blueprints=tuple(name for name in site.blueprints if name not in readers))
    return tuple(kept), problems


def _lengthened(inputs: Mapping[str, Tensor], mask: str) -> tuple[Mapping[str, Tensor], ...]:
    """Return inputs cut to three quarters of their positions, all marked as real, and the same with positions appended.

    These are marked as padding in the second inputs, and as real in the third ones. They repeat a position of the batch
    with this mark, or are zeros.
    """
    name, is_inverted = mask.removeprefix(INVERTED), mask.startswith(INVERTED)
    real_BT = cast("Tensor", read_mask(inputs, mask))
    samples, length = real_BT.shape
    kept = length - (length + 3) // 4
    short = {key: tensor[:, :kept] for key, tensor in inputs.items() if tensor.dim() > 1 and tensor.shape[1] == length}
    short[name] = torch.full_like(short[name], not is_inverted)

    def lengthen(is_real: bool) -> Mapping[str, Tensor]:
        places = (real_BT == is_real).nonzero()
        longer = dict(inputs)
        for key, start in short.items():
            filler = inputs[key][tuple(places[0])] if len(places) else torch.zeros_like(start[0, 0])
            filler = torch.full_like(filler, is_real != is_inverted) if key == name else filler
            longer[key] = torch.cat((start, filler.expand(samples, length - kept, *filler.shape)), 1)
        return longer

    return {**inputs, **short}, lengthen(False), lengthen(True)


def _has_marks(tensor: Tensor) -> bool:
    """Return True if a tensor has no values but 0 and 1."""
    return bool(((tensor == 0) | (tensor == 1)).all())


@torch.no_grad()
def _ignores_padding(model: nn.Module, inputs: Mapping[str, Tensor], mask: str) -> bool:
    """Return True if padding does not change the output of a model, but would if it were not marked as padding."""
    try:
        short, padded, extended = (call_model(model, batch) for batch in _lengthened(inputs, mask))
    except user_errors():  # most models of pictures and features accept no other sizes
        return False
    return not _differ(short, padded) and _differ(short, extended)


@torch.no_grad()
def _readers(network: GrowingNetwork, index: int, batches: Sequence[Nested]) -> Iterator[str]:
    """Yield the blueprints of a slot whose seeds read padded positions.

    The blend is GATE, unless the slot is causal: its gate may pool over the positions. Another blend reads no more than
    the seed does.
    """
    slot, alphas = network.slots[index], [1.0] * len(network.slots)
    for name in slot.site.blueprints:
        slot.reset()
        plant_trial_seed(slot, name, Blend.ADD if slot.site.is_causal else Blend.GATE)
        try:
            short, padded = (network(batch, alphas) for batch in batches)
        except user_errors():  # a seed may accept one length only; another check calls it with that
            continue
        if _differ(short, padded):
            yield name
    slot.reset()


def _differ(short: Nested, long: Nested) -> bool:
    """Return True if the outputs for shorter inputs are finite, and those for longer ones differ from them.

    Of an output for each position, the first positions are compared.
    """
    if len(list_tensors(short)) != len(list_tensors(long)):
        return True
    shapes = iter([tensor.shape for tensor in list_tensors(short)])

    def cut(tensor: Tensor) -> Tensor:
        for axis, size in enumerate(next(shapes)):
            if axis < tensor.dim() and tensor.shape[axis] > size:
                tensor = tensor.narrow(axis, 0, size)
        return tensor

    is_finite = all(bool(tensor.isfinite().all()) for tensor in list_tensors(short))
    return is_finite and output_distance(map_tensors(cut, long), short) > _TOLERANCE
