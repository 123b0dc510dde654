"""CUDA graphs: the kernels of one batch, recorded once and replayed for the other batches of an epoch.

Python takes longer to launch the kernels of a small network than a GPU to run them. On an H200, an epoch of eight
batches of `digits_impaired` with three seeds took 42 ms, and 5 ms with a graph that is recorded anew in every epoch.
Alphas and learning rates, which a graph contains as constants, change only between epochs.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager

import torch

from esper.growth.outputs import Nested, list_tensors, map_tensors

MIN_BATCHES = 3
"""Fewest batches of an epoch for which a graph pays."""


class CudaGraphs:
    """What the graphs of one device share.

    Attributes:
        memory: Handle of the memory of the graphs. The graphs of a stream use the same memory one after another.
        latest: The graph that was recorded last; None before the first. torch frees the memory with its last graph, and
            refuses the handle from then on.
        known: Streams with the kinds of batches that they have run without a graph. The first batch of a kind loads its
            kernels and allocates workspaces, which must not be recorded.
    """

    def __init__(self) -> None:
        self.memory = torch.cuda.graph_pool_handle()
        self.latest: torch.cuda.CUDAGraph | None = None
        self.known: set[Hashable] = set()


class ReplayedBatches:
    """Calls a function for the batches of an epoch: its kernels are recorded for one batch and replayed for the others.

    The function must launch the same kernels for every batch of the same shapes, and must not wait for the device. The
    object must live until the device has finished the epoch.

    Args:
        graphs: Shared by the graphs of the device.
        function: Function of a batch that returns tensors.
        kind: Batches of the same kind and shapes run the same kernels.
        device: The device.
    """

    def __init__(
        self, graphs: CudaGraphs, function: Callable[[Nested], Nested], kind: Hashable, device: torch.device
    ) -> None:
        self._graphs = graphs
        self._function = function
        self._kind = torch.cuda.current_stream(device), kind
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Nested = None
        """The batch that the graph reads."""
        self._result: Nested = None
        """The result that the graph writes."""

    def __call__(self, batch: Nested) -> Nested:
        """Return the result of the function for a batch, on the current stream.

        Raises:
            RuntimeError: The function waits for the device.
        """
        if self._graph is None:
            if self._kind not in self._graphs.known:
                self._graphs.known.add(self._kind)
                return self._function(batch)
            self._graph = self._record(batch)
        pairs = list(zip(list_tensors(self._batch), list_tensors(batch), strict=True))
        if any(own.shape != new.shape for own, new in pairs):  # the last batch of an epoch may be smaller
            return self._function(batch)
        for own, new in pairs:
            own.copy_(new, non_blocking=True)
        self._graph.replay()
        return map_tensors(torch.clone, self._result)

    def _record(self, batch: Nested) -> torch.cuda.CUDAGraph:
        """Return a graph of the function. Nothing is computed yet."""
        self._batch = map_tensors(torch.clone, batch)
        graph = torch.cuda.CUDAGraph()
        try:
            with no_garbage_collection():
                # Not "thread_local": this thread may release other memory of the device meanwhile.
                graph.capture_begin(pool=self._graphs.memory, capture_error_mode="relaxed")
                try:
                    self._result = self._function(self._batch)
                finally:
                    graph.capture_end()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0].removeprefix("CUDA error: ")
            raise RuntimeError(
                f"a batch cannot be recorded in a CUDA graph ({reason}); set cuda_graphs=False in the task"
            ) from error
        self._graphs.latest = graph
        return graph


class _CollectionPause:
    """Switches the garbage collector off while any thread of this process records a graph.

    If it destroyed a graph or an event of an earlier population meanwhile, the recording would fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._was_enabled = False

    @contextmanager
    def __call__(self) -> Generator[None]:
        """Context of a thread that records."""
        with self._lock:
            if self._threads == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if self._threads == 0 and self._was_enabled:
                    gc.enable()


no_garbage_collection = _CollectionPause()
