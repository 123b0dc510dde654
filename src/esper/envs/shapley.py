"""Shapley values of seeds: exact for few seeds, estimated from random orders for more.

Shapes: n seeds, V subsets.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_EXACT_SEEDS = 6
"""Maximum number of seeds for which all 2^n subsets are measured."""


def shapley_values(score_V: Tensor) -> Tensor:
    """Return the exact Shapley value of each seed, [n]: its mean gain over all orders of switching the seeds on.

    They sum to the score with all seeds minus the score with none (Shapley, 1953).

    Args:
        score_V: [2^n] score of every subset; bit k of the index is set if seed k is off.
    """
    seeds = len(score_V).bit_length() - 1
    weights_nV = torch.zeros(seeds, len(score_V), dtype=torch.float64)
    for index in range(len(score_V)):
        on = seeds - index.bit_count()
        for seed in range(seeds):
            # |S|! (n − |S| − 1)! / n! for a subset S without the seed: added if it is on, subtracted if off.
            off = bool(index >> seed & 1)
            before = on if off else on - 1
            weight = 1.0 / (seeds * math.comb(seeds - 1, before))
            weights_nV[seed, index] = -weight if off else weight
    return (weights_nV.to(score_V.device, non_blocking=True) @ score_V.double()).to(score_V.dtype)
