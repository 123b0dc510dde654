"""Tensors that move between devices together keep their values, shapes and order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.training.envs.env_state import _move_together

CPU = torch.device("cpu")
OTHER = torch.device("cpu", 0)
"""A device that is not equal to `cpu`, so that tensors move, and that every machine has."""
shapes = st.lists(st.integers(0, 3), max_size=4)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64])


@given(st.lists(st.tuples(shapes, dtypes), max_size=8), st.booleans())
def test_tensors_move_together_unchanged(found: list[tuple[list[int], torch.dtype]], channels_last: bool) -> None:
    tensors = [torch.randn(shape).mul(10).to(dtype) for shape, dtype in found]
    if channels_last:
        tensors = [each.to(memory_format=torch.channels_last) if each.dim() == 4 else each for each in tensors]
    moved = _move_together(tensors, OTHER)
    assert len(moved) == len(tensors)
    for before, after in zip(tensors, moved, strict=True):
        assert after.dtype is before.dtype
        assert torch.equal(before, after)


def test_tensors_that_are_there_are_not_copied() -> None:
    tensors = [torch.zeros(2), torch.zeros(3)]
    assert all(before is after for before, after in zip(tensors, _move_together(tensors, CPU), strict=True))
