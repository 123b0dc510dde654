"""Counterfactual validation: the contribution and the Shapley value of each seed.

Shapes: B samples of a batch, N samples, K classes, n measured seeds, V variants of the network with different seeds
switched off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from esper.growth.network import GrowingNetwork


def validate_variants(
    network: GrowingNetwork, slots: Sequence[int], x_NCHW: Tensor, y_N: Tensor, *, batch_size: int, subsets: bool
) -> Tensor:
    """Measure the loss and accuracy of a network, and the contribution of each of its seeds.

    Args:
        network: Network in evaluation mode.
        slots: Slots whose seeds are measured, ascending.
        x_NCHW: Images.
        y_N: Labels of the images.
        batch_size: Number of images in a forward pass.
        subsets: Also measure Shapley values, which requires a forward pass for every subset of the seeds.

    Returns:
        [2 + 2 n] on the device, [2 + 3 n] with `subsets`: mean loss; accuracy; contribution and its standard error of
        each seed; Shapley value of each seed. `read_effects` unpacks all but the first two.

    Raises:
        ValueError: `slots` is not ascending.
        RuntimeError: The network is in training mode.
    """
    forward = network.forward_subsets if subsets else network.forward_ablations
    alphas = network.alphas()
    loss = torch.zeros((), device=x_NCHW.device)
    batch_hits_VB: list[Tensor] = []
    for x_BCHW, y_B in zip(torch.split(x_NCHW, batch_size), torch.split(y_N, batch_size), strict=True):
        logits_VBK = forward(x_BCHW, alphas, slots)
        loss += F.cross_entropy(logits_VBK[0], y_B, reduction="sum")
        batch_hits_VB.append((logits_VBK.argmax(dim=-1) == y_B).float())
    hits_VN = torch.cat(batch_hits_VB, dim=1)
    # Row by row: indexing with a list would copy it to the device and synchronise.
    ablated_hits_nN = torch.stack([hits_VN[2**k] for k in range(len(slots))]) if subsets and slots else hits_VN[1:]
    parts = [
        torch.stack((loss / len(y_N), hits_VN[0].mean())),
        ablation_contributions(hits_VN[0], ablated_hits_nN).flatten(),
    ]
    if subsets:
        parts.append(shapley_values(hits_VN.mean(dim=1)))
    return torch.cat(parts)


def read_effects(
    values: Sequence[float], slots: Sequence[int]
) -> tuple[dict[int, tuple[float, float]], dict[int, float]]:
    """Unpack the values of `validate_variants` after the first two.

    Returns:
        Contributions with their standard errors, and Shapley values, keyed by slot. Without `subsets` the second dict
        is empty.
    """
    pairs, shapley = values[: 2 * len(slots)], values[2 * len(slots) :]
    contributions = dict(zip(slots, zip(pairs[::2], pairs[1::2], strict=True), strict=True))
    return contributions, dict(zip(slots, shapley, strict=True)) if shapley else {}


def ablation_contributions(hits_N: Tensor, ablated_hits_nN: Tensor) -> Tensor:
    """Return the contribution of each seed: accuracy with all seeds minus accuracy without this one.

    Args:
        hits_N: 1 for each sample that is classified correctly with all seeds on, else 0.
        ablated_hits_nN: Hits with one seed switched off, for each seed.

    Returns:
        [n, 2]: each contribution as a fraction, and its standard error, paired over the samples.
    """
    gains_nN = hits_N - ablated_hits_nN
    means_n = gains_nN.mean(dim=1)
    errors_n = ((gains_nN.square().mean(dim=1) - means_n.square()) / len(hits_N)).sqrt()
    return torch.stack((means_n, errors_n), dim=1)


def shapley_values(accuracy_V: Tensor) -> Tensor:
    """Return the exact Shapley value of each seed, [n]: its mean gain over all orders of switching the seeds on.

    They sum to the accuracy with all seeds minus the accuracy with none (Shapley, 1953).

    Args:
        accuracy_V: [2^n] accuracy of every subset; bit k of the index is set if seed k is off.
    """
    seeds = len(accuracy_V).bit_length() - 1
    weights_nV = torch.zeros(seeds, len(accuracy_V), dtype=torch.float64)
    for index in range(len(accuracy_V)):
        on = seeds - index.bit_count()
        for seed in range(seeds):
            # |S|! (n − |S| − 1)! / n! for a subset S without the seed: added if it is on, subtracted if off.
            off = bool(index >> seed & 1)
            before = on if off else on - 1
            weight = 1.0 / (seeds * math.comb(seeds - 1, before))
            weights_nV[seed, index] = -weight if off else weight
    return (weights_nV.to(accuracy_V.device, non_blocking=True) @ accuracy_V.double()).to(accuracy_V.dtype)
