"""CUDA graphs: the kernels of an env-step, recorded once per topology of an env and replayed from then on.

Python takes longer to launch the kernels of a small network than a GPU to run them. On an H200, an epoch of eight
batches of `digits_impaired` with three seeds took 42 ms. It took 5.4 ms with a graph that was recorded again in every
epoch, and 1.07 ms with a graph that was kept.

Four functions of an env-step are recorded: a batch of the training, the smaller last batch, the summary of the epoch,
and the validation. A whole epoch in one graph would save a few launches, but would cost as much as a launched epoch
each time that a topology is new: in a fifth of the steps of an untrained policy (8 rounds of 16 envs on
`digits_impaired`).

A graph contains numbers and addresses as constants. So everything that changes from step to step is a tensor that keeps
its address: inputs, and results of batches, have buffers that the envs of a stream share, and results of epochs have
buffers of their env; alphas and learning rates are written into tensors of the env; the index of the batch is counted
on the device. A change of the operations leads to another graph. Graphs that read a tensor which has moved are dropped.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from esper.common.system.process import host_memory
from esper.networks.seeds.network import count_samples
from esper.networks.seeds.outputs import Nested, list_tensors, map_tensors
from esper.networks.tasks.splits import Split, take

MIN_FREE_GPU = 1 << 30
"""Free memory of a GPU in bytes, below which old graphs make room for new ones."""
MIN_FREE_HOST = 0.1
"""Available fraction of the host's memory, below which old graphs are dropped, too. A graph uses memory of both."""
_DROPPED_AT_ONCE = 2
KEPT_PER_ENV = 32
"""Topologies of an env whose graphs are kept, on average over the envs.

On `digits_impaired`, in 12 rounds of 16 envs with a policy that had just begun to learn, an env was in one of its
earlier topologies in 75.2 % of the steps, and in one of the last 32 in 74.9 %. A plan of three seeds has 8 in each
episode; if fewer were kept, each would be dropped before it comes again.
"""
_CAPACITY = 64
"""Buffers of vectors have a multiple of this number of elements."""


class EnvTensors(NamedTuple):
    """Everything that the recorded functions of an env read and write, except their buffers."""

    objects: Sequence[object]
    """Modules, optimizers and scaler: the owners of the tensors."""
    tensors: Sequence[Tensor]


class Graph(Protocol):
    """A recorded function."""

    def replay(self) -> None:
        """Run the function again, with the same tensors."""


