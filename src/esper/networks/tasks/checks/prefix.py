"""Check of whether counterfactuals can share the part of the forward pass before a slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from esper.common.domain import AlphaCurve, Stage
from esper.common.seeding import make_generator
from esper.common.user_code.references import user_errors
from esper.networks.seeds.blend import Blend
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.network import GrowingNetwork
from esper.networks.seeds.outputs import Nested, list_tensors, map_tensors
from esper.networks.seeds.site import SlotSite
from esper.networks.seeds.slot import Slot

_SEED_NOISE_STD = 0.3
"""Standard deviation of the noise on the weights of a trial seed, which would otherwise be the identity."""
_TOLERANCE = 1e-9
"""Maximum relative difference, in float64, between shared and repeated forward passes."""


class PrefixCheck(NamedTuple):
    """Result of the check."""

    problem: str
    """Reason why the prefix cannot be shared; empty if it can."""
    without_effect: str | None = None
    """Name of the first slot whose seed does not change the output; None if all do."""


def check_prefix(model: nn.Module, sites: Sequence[SlotSite], x: Nested) -> PrefixCheck:
    """Compare shared with repeated forward passes in float64, with a trial seed in each slot.

    Args:
        model: Host with perturbed weights: layers that start at zero would hide an effect. It is changed.
    """
    network = GrowingNetwork(model, sites, GateConfig(), shares_prefix=False).eval()
    for slot in network.slots:
        plant_trial_seed(slot, slot.site.blueprints[0], Blend.ADD)
    indices, alphas = range(len(sites)), [1.0] * len(sites)
    x64 = map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, x)
    exact = network.double()
    repeated, error = _attempt(lambda: exact.forward_ablations(x64, alphas, indices))
    if error:
        return PrefixCheck(f"the model does not run in float64 ({error})")
    for site, output in zip(sites, repeated[1:], strict=True):
        if output_distance(output, repeated[0]) == 0.0:
            return PrefixCheck("", site.name)
    exact.shares_prefix = True
    shared, error = _attempt(lambda: exact.forward_ablations(x64, alphas, indices))
    if error:
        return PrefixCheck(f"the model does not accept more rows after a slot ({error})")
    if any(output_distance(a, b) > _TOLERANCE for a, b in zip(shared, repeated, strict=True)):
        return PrefixCheck("samples of a batch affect each other")
    return PrefixCheck("")


def _attempt(forward: Callable[[], list[Nested]]) -> tuple[list[Nested], str]:
    """Return the outputs of a forward pass, or no outputs and the first line of the error."""
    try:
        with torch.no_grad():
            return forward(), ""
    except user_errors() as error:  # a model may raise any exception here; the caller reports it
        return [], (str(error).strip() or type(error).__name__).splitlines()[0]


@torch.no_grad()
def plant_trial_seed(slot: Slot, blueprint: str, blend: Blend) -> None:
    """Plant a blended seed that is not the identity, in an empty slot."""
    noise = make_generator(0, "trial seed")
    slot.germinate(blueprint, blend, AlphaCurve.LINEAR, 1, 1.0, noise)
    slot.stage = Stage.PROBATIONARY
    for parameter in slot.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=_SEED_NOISE_STD)


def output_distance(a: Nested, b: Nested) -> float:
    """Return the maximum difference between two outputs, relative to the largest value; infinite if not finite."""
    worst = 0.0
    for p, q in zip(list_tensors(a), list_tensors(b), strict=True):
        if not p.is_floating_point() or not q.numel():
            continue
        if p.shape != q.shape or not bool((p.isfinite() & q.isfinite()).all()):
            return float("inf")
        worst = max(worst, float((p - q).abs().max()) / max(float(q.abs().max()), 1.0))
    return worst
