"""Shapley values of seeds: exact for few seeds, estimated from random orders for more.

Shapes: n seeds, V subsets, O orders of switching the seeds on, P pairs of orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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


def estimate_shapley_values(
    score_of: Callable[[int], Tensor], seeds: int, pairs: int, generator: torch.Generator
) -> Tensor:
    """Estimate the Shapley value of each seed from random orders of switching the seeds on (Castro et al., 2009).

    Each order is followed by its reverse (antithetic sampling; Mitchell et al., 2022): a seed that comes early in one
    comes late in the other, so that effects of single seeds and of pairs of seeds have no sampling error. In every
    order the gains sum to the score with all seeds minus the score with none, and so do the estimates.

    Args:
        score_of: Returns the score of a subset, a scalar. Bit k of its argument is set if seed k is off, as in
            `shapley_values`. Called once per distinct subset: `2 pairs (seeds - 1) + 2` times or fewer.
        seeds: Number of seeds, 1 or more.
        pairs: Number of orders to draw; the reverse of each is added.
        generator: CPU generator of the orders.

    Returns:
        [n] with the dtype and device of the scores.
    """
    indices: dict[int, int] = {}
    steps = [_switch_on(order, indices) for order in _antithetic_orders(seeds, pairs, generator)]
    scores_V = torch.stack([score_of(subset) for subset in indices])
    steps_On2 = torch.tensor(steps).to(scores_V.device, non_blocking=True)
    on_On, off_On = scores_V.double()[steps_On2].unbind(dim=2)
    gains_Pn = (on_On - off_On).view(pairs, 2, seeds).mean(dim=1)
    return gains_Pn.mean(dim=0).to(scores_V.dtype)


def _antithetic_orders(seeds: int, pairs: int, generator: torch.Generator) -> list[list[int]]:
    """Return random orders of the seeds, each followed by its reverse."""
    orders: list[list[int]] = []
    for _ in range(pairs):
        order = [int(seed) for seed in torch.randperm(seeds, generator=generator)]
        orders += [order, order[::-1]]
    return orders


def _switch_on(order: list[int], indices: dict[int, int]) -> list[tuple[int, int]]:
    """Return the indices of the two subsets whose difference is the gain of each seed in an order.

    Args:
        order: Seeds in the order in which they are switched on.
        indices: Index of each subset in the list of measured ones; subsets that are missing are appended.
    """
    gains = [(0, 0)] * len(order)
    off = 2 ** len(order) - 1
    for seed in order:
        on = off & ~(1 << seed)
        gains[seed] = (indices.setdefault(on, len(indices)), indices.setdefault(off, len(indices)))
        off = on
    return gains
