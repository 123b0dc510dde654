"""Splits: the data of a task, as tensors or as samples that are read when they are needed.

Shapes: N samples, B samples of a batch, C channels, H × W pixels.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from esper.common.configuration.config import TaskError
from esper.networks.seeds.network import count_samples
from esper.networks.seeds.outputs import Nested, are_equal, list_tensors, map_tensors
from esper.networks.tasks import source_pickle
from esper.networks.tasks.lazy_split import BatchReaders, LazySplit, Placement, as_indices, has_lazy_columns

Split = tuple[Nested, Nested]
"""Inputs and targets of N samples: each a tensor [N, …], or a dict of such tensors; or twice the same `LazySplit`."""
_EXAMPLES = 64
"""Number of samples of a `LazySplit` that are checked."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The data of a task. Each split is a pair of inputs and targets, or a data set of such pairs.

    Inputs and targets are tensors or arrays [N, …] of N samples, or dicts of them. A model receives a dict of inputs as
    keyword arguments. Floats are finite and usually float32; float64 is refused when a run starts. Integer targets are
    class indices, and become int64; no other type is changed.

    A data set has a length, and `__getitem__(index)`, or `__getitems__(indices)` for a list of pairs. It is not
    converted: reader processes, to which it is pickled, read its items ahead, anew in each epoch. The same holds for a
    pair of arrays if one is a `numpy.memmap`. Before an item, the generators of torch, NumPy and `random` are seeded:
    for training by random seed, host, round, step and index; for validation and test by the index.

    Attributes:
        train: Data that networks are trained on.
        validation: Data from which the reward is computed.
        test: Data of final scores only: of `evaluate`, `grow` and `harvest`.

    Raises:
        ValueError: A split is neither a pair nor a data set, or cannot be pickled.
    """

    train: Split
    validation: Split
    test: Split

    def __post_init__(self) -> None:
        for name, split in vars(self).items():
            inputs, targets = _as_pair(name, split)
            object.__setattr__(self, name, (inputs, map_tensors(as_indices, targets)))

    def to(self, device: torch.device, dtype: torch.dtype | None = None, *, channels_last: bool = True) -> Splits:
        """Return the data on a device.

        Args:
            dtype: Type of the training pictures, to avoid a cast in the host's first layer in every epoch; None keeps
                the current type. Other inputs keep theirs.
            channels_last: Store pictures [N, C, H, W] in the channels-last memory format.
        """

        placement = Placement(device, None, channels_last)
        placements = {"train": placement._replace(dtype=dtype)}
        return Splits(**{name: _placed(split, placements.get(name, placement)) for name, split in vars(self).items()})

    def transformed(self, transform: Callable[[Any], Any]) -> Splits:
        """Return the data with a transform of the input of each training sample.

        Raises:
            ValueError: It cannot be pickled.
        """
        lazy = lazy_of(self.train) or LazySplit("train", self.train)
        changed = lazy.transformed(transform)
        return replace(self, train=(changed, changed))

    def check(self, task: str) -> None:
        """Check the shapes of all splits, and a few samples of those that are read when they are needed.

        Raises:
            TaskError: A split is empty, has float64 or values that are not finite, or tensors of different numbers of
                samples; or a sample cannot be read, or differs between two readings.
        """
        for name, split in vars(self).items():
            if (lazy := lazy_of(split)) is not None:
                if not len(lazy):
                    raise TaskError(f"task {task}: the split {name!r} is empty")
                try:
                    split, again = examples(split), examples((lazy, lazy))
                except TaskError as error:
                    raise TaskError(f"task {task}: {error}") from error
                if not are_equal(split, again):
                    raise TaskError(
                        f"task {task}: samples of the split {name!r} differ between two readings after equal seeds; "
                        "draw from the global generators of torch, NumPy or random, which are seeded for each sample"
                    )
            sizes = {len(tensor) if tensor.dim() else 0 for tensor in list_tensors(split)}
            if len(sizes) != 1:
                found = " and ".join(map(str, sorted(sizes)))
                raise TaskError(
                    f"task {task}: the tensors of the split {name!r} have {found} samples; "
                    "inputs and targets need one row per sample"
                )
            if sizes == {0}:
                raise TaskError(f"task {task}: the split {name!r} is empty")
            for kind, values, variable in zip(("inputs", "targets"), split, "xy", strict=True):
                for tensor in list_tensors(values):
                    if tensor.dtype is torch.float64:
                        found = f"the {kind} of the split {name!r} are float64, as NumPy makes them"
                        raise TaskError(f"task {task}: {found}; convert those of all splits: {float32_line(variable)}")
                    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                        raise TaskError(f"task {task}: the split {name!r} has values that are not finite")


def _as_pair(name: str, split: Any) -> Split:
    """Return a split as a pair of tensors or dicts of tensors, or as twice the same `LazySplit`.

    Raises:
        ValueError: It is neither a pair nor a data set, or cannot be pickled.
    """
    if isinstance(split, DataLoader):
        loader = cast("Any", split)
        advice = f"pass {name}=loader.dataset to esper.Splits, and batch_size={loader.batch_size} to esper.Task"
        raise ValueError(
            f"the split {name!r} is a DataLoader, and the order of the batches is that of the run; {advice}"
        )
    if isinstance(split, tuple | list) and len(cast("Sequence[Any]", split)) == 2:
        inputs, targets = cast("Sequence[Any]", split)
        if not has_lazy_columns((inputs, targets)):
            return _as_tensors(inputs), _as_tensors(targets)
        split = inputs, targets
    lazy = LazySplit(name, split)
    return lazy, lazy


def lazy_of(split: Split) -> LazySplit | None:
    """Return the samples of a split that are read when they are needed; None if it consists of tensors."""
    return split[0] if isinstance(split[0], LazySplit) else None


def examples(split: Split) -> Split:
    """Return a split of tensors, or a few samples from all parts of one that is read when it is needed.

    Raises:
        TaskError: A sample cannot be read.
    """
    lazy = lazy_of(split)
    return split if lazy is None else spread(split, _EXAMPLES)


def spread(split: Split, size: int) -> Split:
    """Return up to `size` samples from all parts of a split. The first ones may be of one class."""
    total = count_samples(split[0])
    size = min(size, total)
    return take(split, torch.arange(size) * total // size)


def _placed(split: Split, placement: Placement) -> Split:
    lazy = lazy_of(split)
    if lazy is None:
        return placement.apply(split)
    placed = lazy.placed(placement)
    return placed, placed


def float32_line(variable: str) -> str:
    """Return the line that converts a variable, a tensor or an array, to the type of a network's weights."""
    return f"{variable} = torch.as_tensor({variable}, dtype=torch.float32)"


