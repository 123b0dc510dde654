"""Fake GPUs: tensors of PyTorch's fake mode, which know their device and hold no numbers.

They show that nothing is computed across devices, when the host waits, and that no two streams access the same memory
unordered. Values read from fake tensors are 0.5 (floating point) or 1. The backward pass, which would need a driver, is
replaced and yields gradients without values.
"""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from esper.training.envs import cuda_graphs
from esper.training.envs.packing import storage_id
from esper.training.lanes import lane, pool
from esper.training.lanes.errors import FaultError
from tests.training.lanes.stream_order import StreamOrder

READ = torch.ops.aten._local_scalar_dense.default
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype_layout}


class Gpus:
    """Streams of the fake GPUs, the order of their kernels, and the number of waits of the host by reason."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        self.order = StreamOrder()
        self.device = 0
        """Index of the current device."""
        self.recording: list[Kernel] | None = None
        """Kernels of the graph that is being recorded; None: kernels run."""
        self._defaults: dict[int, Stream] = {}
        self._current: dict[int, Stream] = {}

    def set_device(self, device: torch.device) -> None:
        """Make a device the current one."""
        self.device = device.index

    def default_stream(self, device: torch.device) -> Stream:
        """Return the default stream of a device."""
        if device.index not in self._defaults:
            self._defaults[device.index] = Stream(self, device)
        return self._defaults[device.index]

    def current_stream(self, device: torch.device) -> Stream:
        """Return the current stream of a device."""
        return self._current.get(device.index, self.default_stream(device))

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Context in which the stream and its device are current."""
        before = self.device, self._current.copy()
        self.device, self._current[stream.device.index] = stream.device.index, stream
        try:
            yield
        finally:
            self.device, self._current = before


Kernel = tuple[Any, Any, Any, Any]
"""Operator of a kernel, its arguments, and its result."""


class Graph:
    """A CUDA graph: kernels that run each time that it is replayed."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._kernels: list[Kernel] = []

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert pool is self._gpus
        assert capture_error_mode == "relaxed"
        assert not gc.isenabled()  # it might destroy objects of the device
        assert self._gpus.recording is None
        self._gpus.recording = self._kernels

    def capture_end(self) -> None:
        self._gpus.recording = None

    def replay(self) -> None:
        assert self._kernels
        stream = self._gpus.current_stream(torch.device("cuda", self._gpus.device))
        for kernel in self._kernels:
            self._gpus.order.launch(stream.number, *kernel)


class Stream:
    """A stream of a device, with a unique number."""

    numbers = itertools.count()

    def __init__(self, gpus: Gpus, device: torch.device) -> None:
        self.device, self.number = device, next(self.numbers)
        self._gpus = gpus

    def wait_stream(self, other: Stream) -> None:
        """Order later work of this stream after the work launched on the other."""
        reached = Event(self._gpus)
        reached.record(other)
        self._gpus.order.wait(self.number, id(reached))


class Event:
    """An event; waiting for it requires that it was recorded."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self.device: torch.device | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self._gpus.current_stream(torch.device("cuda", self._gpus.device))
        self.device = stream.device
        self._gpus.order.record(id(self), stream.number)

    def synchronize(self) -> None:
        assert self.device
        self._gpus.order.synchronize(id(self))
        self._gpus.waits["event"] += 1

    def elapsed_time(self, after: Event) -> float:
        assert self.device == after.device is not None
        assert all(self._gpus.order.is_over(id(event)) for event in (self, after))
        return 1.0


class Watch(TorchDispatchMode):
    """Counts operations that make the host wait for a device, and records the order of kernels.

    Checks and skips the fused update, which has no fake implementation.
    """

    def __init__(self, gpus: Gpus) -> None:
        super().__init__()
        self._gpus = gpus

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {**(kwargs or {})}
        waits = self._gpus.waits
        if func is READ:
            assert self._gpus.recording is None, "a graph cannot record a read"
            waits["read"] += args[0].device.type == "cuda"
            return 0.5 if args[0].is_floating_point() else 1
        if func is torch.ops.aten._fused_sgd_.tensor_lr:
            result = _check_fused(*args, **kwargs)
        else:
            kwargs.pop("pin_memory", None)
            result = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1:
            assert func in COPIES, f"{func} across devices"
            waits["copy"] += not (kwargs.get("non_blocking") or args[2:3] == (True,))
        for device in devices:
            if device.type == "cuda" and func.namespace == "aten":
                if self._gpus.recording is not None:
                    self._gpus.recording.append((func, args, kwargs, result))
                else:
                    self._gpus.order.launch(self._gpus.current_stream(device).number, func, args, kwargs, result)
        return result


