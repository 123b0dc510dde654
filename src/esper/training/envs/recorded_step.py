"""An env-step whose kernels are recorded in CUDA graphs: see `cuda_graphs`. Shapes: M batches, O owners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from esper.networks.seeds.network import count_samples
from esper.networks.seeds.outputs import Nested, map_tensors
from esper.networks.tasks.splits import Split, batches
from esper.training.envs.cuda_graphs import StepGraphs, place_of
from esper.training.envs.epoch_result import TrainedBatch


def train_recorded(
    graphs: StepGraphs,
    train: Callable[[Split], TrainedBatch],
    summarise: Callable[[Sequence[TrainedBatch], Sequence[Nested]], Tensor],
    split: Split,
    size: int,
    set_rates: Callable[[int], None],
) -> Tensor:
    """Train an epoch, and return its summary in a buffer.

    Args:
        train: Trains a batch.
        summarise: Function of the results and the targets of all batches.
        split: Samples of the epoch, in their order.
        size: Samples of a batch.
        set_rates: Sets the learning rates for a batch, given its index from 0.
    """
    split = graphs.memory.place("epoch", split)
    stacked, last = graphs.run_batches(lambda batch: _pack(train(batch)), split, size, set_rates)
    samples = count_samples(split[0])

    def summary() -> Tensor:
        trained = [_unpack(map_tensors(_row_of(index), stacked)) for index in range(samples // size)]
        if last is not None:
            trained.append(_unpack(last))
        return summarise(trained, [y for _, y in batches(split, size)])

    return graphs.run(("summary", place_of(split), size), summary)


def validate_recorded(graphs: StepGraphs, validate: Callable[[Split], Tensor], structure: int, split: Split) -> Tensor:
    """Validate a network, and return the result in a buffer.

    Args:
        structure: Index of the structure, whose validation split is in buffers already if it was used last.
    """
    split = graphs.memory.place_once(("validation", structure), split)
    return graphs.run(("validation", place_of(split)), lambda: validate(split))


def _pack(trained: TrainedBatch) -> TrainedBatch:
    """Return the result of a batch with all norms in one tensor [O], so that few kernels store it."""
    return trained._replace(norms=[torch.stack(trained.norms)] if trained.norms else [])


def _unpack(packed: TrainedBatch) -> TrainedBatch:
    return packed._replace(norms=list(packed.norms[0].unbind()) if packed.norms else [])


def _row_of(index: int) -> Callable[[Tensor], Tensor]:
    return lambda rows_M: rows_M[index]