class CudaGraphs:
    """The graphs of the envs of one device.

    Attributes:
        structures: Indices of the structures that are trained by graphs; see `graph_check`. The kernels of others are
            launched.
        recordings: Number of recorded graphs so far.
        notices: Sentences for the log, which `take_notices` removes.
    """

    def __init__(self, device: torch.device, structures: Collection[int] = ()) -> None:
        self.device = device
        self.structures = set(structures)
        self.recordings = 0
        self.notices: list[str] = []
        self._noticed: set[str] = set()
        self._unrecordable: set[Hashable] = set()
        self._envs: set[int] = set()
        self._kept: OrderedDict[Hashable, StepGraphs] = OrderedDict()
        """Graphs by env and topology, least recently used first."""
        self._is_exhausted = False
        """True if memory is short and dropping graphs has not helped."""
        self._memories: dict[object, StreamMemory] = {}
        """Memory of each stream."""

    def select(
        self,
        env: int,
        kind: Hashable,
        topology: Sequence[Hashable],
        objects: Sequence[object],
        tensors: Callable[[], Sequence[Tensor]],
    ) -> StepGraphs:
        """Return the graphs of an env in its current topology, for the current stream.

        Args:
            env: Index of the env.
            kind: Kind of its host.
            topology: State of each slot, None if it runs no kernels. Two steps of an env with equal topologies run the
                same kernels.
            objects: Owners of the tensors.
            tensors: Returns all tensors that the recorded functions read and write. They must exist.
        """
        memory, key = self._memory(), (env, kind, tuple(topology))
        kept = self._kept.get(key)
        if kept is not None and kept.memory is memory:
            if kept.is_valid(objects):
                self._kept.move_to_end(key)
                kept.failed.clear()
                return kept
            self._notify("a tensor that CUDA graphs read has moved: they are dropped and recorded again")
        kept = self._kept[key] = StepGraphs(self, memory, key, EnvTensors(objects, tensors()))
        self._kept.move_to_end(key)
        self._envs.add(env)
        if len(self._kept) > KEPT_PER_ENV * len(self._envs):
            self._kept.popitem(last=False)
        return kept

    def record(
        self, kind: Hashable, function: Callable[[], object], memory: StreamMemory, *, is_first_call: bool
    ) -> Graph | None:
        """Record a function on the current stream without running it.

        Args:
            kind: Structure, topology and name of the function. After a failure, no function of this kind is recorded
                any more. Those of other topologies are, because the failure may have been a passing one.
            is_first_call: The function was never launched. A failure then says nothing: its kernels or caches may be
                missing.

        Returns:
            None if it cannot be recorded, for example because it waits for the device. A notice says why, except for a
            first call. Libraries report this in many words, so every RuntimeError counts; if it has another cause, such
            as a lost device, the launch that follows raises it.
        """
        if kind in self._unrecordable or not self._has_room():
            return None
        memory.is_recording = True
        try:
            graph = record_graph(function, memory)
        except RuntimeError as error:
            memory.graphs.clear()  # torch may refuse their handle from now on
            reason = str(error).strip().split("\n")[0].removeprefix("CUDA error: ")
            if "out of memory" in reason:  # without graphs, the launch that follows fails too
                self._kept.clear()
                self._notify("memory was exhausted while kernels were recorded: all CUDA graphs are dropped")
            elif not is_first_call:
                self._unrecordable.add(kind)
                self._notify(f"a CUDA graph cannot record the kernels, so they are launched one by one: {reason}")
            return None
        finally:
            memory.is_recording = False
        self.recordings += 1
        return graph

    def clear(self) -> None:
        """Forget all graphs, launches and notices, and reset the count, after measurements at the start of a run.

        A network that was not measured may fill caches of its own in its first launch.
        """
        self._kept.clear()
        for memory in self._memories.values():
            memory.warm.clear()
        self.recordings = 0
        self.notices.clear()
        self._noticed.clear()

    def take_notices(self) -> list[str]:
        """Return the notices since the last call. The same sentence is returned once."""
        found, self.notices[:] = self.notices[:], []
        return found

    def _notify(self, text: str) -> None:
        if text not in self._noticed:
            self._noticed.add(text)
            self.notices.append(text)

    def _memory(self) -> StreamMemory:
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        if stream not in self._memories:
            self._memories[stream] = StreamMemory(self.device)
        return self._memories[stream]

    def _has_room(self) -> bool:
        """Return True if there is memory for a graph. If it is short, drop the graphs that were not used for longest.

        First, torch returns its cached memory, because it cannot do so during a recording. The graphs of a stream share
        memory, which becomes free with the last of them. So a drop may gain nothing; then no more are dropped, and
        kernels are launched until memory is no longer short.
        """
        missing = missing_memory(self.device)
        if missing and not self._is_exhausted:
            self._notify(
                "memory is short: CUDA graphs that were not used for longest make room, or kernels are launched"
            )
            missing = self._release(0)
            while missing and not self._is_exhausted:
                before, missing = missing, self._release(_DROPPED_AT_ONCE)
                self._is_exhausted = missing >= before
        if not missing:
            self._is_exhausted = False
        return not missing

    def _release(self, graphs: int) -> int:
        """Drop some graphs, but not the current ones; return the bytes that are still missing."""
        for _ in range(min(graphs, len(self._kept) - 1)):
            self._kept.popitem(last=False)
        collection_pause.run_outside(torch.cuda.empty_cache)  # of all GPUs: it waits for them
        return missing_memory(self.device)


def missing_memory(device: torch.device) -> int:
    """Return the bytes that a GPU and its host lack for more graphs; 0 if both have enough."""
    if device.type != "cuda":
        return 0
    host = host_memory()
    missing_on_host = int(MIN_FREE_HOST * host.total) - host.available
    return max(MIN_FREE_GPU - torch.cuda.mem_get_info(device)[0], 0) + max(missing_on_host, 0)