def _as_tensors(values: Any) -> Nested:
    if isinstance(values, LazySplit):
        return values
    if isinstance(values, Mapping):
        return {name: torch.as_tensor(value) for name, value in cast("Mapping[str, Any]", values).items()}
    return torch.as_tensor(values)


TaskData: TypeAlias = tuple[Splits, ...]
"""The data of each structure of a task; structures with the same data share one object."""


def map_data(change: Callable[[Splits], Splits], data: TaskData) -> TaskData:
    """Return the data, changed by a function that is called once for the structures that share them."""
    changed = {id(splits): change(splits) for splits in {id(splits): splits for splits in data}.values()}
    return tuple(changed[id(splits)] for splits in data)


def data_tensors(data: TaskData) -> list[Tensor]:
    """Return all tensors of the data, those of shared data once."""
    different = {id(splits): splits for splits in data}
    return [tensor for splits in different.values() for tensor in list_tensors(vars(splits))]


def move_data(
    data: TaskData, device: torch.device, dtype: torch.dtype | None = None, *, channels_last: bool = True
) -> TaskData:
    """Return the data on a device; see `Splits.to`."""
    return map_data(lambda splits: splits.to(device, dtype, channels_last=channels_last), data)


def with_readers(data: TaskData, readers: BatchReaders) -> TaskData:
    """Return the data with readers for the splits that are not in memory."""

    def read_by(index: int, splits: Splits) -> Splits:
        lazy = {name: found for name, split in vars(splits).items() if (found := lazy_of(split)) is not None}
        return replace(
            splits, **{name: (read := each.with_readers(readers, index), read) for name, each in lazy.items()}
        )

    first = {id(splits): index for index, splits in reversed(list(enumerate(data)))}
    return map_data(lambda splits: read_by(first[id(splits)], splits), data)


