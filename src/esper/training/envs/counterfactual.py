"""Counterfactual validation: the dependence of the score on each seed, and the Shapley value of the seed.

Shapes: B samples of a batch, N samples, M metrics, n measured seeds, V variants of the network with different seeds
switched off. For a score of a whole split, N is 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from esper.networks.seeds.network import GrowingNetwork, count_samples
from esper.networks.seeds.outputs import Nested
from esper.networks.tasks.losses import as_score, loss_of, score_of
from esper.networks.tasks.splits import Split, batches
from esper.networks.tasks.task import Task
from esper.training.envs.shapley import MAX_EXACT_SEEDS, estimate_shapley_values, shapley_values

SHAPLEY_ORDER_PAIRS = 8
"""Number of pairs of orders from which Shapley values of many seeds are estimated."""


def validate_variants(
    network: GrowingNetwork, slots: Sequence[int], split: Split, task: Task, *, subsets: bool
) -> Tensor:
    """Measure loss, score and metrics of a network, and its dependence on each of its seeds.

    Args:
        network: Network in evaluation mode.
        slots: Slots whose seeds are measured, ascending.
        task: Task that defines loss, score, metrics and the number of samples in a forward pass.
        subsets: Also measure Shapley values: exactly, from every subset of the seeds, for at most `MAX_EXACT_SEEDS`
            seeds, else estimated.

    Returns:
        [2 + M + 2 n] on the device, [2 + M + 3 n] with `subsets`: mean loss; score; each metric;
        dependence and its standard error of each seed; Shapley value of each seed. `read_effects` unpacks the last
        two parts.
    """
    loss_function, score = loss_of(task), score_of(task)
    metrics = [as_score(metric) for metric in task.metrics.values()]
    exact = subsets and len(slots) <= MAX_EXACT_SEEDS
    forward = network.forward_subsets if exact else network.forward_ablations
    alphas = network.alpha_inputs()
    samples = count_samples(split[0])
    loss = torch.zeros((), device=network.slots[0].device)
    records_BV: list[list[Nested]] = []
    metric_records_BM: list[list[Nested]] = []
    targets_B: list[Nested] = []
    for x, y in batches(split, task.validation_batch):
        outputs: list[Nested] = forward(x, alphas, slots)
        loss += loss_function.total(outputs[0], y)
        records_BV.append([score.record(output, y) for output in outputs])
        metric_records_BM.append([metric.record(outputs[0], y) for metric in metrics])
        targets_B.append(y)
    scores_VN = torch.stack([score.samples(records_B, targets_B) for records_B in zip(*records_BV, strict=True)])
    parts = [torch.stack((loss / samples, scores_VN[0].mean()))]
    for metric, records_B in zip(metrics, zip(*metric_records_BM, strict=True), strict=True):
        parts.append(metric.samples(records_B, targets_B).mean().reshape(1))
    gains_VN = scores_VN if task.score_scale.best == "high" else -scores_VN
    # Row by row: indexing with a list would copy it to the device and synchronise.
    ablated_nN = torch.stack([gains_VN[2**k] for k in range(len(slots))]) if exact and slots else gains_VN[1:]
    parts.append(ablation_dependences(gains_VN[0], ablated_nN).flatten())
    if exact:
        parts.append(shapley_values(gains_VN.mean(dim=1)))
    elif subsets:
        parts.append(_estimated_shapley_values(network, slots, split, task))
    return torch.cat(parts)


def _estimated_shapley_values(network: GrowingNetwork, slots: Sequence[int], split: Split, task: Task) -> Tensor:
    """Return the estimated Shapley value of each seed, [n], from the same orders each time."""
    score, sign, alphas = score_of(task), task.score_scale.gain(1.0), network.alpha_inputs()

    def gain_without(subset: int) -> Tensor:
        off = {slot for bit, slot in enumerate(slots) if subset >> bit & 1}
        some = [0.0 if index in off else alpha for index, alpha in enumerate(alphas)]
        outputs = ((network(x, some), y) for x, y in batches(split, task.validation_batch))
        return sign * score.samples(*score.record_all(outputs)).mean()

    orders = torch.Generator().manual_seed(0)
    return estimate_shapley_values(gain_without, len(slots), SHAPLEY_ORDER_PAIRS, orders)


def read_effects(
    values: Sequence[float], slots: Sequence[int]
) -> tuple[dict[int, tuple[float, float | None]], dict[int, float]]:
    """Unpack the values of `validate_variants` after the metrics.

    Returns:
        Dependences with their standard errors (None for a score of a whole split), and Shapley values, keyed by slot.
        Without `subsets` the second dict is empty.
    """
    pairs, shapley = values[: 2 * len(slots)], values[2 * len(slots) :]
    dependences = {
        slot: (mean, None if math.isnan(error) and not math.isnan(mean) else error)
        for slot, mean, error in zip(slots, pairs[::2], pairs[1::2], strict=True)
    }
    return dependences, dict(zip(slots, shapley, strict=True)) if shapley else {}


def ablation_dependences(scores_N: Tensor, ablated_nN: Tensor) -> Tensor:
    """Return the dependence on each seed: score with all seeds minus score without this one.

    Args:
        scores_N: Score of each sample with all seeds on; higher is better.
        ablated_nN: Scores with one seed switched off, for each seed.

    Returns:
        [n, 2]: each dependence, and its standard error, paired over the samples; NaN with one value.
    """
    gains_nN = scores_N - ablated_nN
    means_n = gains_nN.mean(dim=1)
    variances_n = (gains_nN.square().mean(dim=1) - means_n.square()).clamp(min=0.0)
    errors_n = (variances_n / len(scores_N)).sqrt() if len(scores_N) > 1 else torch.full_like(means_n, math.nan)
    return torch.stack((means_n, errors_n), dim=1)