class StreamMemory:
    """Buffers of the envs of one stream, which use them one after another, and the memory of their graphs.

    A buffer is created when a function is launched, never while it is recorded, and keeps its address.
    """

    def __init__(self, device: torch.device) -> None:
        self.batch_index = torch.zeros(1, dtype=torch.int64, device=device)
        """Index of the next batch of an epoch."""
        self.warm: set[Hashable] = set()
        """Names of launched functions, each paired with an env or with the state of a slot that took part."""
        self.graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
        """Live graphs, which share their memory."""
        self.is_recording = False
        self._pool: Any = None
        self._ranges: dict[int, Tensor] = {}
        self._buffers: dict[Hashable, list[Tensor]] = {}
        self._placed: dict[Hashable, list[Tensor]] = {}
        """Source of the last `place_once`, by name."""

    def pool(self) -> Any:
        """Return the handle of the memory of the graphs. torch frees it with the last graph, and then refuses it."""
        if not self.graphs:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def numbers(self, count: int) -> Tensor:
        """Return the numbers from 0 to `count - 1`."""
        if count not in self._ranges:
            self._ranges[count] = torch.arange(count, device=self.batch_index.device)
        return self._ranges[count]

    @torch.no_grad()
    def place(self, name: Hashable, value: Nested) -> Nested:
        """Copy tensors into their buffers, and return these."""
        buffers = self._like(name, value)
        for own, new in zip(list_tensors(buffers), list_tensors(value), strict=True):
            own.copy_(new, non_blocking=True)
        return buffers

    def place_once(self, name: Hashable, value: Nested) -> Nested:
        """Do as `place`, unless the same tensor objects were placed last. They must not be changed in place."""
        source, last = list_tensors(value), self._placed.get(name, [])
        if len(source) == len(last) and all(new is old for new, old in zip(source, last, strict=True)):
            return self._like(name, value)
        self._placed.pop(name, None)  # a copy that fails must not count
        buffers = self.place(name, value)
        self._placed[name] = source
        return buffers

    @torch.no_grad()
    def place_row(self, name: Hashable, result: Nested, rows: int) -> Nested:
        """Copy the result for the current batch into row `batch_index` of buffers, count it, and return the buffers.

        Args:
            rows: Number of rows of each buffer.
        """
        buffers = self._like(name, result, rows)
        for own, new in zip(list_tensors(buffers), list_tensors(result), strict=True):
            own.index_copy_(0, self.batch_index, new.unsqueeze(0))
        self.batch_index.add_(1)
        return buffers

    def _like(self, name: Hashable, value: Nested, rows: int | None = None) -> Nested:
        """Return the buffers for tensors of these shapes, with a leading dimension of `rows` if that is given.

        Vectors of similar lengths use the same buffer: their lengths depend on the number of seeds.
        """
        key = name, rows, tuple((_capacity(each), each.stride(), each.dtype) for each in list_tensors(value))
        if key not in self._buffers:
            if self.is_recording:  # it would live in the memory of the graphs, which others overwrite
                raise RuntimeError("its result has another shape while it is captured than before")

            def buffer(tensor: Tensor) -> Tensor:
                if rows is None and tensor.dim() != 1:
                    return torch.empty_like(tensor)
                return tensor.new_empty((*([] if rows is None else [rows]), *_capacity(tensor)))

            self._buffers[key] = [buffer(tensor.detach()) for tensor in list_tensors(value)]
        buffers = iter(self._buffers[key])
        return map_tensors(lambda tensor: _narrowed(next(buffers), tensor), value)


