"""Splits: the data of a task, as tensors.

Shapes: N samples, B samples of a batch, C channels, H × W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import torch
from torch import Tensor

from esper.common.configuration.config import TaskError
from esper.common.user_code.references import describe_type
from esper.networks.seeds.network import count_samples
from esper.networks.seeds.outputs import Nested, are_equal, list_tensors, map_tensors

Split = tuple[Nested, Nested]
"""Inputs and targets of N samples: each a tensor [N, …], or a dict of such tensors."""
_READ_TWICE = 64
"""Number of items of a data set that are read twice. If a transform changes one item in ten, all of them agree once in
300,000 data sets."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The data of a task. Each split is a pair of inputs and targets, or a data set of such pairs.

    Inputs and targets are tensors [N, …] of N samples, or dicts of such tensors. A model receives a dict of inputs as
    keyword arguments. Floats are finite and usually float32; float64 is refused when a run starts. Integer targets are
    class indices, and become int64. A `torch.utils.data.Dataset` is read into tensors once, values of dicts by key; it
    must fit into memory.

    Attributes:
        train: Data that networks are trained on.
        validation: Data from which the reward is computed.
        test: Data of final scores only: of `evaluate`, `grow` and `harvest`.

    Raises:
        ValueError: The items of a data set differ between two readings, are not pairs, or are dicts of different keys.
    """

    train: Split
    validation: Split
    test: Split

    def __post_init__(self) -> None:
        for name, split in vars(self).items():
            inputs, targets = _as_pair(name, split)
            object.__setattr__(self, name, (inputs, map_tensors(_as_indices, targets)))

    def to(self, device: torch.device, dtype: torch.dtype | None = None, *, channels_last: bool = True) -> Splits:
        """Return the data on a device.

        Args:
            dtype: Type of the training pictures, to avoid a cast in the host's first layer in every epoch; None keeps
                the current type. Other inputs keep theirs.
            channels_last: Store pictures [N, C, H, W] in the channels-last memory format.
        """

        def move(tensor: Tensor) -> Tensor:
            is_picture = channels_last and tensor.dim() == 4
            return tensor.to(device, memory_format=torch.channels_last) if is_picture else tensor.to(device)

        def cast_pictures(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.dim() == 4 and tensor.is_floating_point() else tensor

        moved = {name: map_tensors(move, split) for name, split in vars(self).items()}
        x, y = moved["train"]
        return Splits(**{**moved, "train": (map_tensors(cast_pictures, x) if dtype else x, y)})

    def check(self, task: str) -> None:
        """Check the shapes of all splits.

        Raises:
            TaskError: A split is empty, has float64 or values that are not finite, or tensors of different numbers of
                samples.
        """
        for name, split in vars(self).items():
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
    """Return a split as a pair of tensors or dicts of tensors; read a data set once, and a few of its items twice.

    Raises:
        ValueError: The items of a data set differ between two readings, are not pairs, or are dicts of different keys.
    """
    if isinstance(split, tuple | list):
        inputs, targets = cast("Sequence[Any]", split)
        return _as_tensors(inputs), _as_tensors(targets)
    items = [split[index] for index in range(len(split))]
    for index, item in enumerate(items):
        parts = cast("Sequence[Any]", item) if isinstance(item, tuple | list) else ()
        if len(parts) != 2:
            found = describe_type(cast("object", item)) + (f" of {len(parts)}" if parts else "")
            raise ValueError(f"item {index} of the split {name!r} is {found}; return a pair, inputs and targets")
    if not items:
        return torch.empty(0), torch.empty(0)
    inputs, targets = (_stack(name, column) for column in zip(*items, strict=True))
    for index in range(0, len(split), -(-len(split) // _READ_TWICE)):
        first = map_tensors(lambda column, index=index: column[index], [inputs, targets])
        again = [_stack(name, [value]) for value in split[index]]
        pairs = zip(list_tensors(again), list_tensors(first), strict=True)
        if not all(are_equal(value[0].to(old.dtype), old) for value, old in pairs):
            raise ValueError(
                f"item {index} of the split {name!r} differs between two readings, and a data set is read once, so its "
                "random transform would be frozen; transform batches in augment=, or pass tensors that you make"
            )
    return inputs, targets


def _stack(name: str, values: Sequence[Any]) -> Nested:
    """Return the values of all items of a data set as one tensor, or as a dict of tensors if they are dicts.

    Raises:
        ValueError: The dicts have different keys.
    """
    if not isinstance(values[0], Mapping):
        return torch.stack([torch.as_tensor(value) for value in values])
    keys_of_items = [list(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else [] for value in values]
    expected = keys_of_items[0]
    for index, keys in enumerate(keys_of_items):
        if {*keys} != {*expected}:
            found, wanted = (f"the keys {', '.join(map(str, of))}" if of else "no keys" for of in (keys, expected))
            raise ValueError(f"item {index} of the split {name!r} has {found}, and item 0 has {wanted}")
    return {key: torch.stack([torch.as_tensor(value[key]) for value in values]) for key in expected}


def float32_line(variable: str) -> str:
    """Return the line that converts a variable, a tensor or an array, to the type of a network's weights."""
    return f"{variable} = torch.as_tensor({variable}, dtype=torch.float32)"


def _as_indices(targets: Tensor) -> Tensor:
    """Return integer targets as int64, which the cross-entropy of PyTorch needs; others unchanged."""
    is_integer = not (targets.is_floating_point() or targets.is_complex() or targets.dtype is torch.bool)
    return targets.long() if is_integer else targets


def _as_tensors(values: Any) -> Nested:
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


def write_data(data: TaskData, file: IO[bytes]) -> None:
    """Write the data to a file, which other processes of this machine map: one copy in memory.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        torch.save([vars(splits) for splits in data], file)  # tensors that are shared are written once
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch also fails to end the archive, and reports only that
            raise error.__context__ from None
        raise
    file.flush()


def read_data(path: Path) -> TaskData:
    """Return the data in a file of `write_data`, without reading it: each part is read when it is used.

    Raises:
        OSError: The file cannot be opened.
    """
    loaded: list[dict[str, Split]] = torch.load(path, mmap=True, weights_only=True)
    made = {id(splits): Splits(**splits) for splits in loaded}  # structures that share data share it here too
    return tuple(made[id(splits)] for splits in loaded)


def take(values: Nested, index_B: Tensor) -> Nested:
    """Return the samples with these indices, [B, …], in the memory format of the values.

    In channels_last, a picture is contiguous in memory and is copied as one block.
    """

    def rows(tensor: Tensor) -> Tensor:
        if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            return tensor.permute(0, 2, 3, 1).index_select(0, index_B).permute(0, 3, 1, 2)
        return tensor.index_select(0, index_B)

    return map_tensors(rows, values)


def batches(split: Split, size: int) -> list[Split]:
    """Return a split in batches of `size` samples; the last one may be smaller."""
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