def is_lazy(data: TaskData) -> bool:
    """Return True if samples of some split are read when they are needed."""
    return any(lazy_of(split) is not None for splits in data for split in vars(splits).values())


def write_data(data: TaskData, file: IO[bytes]) -> None:
    """Write the data to a file, which other processes of this machine map: one copy in memory.

    Sources of samples are pickled. No file of a run contains them: this one has no name, or is deleted at once.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        # Tensors that are shared are written once.
        torch.save([vars(splits) for splits in data], file, source_pickle, pickle.HIGHEST_PROTOCOL)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch also fails to end the archive, and reports only that
            raise error.__context__ from None
        raise
    file.flush()


def read_data(path: Path) -> TaskData:
    """Return the data in a file of `write_data`, without reading it: each part is read when it is used.

    The user's code must have been imported before, if a source of samples is an object of it.

    Raises:
        OSError: The file cannot be opened.
    """
    loaded: list[dict[str, Split]] = torch.load(path, mmap=True, weights_only=False)
    made = {id(splits): Splits(**splits) for splits in loaded}  # structures that share data share it here too
    return tuple(made[id(splits)] for splits in loaded)


def take(values: Nested, index_B: Tensor) -> Nested:
    """Return the samples with these indices, [B, …], in the memory format of the values.

    In channels_last, a picture is contiguous in memory and is copied as one block.

    Args:
        values: Tensors; or a split that is read when it is needed, or its inputs. For a few samples of it only.
    """
    if isinstance(values, LazySplit):
        return values.take(cast("Any", index_B).tolist())[0]
    if isinstance(values, tuple) and (lazy := lazy_of(cast("Split", values))) is not None:
        return lazy.take(cast("Any", index_B).tolist())

    def rows(tensor: Tensor) -> Tensor:
        if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            return tensor.permute(0, 2, 3, 1).index_select(0, index_B).permute(0, 3, 1, 2)
        return tensor.index_select(0, index_B)

    return map_tensors(rows, values)


def batches(split: Split, size: int) -> Iterable[Split]:
    """Return a split in batches of `size` samples; the last one may be smaller."""
    if (lazy := lazy_of(split)) is not None:
        return lazy.read(lazy.plan(size))
    samples = count_samples(split[0])
    return [
        map_tensors(lambda tensor, start=start: tensor.narrow(0, start, min(size, samples - start)), split)
        for start in range(0, samples, size)
    ]


def standardise_splits(
    train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> Splits:
    """Return splits whose training pictures have mean 0 and standard deviation 1 in every channel.

    Validation and test pictures are scaled with the mean and standard deviation of the training pictures.

    Args:
        train: Pictures [N, C, H, W] of any real type, and labels [N].
        validation: Pictures and labels of the same form.
        test: Pictures and labels of the same form.
    """
    pictures = train[0].float()
    mean = pictures.mean((0, 2, 3), keepdim=True)
    deviation = pictures.std((0, 2, 3), keepdim=True)
    train, validation, test = (((x.float() - mean) / deviation, y.long()) for x, y in (train, validation, test))
    return Splits(train=train, validation=validation, test=test)
