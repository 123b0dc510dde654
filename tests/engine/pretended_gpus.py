"""GPUs that are not there: tensors of PyTorch's fake mode, which know their device and hold no numbers.

What they show is what reading the code for a GPU would: that nothing is computed across devices, and when the host
waits. What is read from them is one half, or one; a backward pass, which would ask for a driver, leaves gradients
without numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from esper.engine import lanes

READ = torch.ops.aten._local_scalar_dense.default
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype_layout}


class Event:
    """Waited for only after it was recorded."""

    def __init__(self, waits: Counter[str]) -> None:
        self._waits, self._recorded = waits, False

    def record(self) -> None:
        self._recorded = True

    def synchronize(self) -> None:
        assert self._recorded
        self._waits["event"] += 1

    def elapsed_time(self, after: Event) -> float:
        assert self._recorded
        assert after._recorded
        return 1.0


class Watch(TorchDispatchMode):
    """Counts what makes the host wait for a device; lets a fused update pass that has no fake twin."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {**(kwargs or {})}
        if func is READ:
            self._waits["read"] += args[0].device.type == "cuda"
            return 0.5 if args[0].is_floating_point() else 1
        if func is torch.ops.aten._fused_sgd_.default:
            return _check_fused(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        result = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        if len({tensor.device for tensor in tensors}) > 1:
            assert func in COPIES, f"{func} across devices"
            self._waits["copy"] += not (kwargs.get("non_blocking") or args[2:3] == (True,))
        return result


def _check_fused(*args: Any, grad_scale: Tensor, found_inf: Tensor | None = None, **_: Any) -> None:
    """As PyTorch's kernel for CUDA checks what it is given."""
    for twins in zip(*args, strict=True):
        assert len({(each.device, each.dtype, each.shape, each.stride()) for each in twins}) == 1
    for scalar in (grad_scale, found_inf):
        assert scalar is None or (scalar.device, scalar.dtype) == (args[0][0].device, torch.float32)


class _Now:
    """An executor whose work is done by who submits it: fake mode is a matter of one thread."""

    def __init__(self, *, initializer: Callable[[], None], **_: Any) -> None:
        initializer()

    def submit(self, work: Callable[..., Any], *args: Any) -> Any:
        done = work(*args)
        return SimpleNamespace(result=lambda: done)

    def shutdown(self, **_: Any) -> None:
        """There is nothing to end."""


def _to(
    module: nn.Module,
    device: torch.device | None = None,
    *,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> nn.Module:
    """`Module.to`, which cannot put fake tensors in the place of others."""

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
    """Gradients of all that the loss depends on."""
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
    """In which there are GPUs, for whatever runs in this thread; how often the host waited for one, by its reason."""
    waits: Counter[str] = Counter()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    pretended = {
        "Event": lambda **_: Event(waits),
        "Stream": lambda device: stream,
        "default_stream": lambda device: stream,
        "stream": lambda stream: nullcontext(),
        "set_device": lambda device: None,
        "get_device_capability": lambda device: (8, 0),
        "is_bf16_supported": lambda: True,
    }
    with monkeypatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True), Watch(waits):
        for name, value in pretended.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
        patch.setattr(lanes, "ThreadPoolExecutor", _Now)
        patch.setattr(nn.Module, "to", _to)
        patch.setattr(Tensor, "backward", _backward)
        yield waits
