"""CUDA graphs: the kernels of one batch, recorded once and replayed for the other batches of an epoch.

Python takes longer to launch the kernels of a small network than a GPU to run them. On an H200, an epoch of eight
batches of `digits_impaired` with three seeds took 42 ms, and 5 ms with a graph that is recorded anew in every epoch.
Alphas and learning rates, which a graph contains as constants, change only between epochs.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Generator, Hashable
from typing import NamedTuple

import torch

from esper.growth.outputs import Nested, list_tensors, map_tensors

MIN_BATCHES = 3
"""Fewest batches of an epoch for which a graph pays."""


class Recording(NamedTuple):
    """A graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    batch: Nested
    result: Nested


class CudaGraphs:
    """The graphs of one device, with their common memory.

    Attributes:
        memory: Handle of the memory of all graphs. The graphs of a stream use the same memory one after another. torch
            frees the memory with its last graph, and then refuses the handle.
        recordings: The last recording of each owner, which the device may still replay.
        warm: Owners that have run a batch without a graph, and pairs of stream and kind of batch that have. The first
            batch loads kernels, allocates workspaces and may fill caches of the model, which must not be recorded.
    """

    def __init__(self) -> None:
        self.memory = torch.cuda.graph_pool_handle()
        self.recordings: dict[Hashable, Recording] = {}
        self.warm: set[Hashable] = set()


class ReplayedBatches:
    """Calls a function for the batches of an epoch: its kernels are recorded for one batch and replayed for the others.

    The function must launch the same kernels for every batch of the same shapes, and must not wait for the device.

    Args:
        function: Function of a batch that returns tensors.
        owner: Identifies the network. It starts an epoch only after the device has finished its last one.
        kind: Batches of the same kind and shapes run the same kernels.
    """

    def __init__(
        self,
        graphs: CudaGraphs,
        function: Callable[[Nested], Nested],
        *,
        owner: Hashable,
        kind: Hashable,
        device: torch.device,
    ) -> None:
        self._graphs = graphs
        self._function = function
        self._owner = owner
        self._needs_warm = {owner, (torch.cuda.current_stream(device), kind)}
        self._recording: Recording | None = None

    def __call__(self, batch: Nested) -> Nested:
        """Return the result of the function for a batch, on the current stream.

        Raises:
            RuntimeError: The function cannot be recorded, for example because it waits for the device.
        """
        if self._recording is None:
            if not self._needs_warm <= self._graphs.warm:
                result = self._function(batch)
                self._graphs.warm |= self._needs_warm
                return result
            self._recording = self._graphs.recordings[self._owner] = self._record(batch)
        recorded = self._recording
        pairs = list(zip(list_tensors(recorded.batch), list_tensors(batch), strict=True))
        if any(own.shape != new.shape for own, new in pairs):  # the last batch of an epoch may be smaller
            return self._function(batch)
        for own, new in pairs:
            own.copy_(new, non_blocking=True)
        recorded.graph.replay()
        return map_tensors(torch.clone, recorded.result)

    def _record(self, batch: Nested) -> Recording:
        """Record the function. Nothing is computed yet."""
        batch = map_tensors(torch.clone, batch)
        graph = torch.cuda.CUDAGraph()
        try:
            with no_garbage_collection():
                # Not "thread_local": this thread may release other memory of the device meanwhile.
                graph.capture_begin(pool=self._graphs.memory, capture_error_mode="relaxed")
                try:
                    result = self._function(batch)
                except Exception:
                    with contextlib.suppress(RuntimeError):  # the first error tells more
                        graph.capture_end()
                    raise
                graph.capture_end()
        except RuntimeError as error:
            self._graphs.memory = torch.cuda.graph_pool_handle()  # the old one may be refused from now on
            reason = str(error).strip().split("\n")[0].removeprefix("CUDA error: ")
            if "captur" not in reason:
                raise
            raise RuntimeError(
                f"a batch cannot be recorded in a CUDA graph ({reason}); set cuda_graphs=False in the task"
            ) from error
        return Recording(graph, batch, result)


class _CollectionPause:
    """Switches the garbage collector off while any thread of this process records a graph.

    If it destroyed a graph or an event of an earlier population meanwhile, the recording would fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._was_enabled = False

    @contextlib.contextmanager
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
