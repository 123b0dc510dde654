"""What each seed is worth, from hits and misses on the validation split with some seeds off.

Shapes: N samples, n seeds, V configurations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def contributions(all_on_N: Tensor, one_off_nN: Tensor) -> Tensor:
    """Accuracy with every seed less that without each one, and the standard error of that, paired over the samples.

    Args:
        all_on_N: 1 for a hit, 0 for a miss, with every seed on.
        one_off_nN: the same without each seed.

    Returns:
        [n, 2].
    """
    gains_nN = all_on_N - one_off_nN
    means_n = gains_nN.mean(dim=1)
    errors_n = ((gains_nN.square().mean(dim=1) - means_n.square()) / len(all_on_N)).sqrt()
    return torch.stack((means_n, errors_n), dim=1)


def shapley_values(worth_V: Tensor) -> Tensor:
    """Exact Shapley values [n] of n seeds: each one's mean gain over all orders in which they could be switched on.

    They sum to the worth of all seeds less that of none (Shapley, 1953).

    Args:
        worth_V: [2^n] accuracy of every subset; bit k of the index is set where seed k is off.
    """
    seeds = len(worth_V).bit_length() - 1
    weights_nV = torch.zeros(seeds, len(worth_V), dtype=torch.float64)
    for index in range(len(worth_V)):
        on = seeds - index.bit_count()
        for seed in range(seeds):
            # |S|! (n − |S| − 1)! / n! for a subset S without the seed: gained with it, paid for without.
            off = bool(index >> seed & 1)
            before = on if off else on - 1
            weight = 1.0 / (seeds * math.comb(seeds - 1, before))
            weights_nV[seed, index] = -weight if off else weight
    return (weights_nV.to(worth_V.device, non_blocking=True) @ worth_V.double()).to(worth_V.dtype)
