"""Outputs of modules and models: tensors, or nested tuples, lists and mappings of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

Nested: TypeAlias = Any
"""A tensor, or a nested tuple, list or mapping of tensors; other values inside it are kept as they are."""


def first_tensor(output: Nested) -> Tensor | None:
    """Return the output itself if it is a tensor, the first element of a tuple or list, or None."""
    first = output[0] if _is_sequence(output) and output else output
    return first if isinstance(first, Tensor) else None


def replace_first_tensor(output: Nested, tensor: Tensor) -> Nested:
    """Return the output with `tensor` in the place of its `first_tensor`."""
    return tensor if isinstance(output, Tensor) else _rebuilt(output, [tensor, *output[1:]])


def map_tensors(function: Callable[[Tensor], Any], value: Nested) -> Nested:
    """Return a value of the same structure with each tensor replaced by `function(tensor)`."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        items = {key: map_tensors(function, part) for key, part in cast("Mapping[Any, Any]", value).items()}
        kind: Any = type(cast("object", value))
        return items if kind is dict else kind(**items)
    return _rebuilt(value, [map_tensors(function, part) for part in value]) if _is_sequence(value) else value


def _is_sequence(value: Nested) -> bool:
    return isinstance(value, tuple | list)


def _rebuilt(like: Nested, parts: list[Any]) -> Nested:
    """Return a tuple, named tuple or list with new elements."""
    kind: Any = type(cast("object", like))
    return kind(*parts) if hasattr(like, "_fields") else kind(parts)


def list_tensors(value: Nested) -> list[Tensor]:
    """Return all tensors of a value, in order."""
    found: list[Tensor] = []
    map_tensors(found.append, value)
    return found


def concatenate(values: Sequence[Nested]) -> Nested:
    """Return values of the same structure as one with the rows of all; scalars are those of the first."""
    columns = iter(zip(*map(list_tensors, values), strict=True))

    def rows_of_all(first: Tensor) -> Tensor:
        column = next(columns)
        return torch.cat(column) if first.dim() else first

    return map_tensors(rows_of_all, values[0])


def are_equal(one: Nested, other: Nested) -> bool:
    """Return True if the tensors of two values are equal in shape, type and every number. NaN equals NaN."""
    ours, theirs = list_tensors(one), list_tensors(other)
    return [(a.shape, a.dtype) for a in ours] == [(b.shape, b.dtype) for b in theirs] and all(
        torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in zip(ours, theirs, strict=True)
    )


def split_variants(output: Nested, variants: int, samples: int) -> list[Nested]:
    """Split an output for `variants · samples` rows into the outputs of each variant, `samples` rows each.

    Raises:
        ValueError: A tensor has another number of rows.
    """
    for tensor in list_tensors(output):
        if tensor.dim() == 0 or len(tensor) != variants * samples:
            raise ValueError(f"expected {variants * samples} rows, got a tensor of shape {list(tensor.shape)}")

    def rows_of(variant: int) -> Callable[[Tensor], Tensor]:
        return lambda tensor: tensor.narrow(0, variant * samples, samples)

    return [map_tensors(rows_of(variant), output) for variant in range(variants)]


def to_float32(value: Nested) -> Nested:
    """Return a value with its 16-bit floating-point tensors as float32."""
    return map_tensors(
        lambda tensor: tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor, value
    )