def _capacity(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of the buffer of a tensor."""
    return (-(-len(tensor) // _CAPACITY) * _CAPACITY,) if tensor.dim() == 1 else tuple(tensor.shape)


def _narrowed(buffer: Tensor, tensor: Tensor) -> Tensor:
    return buffer.narrow(-1, 0, len(tensor)) if tensor.dim() == 1 else buffer


class StepGraphs:
    """The graphs of one env and kind of host in one topology, on one stream.

    The first call of a function launches its kernels: it loads them, allocates workspaces, and may fill caches of the
    model, which must not be recorded. The second call records it, and later calls replay it. If other calls on this
    stream, of the env and of each state of a slot, have launched all that already, the first call records it.

    Attributes:
        memory: Buffers of the stream.
        failed: Names of functions that could not be recorded in the current epoch. In the next one there may be memory.
    """

    def __init__(
        self,
        graphs: CudaGraphs,
        memory: StreamMemory,
        key: tuple[int, Hashable, Sequence[Hashable]],
        state: EnvTensors,
    ) -> None:
        self.memory = memory
        self._env, self._host_kind, self._topology = key
        slots = (slot for slot in enumerate(self._topology) if slot[1] is not None)
        self._warmed: list[Hashable] = [(self._host_kind, part) for part in (self._env, *slots)]
        """The env and the states of the slots, each with its kind of host: see `_needed`."""
        self._graphs = graphs
        self._state = state
        self._addresses = [address_of(tensor) for tensor in state.tensors]
        self.failed: set[Hashable] = set()
        self._recorded: dict[Hashable, Graph] = {}
        self._results: dict[Hashable, Nested] = {}
        """Result buffers of each function that was called before."""

    def is_valid(self, objects: Sequence[object]) -> bool:
        """Return True if the env has these objects, and all tensors are where they were."""
        known = self._state.objects
        return (
            len(objects) == len(known)
            and all(new is old for new, old in zip(objects, known, strict=True))
            and all(address_of(tensor) == old for tensor, old in zip(self._state.tensors, self._addresses, strict=True))
        )

    def run(self, name: tuple[Hashable, ...], function: Callable[[], Nested]) -> Nested:
        """Run a function, and return its result in buffers of the env, which a later call overwrites.

        Args:
            name: Name of the function, and the places and sizes of everything that it reads.
            function: Launches the same kernels in every call, on tensors that keep their addresses, and does not wait
                for the device.
        """
        return self._run(name, lambda: self.memory.place(("result", self._env, name), function()))

    def run_batches(
        self, function: Callable[[Split], Nested], split: Split, size: int, before: Callable[[int], None]
    ) -> tuple[Nested, Nested | None]:
        """Run a function on the batches of an epoch.

        Args:
            function: As for `run`, a function of a batch.
            split: All samples of the epoch, in buffers.
            size: Samples of a batch. The last batch may be smaller.
            before: Called before each batch, with its index from 0; not recorded.

        Returns:
            Results of the full batches, stacked, and result of the smaller one; None without such batches.
        """
        memory, samples, place = self.memory, count_samples(split[0]), place_of(split)
        full, rest = samples // size, samples % size
        stacked: Nested | None = None
        tail: Nested | None = None
        if full:
            memory.batch_index.zero_()
            offset_B = memory.numbers(size)

            def run_next() -> Nested:
                index_B = memory.batch_index * size + offset_B
                return memory.place_row("batches", function(take(split, index_B)), full)

            for index in range(full):
                before(index)
                stacked = self._run(("batch", place, size), run_next)
        if rest:
            before(full)
            last = map_tensors(lambda tensor: tensor.narrow(0, full * size, rest), split)
            tail = self._run(("last batch", place, size), lambda: memory.place("last batch", function(last)))
        return stacked, tail

    def _run(self, name: tuple[Hashable, ...], function: Callable[[], Nested]) -> Nested:
        """Launch, record or replay a function that returns buffers."""
        if name not in self._recorded and name not in self.failed:
            self._try_to_record(name, function)
        graph = self._recorded.get(name)
        if graph is None:
            self._results[name] = function()
            self.memory.warm |= self._needed(name)
        else:
            graph.replay()
        return self._results[name]

    def _needed(self, name: Hashable) -> set[Hashable]:
        return {(name, part) for part in self._warmed}

    def _try_to_record(self, name: tuple[Hashable, ...], function: Callable[[], Nested]) -> None:
        is_first_call = name not in self._results
        if is_first_call and not self._needed(name) <= self.memory.warm:
            return
        results: list[Nested] = []
        kind = self._host_kind, self._topology, name[0]
        graph = self._graphs.record(kind, lambda: results.append(function()), self.memory, is_first_call=is_first_call)
        if graph is not None:
            self._recorded[name], self._results[name] = graph, results[0]
        elif not is_first_call:
            self.failed.add(name)


def place_of(split: Split) -> Hashable:
    """Return addresses, shapes and strides of the buffers of a split, which a graph reads."""
    return tuple((address_of(each), tuple(each.shape), each.stride()) for part in split for each in list_tensors(part))


def address_of(tensor: Tensor) -> int:
    """Return the address of the memory of a tensor."""
    return tensor.data_ptr()


def record_graph(function: Callable[[], object], memory: StreamMemory) -> Graph:
    """Record a function on the current stream, without running it.

    Raises:
        RuntimeError: It cannot be recorded, or memory is exhausted, or the device is lost.
    """
    graph = torch.cuda.CUDAGraph()
    with collection_pause.hold():
        # Not "thread_local": this thread may release other memory of the device meanwhile.
        graph.capture_begin(pool=memory.pool(), capture_error_mode="relaxed")
        try:
            function()
        except BaseException:  # also if the code of the task calls `sys.exit`
            with contextlib.suppress(RuntimeError):  # the first error tells more
                graph.capture_end()
            raise
        graph.capture_end()
    memory.graphs.add(graph)
    return graph


class _CollectionPause:
    """Switches the garbage collector off while any thread of this process records a graph.

    If it destroyed a graph or an event of an earlier population meanwhile, the recording would fail.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._was_enabled = False

    @contextlib.contextmanager
    def hold(self) -> Generator[None]:
        """Return the context of a thread that records."""
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

    def run_outside(self, function: Callable[[], object]) -> None:
        """Call a function if no thread records; do nothing if one does."""
        with self._lock:
            if self._threads == 0:
                function()


collection_pause = _CollectionPause()