def _check_fused(*args: Any, lr: Tensor, grad_scale: Tensor, found_inf: Tensor | None = None, **_: Any) -> None:
    """Check arguments as PyTorch's CUDA kernel does."""
    for twins in zip(*args, strict=True):
        assert len({(each.device, each.dtype, each.shape, each.stride()) for each in twins}) == 1
    for scalar in (lr, grad_scale, found_inf):
        assert scalar is None or (scalar.device, scalar.dtype) == (args[0][0].device, torch.float32)


class _Now:
    """An executor that runs tasks in the submitting thread, because fake mode is active in one thread only."""

    def __init__(self, gpus: Gpus, *, initializer: Callable[[], None], **_: Any) -> None:
        self._gpus, self._initializer = gpus, initializer

    def submit(self, work: Callable[..., Any], *args: Any) -> Any:
        outside = self._gpus.device
        self._initializer()
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args))
        except FaultError as fault:
            done.set_exception(fault)
        self._gpus.device = outside
        return done

    def shutdown(self, **_: Any) -> None:
        """Do nothing: there is no thread to stop."""


def _to(
    module: nn.Module,
    device: torch.device | None = None,
    *,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> nn.Module:
    """Replacement of `Module.to`, which cannot replace tensors by fake ones."""

    def moved(value: Tensor) -> Tensor:
        layout = memory_format if value.dim() == 4 else torch.preserve_format
        return value.detach().to(device or value.device, non_blocking=non_blocking, memory_format=layout)

    for each in module.modules():
        for name, parameter in list(each.named_parameters(recurse=False)):
            each._parameters[name] = nn.Parameter(moved(parameter))
        for name, buffer in list(each.named_buffers(recurse=False)):
            each._buffers[name] = moved(buffer)
    return module


def _backward(loss: Tensor) -> None:
    """Return gradients of all tensors that the loss depends on."""
    seen, ahead = set[Any](), [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaf.grad = torch.empty_like(leaf)
        ahead += [before for before, _ in node.next_functions]


@contextmanager
def pretended_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Context in which this thread sees fake GPUs. Yields how often the host waited for one, keyed by reason."""
    gpus = Gpus()
    pretended = {
        "Event": lambda **_: Event(gpus),
        "Stream": partial(Stream, gpus),
        "CUDAGraph": lambda: Graph(gpus),
        "graph_pool_handle": lambda: gpus,
        "default_stream": gpus.default_stream,
        "current_stream": gpus.current_stream,
        "stream": gpus.stream,
        "set_device": gpus.set_device,
        "get_device_capability": lambda device: (8, 0),
        "get_device_name": lambda device: "pretended",
        "is_bf16_supported": lambda: True,
    }
    with monkeypatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True), Watch(gpus):
        for name, value in pretended.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
        patch.setattr(lane, "ThreadPoolExecutor", partial(_Now, gpus))
        # Fake tensors cannot be sent to another process.
        patch.setattr(pool, "lanes_with_worker", lambda _: [])
        patch.setattr(pool, "useful_workers", lambda *_: 0)
        # The dry run compares numbers, and fake tensors have no address.
        patch.setattr(pool, "check_graphs", lambda *_: None)
        patch.setattr(cuda_graphs, "address_of", lambda tensor: (storage_id(tensor), tensor.storage_offset()))
        patch.setattr(cuda_graphs, "missing_memory", lambda _: 0)
        patch.setattr(nn.Module, "to", _to)
        patch.setattr(torch.autograd, "backward", _backward)
        yield gpus.waits
