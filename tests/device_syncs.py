"""Detects reads of tensors by the host. On a GPU, each would wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READS = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__")
"""Tensor methods that copy numbers to Python; on a GPU each waits for the device."""


class _Scalars(TorchDispatchMode):
    """Records the scalars that operators read from tensors implicitly."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self._found.append(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def device_syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield a list of the calls that read tensors on the host inside the context."""
    found: list[str] = []

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **options: Any) -> Any:
            found.append(name)
            return call(*args, **options)

        return read

    with monkeypatch.context() as patch, _Scalars(found):
        for name in READS:
            patch.setattr(Tensor, name, watched(name, getattr(Tensor, name)))
        yield found
