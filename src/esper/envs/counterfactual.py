"""Validation with seeds switched off: the contribution and Shapley value of each.

Shapes: B samples of a batch, N samples, K classes, n measured seeds, V variants of the network, each with some of these
seeds off.
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
    """Measure loss and accuracy of a network, and the effect of each of its seeds on the accuracy.

    Args:
        network: Network in evaluation mode.
        slots: Slots whose seeds are measured, ascending.
        x_NCHW: Images.
        y_N: Their labels.
        batch_size: Images of one forward pass.
        subsets: Also measure Shapley values, which takes a forward pass of every subset of the seeds.

    Returns:
        [2 + 2 n] on the device, [2 + 3 n] with `subsets`: mean loss, accuracy, then for each seed its contribution and
        the standard error of it, then for each seed its Shapley value. `read_effects` reads the part after the first
        two.

    Raises:
        ValueError: `slots` is not ascending.
        RuntimeError: The network is in training mode.
    """
    forward = network.forward_subsets if subsets else network.forward_ablations
    alphas = network.alphas()
    loss = torch.zeros((), device=x_NCHW.device)
    batch_hits_VB: list[Tensor] = []
    for x_BCHW, y_B in zip(x_NCHW.split(batch_size), y_N.split(batch_size), strict=True):
        logits_VBK = forward(x_BCHW, alphas, slots)
        loss += F.cross_entropy(logits_VBK[0], y_B, reduction="sum")
        batch_hits_VB.append((logits_VBK.argmax(dim=-1) == y_B).float())
    hits_VN = torch.cat(batch_hits_VB, dim=1)
    # Row by row: a list as an index would be copied to the device, and the host would wait for it.
    one_off_nN = torch.stack([hits_VN[2**k] for k in range(len(slots))]) if subsets and slots else hits_VN[1:]
    parts = [
        torch.stack((loss / len(y_N), hits_VN[0].mean())),
        ablation_contributions(hits_VN[0], one_off_nN).flatten(),
    ]
    if subsets:
        parts.append(shapley_values(hits_VN.mean(dim=1)))
    return torch.cat(parts)


def read_effects(
    values: Sequence[float], slots: Sequence[int]
) -> tuple[dict[int, tuple[float, float]], dict[int, float]]:
    """Unpack the values of `validate_variants` after the first two.

    Returns:
        Contribution and standard error, and Shapley value, each keyed by slot. Without `subsets` the second is empty.
    """
    pairs, shapley = values[: 2 * len(slots)], values[2 * len(slots) :]
    contributed = dict(zip(slots, zip(pairs[::2], pairs[1::2], strict=True), strict=True))
    return contributed, dict(zip(slots, shapley, strict=True)) if shapley else {}


def ablation_contributions(all_on_N: Tensor, one_off_nN: Tensor) -> Tensor:
    """Return the contribution of each seed: accuracy with all seeds minus accuracy without this one.

    Args:
        all_on_N: 1 for a hit, 0 for a miss, with every seed on.
        one_off_nN: The same without each seed.

    Returns:
        [n, 2]: contributions as fractions, and their standard errors, paired over the samples.
    """
    gains_nN = all_on_N - one_off_nN
    means_n = gains_nN.mean(dim=1)
    errors_n = ((gains_nN.square().mean(dim=1) - means_n.square()) / len(all_on_N)).sqrt()
    return torch.stack((means_n, errors_n), dim=1)


def shapley_values(worth_V: Tensor) -> Tensor:
    """Return the exact Shapley value of each seed, [n]: its mean gain over all orders of switching the seeds on.

    They sum to the accuracy with all seeds minus the accuracy with none (Shapley, 1953).

    Args:
        worth_V: [2^n] accuracy of every subset; bit k of the index is set where seed k is off.
    """
    seeds = len(worth_V).bit_length() - 1
    weights_nV = torch.zeros(seeds, len(worth_V), dtype=torch.float64)
    for index in range(len(worth_V)):
        on = seeds - index.bit_count()
        for seed in range(seeds):
            # |S|! (n − |S| − 1)! / n! for a subset S without the seed: added where it is on, subtracted where off.
            off = bool(index >> seed & 1)
            before = on if off else on - 1
            weight = 1.0 / (seeds * math.comb(seeds - 1, before))
            weights_nV[seed, index] = -weight if off else weight
    return (weights_nV.to(worth_V.device, non_blocking=True) @ worth_V.double()).to(worth_V.dtype)
