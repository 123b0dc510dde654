"""Tapes: CUDA graphs on a CPU. A tape contains the operators of a function with their scalar arguments and addresses.

Replaying it runs exactly these operators again, on the same memory, as a GPU runs the kernels of a graph. A number that
was a constant in the recording keeps its value, and a tensor that has moved is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from esper.training.envs import cuda_graphs
from esper.training.envs.cuda_graphs import CudaGraphs, StreamMemory
from esper.training.lanes.pool import EnvPool

READ = torch.ops.aten._local_scalar_dense.default
BATCH_NORM = torch.ops.aten.native_batch_norm.default


class Tape(TorchDispatchMode):
    """A recorded function. Recording on a CPU runs it, so the first replay does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.replays = 0
        self._overwritten: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is READ:
            raise RuntimeError("a value is read while the stream is capturing")
        kwargs = kwargs or {}
        for declared, value in zip(func._schema.arguments, args, strict=False):
            # The schema of batch norm does not say that it updates its running statistics.
            if declared.is_write or (func is BATCH_NORM and declared.name.startswith("running_")):
                self._overwritten += [(tensor, tensor.clone()) for tensor in _tensors(value)]
        result = func(*args, **kwargs)
        if func._schema.is_mutable or not _is_view(result, (args, kwargs)):
            self.operators.append((func, args, kwargs, _tensors(result)))
        return result

    def undo(self) -> None:
        """Restore all tensors, after a failure: a recording on a GPU runs nothing, so new ones are never written."""
        with torch.no_grad():
            for func, _, _, results in self.operators:
                for tensor in () if func._schema.is_mutable else results:
                    tensor.fill_(float("nan") if tensor.is_floating_point() else 1)
            for tensor, value in reversed(self._overwritten):
                tensor.copy_(value)

    def replay(self) -> None:
        self.replays += 1
        if self.replays == 1:
            return
        with torch.no_grad():
            for func, args, kwargs, results in self.operators:
                for recorded, now in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                    if recorded is not now:
                        recorded.copy_(now)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _is_view(result: Any, given: Any) -> bool:
    memory = {tensor.untyped_storage().data_ptr() for tensor in _tensors(given)}
    return all(tensor.untyped_storage().data_ptr() in memory for tensor in _tensors(result))


@contextmanager
def taped(
    pool: EnvPool, monkeypatch: pytest.MonkeyPatch, failures: list[RuntimeError] | None = None
) -> Iterator[list[Tape]]:
    """Context in which the envs of a pool on a CPU are trained by tapes. Yields the tapes.

    Args:
        failures: Errors of the next recordings, one each. Each is removed when it is raised.
    """
    tapes: list[Tape] = []

    def record(function: Callable[[], object], memory: StreamMemory) -> Tape:
        tape = Tape()
        try:
            with tape:
                function()
                if failures:
                    raise failures.pop(0)
        except RuntimeError:
            tape.undo()
            raise
        tapes.append(tape)
        memory.graphs.add(tape)
        return tape

    hosts = list(pool._hosts_on.values())
    with monkeypatch.context() as patch:
        patch.setattr(cuda_graphs, "record_graph", record)
        for each in hosts:
            patch.setattr(each, "cuda_graphs", CudaGraphs(each.device, range(len(each.structures))))
        yield tapes
