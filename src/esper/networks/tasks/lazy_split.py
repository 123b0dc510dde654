"""LazySplit: samples of a split that are read when they are needed, and how a batch of them is read.

Shapes: N samples of a split, B samples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from esper.common.configuration.config import TaskError
from esper.common.seeding import derive_seed, forked_generators, global_states, seed_global_generators
from esper.common.user_code.references import describe_exception, describe_type, user_errors
from esper.networks.seeds.outputs import Nested, map_tensors
from esper.networks.tasks.source_pickle import copy_by_pickle, is_mapped

Batch = tuple[Nested, Nested]
"""Inputs and targets of B samples."""
_UNSEEDED = ("validation", "test")
"""Splits whose random items, if they have any, are the same in each reading."""


class Placement(NamedTuple):
    """Device and form of a split or of its batches; see `Splits.to`."""

    device: torch.device = torch.device("cpu")
    dtype: torch.dtype | None = None
    channels_last: bool = False

    def apply(self, batch: Batch, *, non_blocking: bool = False) -> Batch:
        """Return inputs and targets, moved and converted.

        Args:
            non_blocking: Do not wait for a copy from pinned memory.
        """
        x, y = map_tensors(partial(self._move, non_blocking=non_blocking), batch)
        return map_tensors(self._cast, x) if self.dtype else x, y

    def _move(self, tensor: Tensor, *, non_blocking: bool) -> Tensor:
        is_picture = self.channels_last and tensor.dim() == 4
        form = torch.channels_last if is_picture else torch.preserve_format
        return tensor.to(self.device, non_blocking=non_blocking, memory_format=form)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.dim() == 4 and tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class ReadPlan:
    """Batches of a split that are read one after another.

    Attributes:
        split: Index of the structure of a family, 0 for another task, and name of the split.
        seeds: Random seed, host, round and step from which the random numbers of each sample follow.
        size: Samples of a batch.
        batches: Function that returns the indices of the samples of each batch. It is called when the first is read.
    """

    split: tuple[int, str]
    seeds: tuple[int, ...]
    size: int
    batches: Callable[[], Iterable[Sequence[int]]] = field(compare=False)


class BatchReaders(Protocol):
    """Processes that read batches ahead."""

    def read(self, plan: ReadPlan, placement: Placement) -> Iterator[Batch]:
        """Yield the batches of a plan in their form, but on the CPU: in pinned memory if they go to a GPU."""
        ...

    def expect(self, plan: ReadPlan, placement: Placement) -> None:
        """Read a plan as soon as the plans before it have been read. The calling thread will ask for it."""
        ...


class LazySplit:
    """Samples of a split that are read when they are needed.

    `Splits` has it in the place of the inputs and in that of the targets of a split.

    Args:
        name: Name of the split.
        source: Pair of columns, tensors or arrays [N, …] or dicts of them; or an object with a length whose items are
            pairs of the inputs and targets of a sample.

    Raises:
        ValueError: The source has no length or no items, or cannot be pickled.
    """

    def __init__(self, name: str, source: Any) -> None:
        has_items = hasattr(source, "__getitem__") or hasattr(source, "__getitems__")
        if isinstance(source, type) or not (has_items and hasattr(source, "__len__")):
            raise ValueError(
                f"the split {name!r} is {describe_type(source)}; return a pair of inputs and targets, or an object "
                "with a length and __getitem__ or __getitems__"
            )
        self.name = name
        self.source = source
        self.transform: Callable[[Any], Any] | None = None
        self.placement = Placement()
        self._index, self._readers = 0, cast("BatchReaders | None", None)
        copied = _local_copy(f"the split {name!r}", source)
        self._size = len(_leaves(copied)[0] if isinstance(copied, tuple) else copied)
        self._reading: _SampleReader | None = _SampleReader(name, copied, None)

    def __len__(self) -> int:
        return self._size

    def __getstate__(self) -> Any:
        return self.name, self.source, self.transform, self._size

    def __setstate__(self, state: Any) -> None:
        self.name, self.source, self.transform, self._size = state
        self.placement, self._index, self._readers = Placement(), 0, None
        self._reading = None

    def transformed(self, transform: Callable[[Any], Any]) -> LazySplit:
        """Return the split with a transform of the input of each sample. Raises ValueError if it cannot be pickled."""
        changed = self._copied()
        changed.transform = transform
        changed._reading = changed._local_reader()
        return changed

    def placed(self, placement: Placement) -> LazySplit:
        """Return the split with batches on a device."""
        changed = self._copied()
        changed.placement = placement
        return changed

    def with_readers(self, readers: BatchReaders, index: int) -> LazySplit:
        """Return the split, read by other processes.

        Args:
            index: Index of the structure to whose data the split belongs.
        """
        changed = self._copied()
        changed._readers, changed._index = readers, index
        return changed

    def _copied(self) -> LazySplit:
        changed = LazySplit.__new__(LazySplit)
        vars(changed).update(vars(self))
        return changed

    def plan(self, size: int) -> ReadPlan:
        """Return the plan that reads the whole split in its order, in batches of `size` samples."""
        samples = range(len(self))
        return ReadPlan((self._index, self.name), (), size, lambda: [samples[at : at + size] for at in samples[::size]])

    def ordered_plan(self, seeds: tuple[int, ...], size: int, order: Callable[[], Tensor]) -> ReadPlan:
        """Return the plan that reads samples in an order.

        Args:
            seeds: See `ReadPlan`.
            order: Function that returns the indices of the samples, int64 on the CPU.
        """

        def batches() -> Iterator[list[int]]:
            order_N: Any = order()
            for start in range(0, len(order_N), size):
                yield order_N[start : start + size].tolist()

        return ReadPlan((self._index, self.name), seeds, size, batches)

    def read(self, plan: ReadPlan) -> Iterator[Batch]:
        """Yield the batches of a plan.

        Raises:
            TaskError: A sample cannot be read.
        """
        if self._readers is None:
            batches = (self._read_here(indices, plan.seeds) for indices in plan.batches())
            return map(self.placement.apply, batches)
        batches = self._readers.read(plan, self.placement)
        return map(partial(self.placement.apply, non_blocking=True), batches)

    def expect(self, plan: ReadPlan) -> None:
        """Let the readers read ahead the batches of a plan, after those that are expected already."""
        if self._readers is not None:
            self._readers.expect(plan, self.placement)

    def take(self, indices: Sequence[int]) -> Batch:
        """Return a few samples as one batch, read in this process.

        Raises:
            TaskError: A sample cannot be read.
        """
        return self.placement.apply(self._read_here(indices, ()))

    def read_batch(self, indices: Sequence[int], seeds: tuple[int, ...]) -> Batch:
        """Return a batch on the CPU, in a process where no other code uses the global generators. Raises TaskError."""
        if self._reading is None:  # this process sends the source to no other
            self._reading = _SampleReader(self.name, self.source, self.transform)
        return self._reading.read(indices, () if self.name in _UNSEEDED else seeds)

    def _read_here(self, indices: Sequence[int], seeds: tuple[int, ...]) -> Batch:
        if self._reading is None:
            self._reading = self._local_reader()
        with forked_generators(0):
            return self.read_batch(indices, seeds)

    def _local_reader(self) -> _SampleReader:
        """Return a reader of copies of source and transform. Raises ValueError if they cannot be pickled."""
        source = _local_copy(f"the split {self.name!r}", self.source)
        return _SampleReader(self.name, source, _local_copy("the transform", self.transform))


def _local_copy(what: str, value: Any) -> Any:
    """Return an object for reading in this process. The original stays as it was when the readers receive it.

    Else it would take files along that this process has opened.

    Raises:
        ValueError: It cannot be pickled.
    """
    if isinstance(value, tuple) and not _has_memmap(cast("object", value)):
        return cast("object", value)  # tensors
    try:
        return copy_by_pickle(value)
    except ValueError as error:
        raise ValueError(f"{what} {error}") from error


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for part in cast("Sequence[Any]", value) for leaf in _leaves(part)]
    return list(cast("Mapping[str, Any]", value).values()) if isinstance(value, Mapping) else [value]


def _has_memmap(pair: Any) -> bool:
    return any(map(is_mapped, _leaves(pair)))


def has_lazy_columns(pair: Sequence[Any]) -> bool:
    """Return True if inputs and targets are to be read when they are needed: one is a memory-mapped array."""
    return any(map(_has_memmap, pair))


class _SampleReader:
    """Reads samples of a source in this process.

    The generators of torch, NumPy and `random` are seeded for each sample that draws from them. Until one does, this
    costs one seed per batch: a batch during which nothing was drawn is the same for every seed.
    """

    def __init__(self, name: str, source: Any, transform: Callable[[Any], Any] | None) -> None:
        self.source = source
        self._name = name
        self._transform = transform
        self._is_random = False

    def read(self, indices: Sequence[int], seeds: tuple[int, ...]) -> Batch:
        """Return a batch, after seeding the global generators. Raises TaskError."""
        if not self._is_random:
            _seed(seeds, indices[0])
            before = global_states()
            samples = self._samples(indices)
            self._is_random = global_states() != before
            if not self._is_random:
                return self._collate(indices, samples)
        samples: list[tuple[Any, Any]] = []
        for index in indices:
            _seed(seeds, index)
            samples += self._samples([index])
        return self._collate(indices, samples)

    def _samples(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Return inputs and targets of samples, transformed."""
        source = self.source
        if isinstance(source, tuple):
            pairs = self._call(indices, lambda: _rows(cast("Any", source), indices))
        elif hasattr(source, "__getitems__"):
            pairs = self._call(indices, lambda: source.__getitems__(list(indices)))
        else:
            pairs = [self._call([index], lambda index=index: source[index]) for index in indices]
        if len(pairs) != len(indices):
            raise TaskError(f"the split {self._name!r} returned {len(pairs)} items for {len(indices)} indices")
        samples = [self._checked(index, pair) for index, pair in zip(indices, pairs, strict=True)]
        transform = self._transform
        if transform is None:
            return samples
        return [(self._call([index], partial(transform, x)), y) for index, (x, y) in zip(indices, samples, strict=True)]

    def _call(self, indices: Sequence[int], function: Callable[[], Any]) -> Any:
        """Call code of the user. Raises TaskError."""
        try:
            return function()
        except user_errors() as error:
            what = f"item {indices[0]}" if len(indices) == 1 else f"a batch with item {indices[0]}"
            problem = f"{what} of the split {self._name!r} cannot be read: {describe_exception(error)}"
            raise TaskError(problem) from error

    def _checked(self, index: int, item: Any) -> tuple[Any, Any]:
        parts = cast("Sequence[Any]", item) if isinstance(item, tuple | list) else ()
        if len(parts) != 2:
            found = describe_type(cast("object", item)) + (f" of {len(parts)}" if parts else "")
            raise TaskError(f"item {index} of the split {self._name!r} is {found}; return a pair, inputs and targets")
        return parts[0], parts[1]

    def _collate(self, indices: Sequence[int], samples: Sequence[tuple[Any, Any]]) -> Batch:
        inputs, targets = zip(*samples, strict=True)
        return self._stack(indices, inputs), map_tensors(as_indices, self._stack(indices, targets))

    def _stack(self, indices: Sequence[int], values: Sequence[Any]) -> Nested:
        """Return values of samples as one tensor, or as a dict of tensors if they are dicts."""
        if not isinstance(values[0], Mapping):
            return self._stack_tensors(indices, values)
        expected = list(cast("Mapping[str, Any]", values[0]))
        for index, value in zip(indices, values, strict=True):
            keys = list(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else []
            if {*keys} != {*expected}:
                found, wanted = (f"the keys {', '.join(map(str, of))}" if of else "no keys" for of in (keys, expected))
                raise TaskError(f"item {index} of the split {self._name!r} has {found}, and item {indices[0]} {wanted}")
        return {key: self._stack_tensors(indices, [value[key] for value in values]) for key in expected}

    def _stack_tensors(self, indices: Sequence[int], values: Sequence[Any]) -> Tensor:
        tensors: list[Tensor] = []
        for index, value in zip(indices, values, strict=True):
            try:
                tensors.append(torch.as_tensor(value))
            except (TypeError, ValueError, RuntimeError) as error:
                found = f"item {index} of the split {self._name!r} has {describe_type(value)}"
                raise TaskError(f"{found}; return tensors, arrays or numbers") from error
            first, tensor = tensors[0], tensors[-1]
            if (tensor.shape, tensor.dtype) != (first.shape, first.dtype):
                found, wanted = (f"{each.dtype} of shape {list(each.shape)}" for each in (tensor, first))
                raise TaskError(
                    f"item {index} of the split {self._name!r} is {found}, and item {indices[0]} {wanted}; "
                    "the items of a split need the same shape and type"
                )
        return torch.stack(tensors)


def _seed(seeds: tuple[int, ...], index: int) -> None:
    seed, *numbers = seeds or (0,)
    seed_global_generators(derive_seed(seed, "sample", *numbers, index))


def _rows(pair: tuple[Any, Any], indices: Sequence[int]) -> list[tuple[Any, Any]]:
    """Return copies of the rows of two columns."""

    def rows(column: Any) -> list[Any]:
        if isinstance(column, Mapping):
            columns = {key: rows(part) for key, part in cast("Mapping[str, Any]", column).items()}
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return list(column[list(indices)])

    inputs, targets = map(rows, pair)
    return list(zip(inputs, targets, strict=True))


def as_indices(targets: Tensor) -> Tensor:
    """Return integer targets as int64, which the cross-entropy of PyTorch needs; others unchanged."""
    is_integer = not (targets.is_floating_point() or targets.is_complex() or targets.dtype is torch.bool)
    return targets.long() if is_integer else targets
