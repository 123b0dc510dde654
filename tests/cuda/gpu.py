"""Helpers of the tests on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

NEEDS_GPU = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]
GPU = ("cuda:0",)


@contextmanager
def side_stream() -> Iterator[None]:
    """Another stream than the default one, on which no graph can be recorded."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
