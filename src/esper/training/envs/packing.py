"""Packing: the tensors of a module and of its optimizer as views of a few flat tensors, the blocks.

So all weights, buffers and momenta of a module are saved, restored or sent to a worker process by one copy per block
instead of one per tensor, which took ten times as long. Parameters stay the same objects, and tensors keep their
strides; only their memory is elsewhere.
"""

# `_cdata` has no public equivalent: `data_ptr` is 0 for all empty tensors, and an error for fake ones.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from esper.networks.seeds.tensors import module_tensors
from esper.networks.tasks.optimizers import AnyOptimizer
from esper.training.envs.optimizer import ModuleOptimizer
from esper.training.envs.task_optimizer import join_optimizers, make_optimizer

_ALIGNMENT_BYTES = 64
"""Alignment of every tensor in a block: that of PyTorch's CPU memory, on which vectorised kernels rely."""


class _WatchedBuffer(NamedTuple):
    """A buffer of a module, which the forward pass may replace by another tensor."""

    owner: dict[str, Tensor | None]
    """Buffers of the submodule by name."""
    name: str
    tensor: Tensor
    view: Tensor
    """Its place in a block."""

    @property
    def is_replaced(self) -> bool:
        """True after `self.name = …` or `self.name.data = …` in the module."""
        moved = self.tensor.storage_offset() != self.view.storage_offset()
        return self.owner.get(self.name) is not self.tensor or bool(moved)


class PackedModule:
    """A host, a seed or a blend gate with its optimizer, packed in blocks.

    A tensor that shares its memory with another one of the module, such as the flattened weights of an RNN on a GPU,
    stays where it is; the whole shared memory is then a block.

    Args:
        module: Module whose buffers may be replaced by its forward pass.
        find_tensors: Returns the parameters and buffers to pack.
        optimizer: Optimizer of the parameters.

    Attributes:
        blocks: Flat tensors that contain all tensors. Read them after `refresh`.
    """

    def __init__(
        self, module: nn.Module, find_tensors: Callable[[], Iterable[Tensor]], optimizer: ModuleOptimizer
    ) -> None:
        self.optimizer = optimizer
        self.blocks: list[Tensor] = []
        self._module = module
        self._find_tensors = find_tensors
        self._pack()

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedModule:
        """Return a packed copy. A copied parameter is no view of the copied block."""
        return PackedModule(*copy.deepcopy((self._module, self._find_tensors, self.optimizer), memo))

    def refresh(self) -> None:
        """Move tensors into the blocks that the module has put in the place of its buffers, or has added to them."""
        if any(len(owner) != count for owner, count in self._buffer_counts):
            self._pack()
            return
        for index, buffer in enumerate(self._watched):
            if buffer.is_replaced:
                found, view = buffer.owner.get(buffer.name), buffer.view
                if found is None or not _is_alike(found, view):
                    self._pack()
                    return
                _move([found], [view])
                self._watched[index] = buffer._replace(tensor=found)

    def _pack(self) -> None:
        """Move all tensors into blocks that are not in one yet, and forget the blocks that no tensor uses any more."""
        tensors = [*self._find_tensors(), *(value for values in self.optimizer.state.values() for value in values)]
        known, shared = set(map(storage_id, self.blocks)), _shared_storages(self._module)
        movable: dict[torch.dtype, list[Tensor]] = {}
        fixed: dict[int, Tensor] = {}
        for tensor in tensors:
            storage = storage_id(tensor)
            if storage in shared - known or not _is_dense(tensor):
                fixed[storage] = tensor
            elif storage not in known:
                movable.setdefault(tensor.dtype, []).append(tensor)
        self.blocks += [_pack_together(same_dtype) for same_dtype in movable.values()]
        self.blocks += [_whole_storage(tensor) for storage, tensor in fixed.items() if storage not in known]
        used = set(map(storage_id, tensors))
        self.blocks = [block for block in self.blocks if storage_id(block) in used]
        packed = set(map(id, tensors))
        owners = [submodule._buffers for submodule in self._module.modules()]
        self._buffer_counts = [(owner, len(owner)) for owner in owners]
        self._watched = [
            _WatchedBuffer(owner, name, tensor, tensor.detach())
            for owner in owners
            for name, tensor in owner.items()
            if tensor is not None and id(tensor) in packed
        ]


class PackedModules:
    """The hosts, seeds and blend gates of an env, packed with their optimizers.

    All are kept, also removed seeds, so that the tensors of a module have the same addresses for the life of the env:
    CUDA graphs read them.
    """

    def __init__(self) -> None:
        self._packed: dict[nn.Module, PackedModule] = {}
        self._joint: dict[tuple[nn.Module, ...], ModuleOptimizer] = {}
        """Optimizers of seeds together with their blend gates."""

    def add(self, module: nn.Module, find_tensors: Callable[[], Iterable[Tensor]], optimizer: ModuleOptimizer) -> None:
        """Pack a module with its optimizer, as `PackedModule` describes."""
        self._packed[module] = PackedModule(module, find_tensors, optimizer)

    def optimizer(self, module: nn.Module) -> ModuleOptimizer:
        """Return the optimizer of a packed module."""
        return self._packed[module].optimizer

    def blocks(self, *modules: nn.Module) -> list[Tensor]:
        """Return the blocks of packed modules."""
        found: list[Tensor] = []
        for module in modules:
            packed = self._packed[module]
            packed.refresh()
            found += packed.blocks
        return found

    def update_optimizer(
        self,
        current: ModuleOptimizer | None,
        planted: tuple[nn.Module, ...],
        spec: AnyOptimizer,
        clip: float | None,
    ) -> ModuleOptimizer:
        """Return the optimizer of a seed, or of a seed and its blend gate.

        Args:
            current: Optimizer of the slot so far. The modules that it does not train start without momenta.
            clip: Maximum norm of all gradients of a seed and its blend gate together; None: they are not clipped.
        """
        optimizer = self._find_optimizer(planted, spec, clip)
        if optimizer is not current:
            trained = set(current.parameters) if current else set[nn.Parameter]()
            for module in planted:
                own = self.optimizer(module)
                if trained.isdisjoint(own.parameters):
                    own.reset_state()
        return optimizer

    def _find_optimizer(
        self, planted: tuple[nn.Module, ...], spec: AnyOptimizer, clip: float | None
    ) -> ModuleOptimizer:
        for module in planted:
            if module not in self._packed:
                optimizer = make_optimizer(spec, list(module.named_parameters()), clip)
                self.add(module, partial(module_tensors, module), optimizer)
        if len(planted) == 1:
            return self.optimizer(planted[0])
        if planted not in self._joint:
            parts = [self.optimizer(module) for module in planted]
            self._joint[planted] = join_optimizers(spec, parts, clip)
        return self._joint[planted]


def storage_id(tensor: Tensor) -> int:
    """Return a number that identifies the memory of a tensor: equal for a block and the tensors in it."""
    return tensor.untyped_storage()._cdata


def view_in(block: Tensor, tensor: Tensor) -> Tensor:
    """Return the view of a block, or of a copy of it, with the offset, shape and strides of `tensor` in its block."""
    flat = block if block.dtype is tensor.dtype else block.view(tensor.dtype)
    return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _pack_together(tensors: Sequence[Tensor]) -> Tensor:
    """Move tensors of one dtype into a new block, and return it."""
    step = _ALIGNMENT_BYTES // tensors[0].element_size()
    # The first tensor does not lie at 0 either, so that a tensor at 0 is not one that was packed.
    offsets, end = list[int](), step
    for tensor in tensors:
        offsets.append(end)
        end += -(-tensor.numel() // step) * step
    block = tensors[0].new_zeros(end)
    places = zip(tensors, offsets, strict=True)
    _move(tensors, [block.as_strided(tensor.size(), tensor.stride(), offset) for tensor, offset in places])
    return block


@torch.no_grad()
def _move(tensors: Sequence[Tensor], views: Sequence[Tensor]) -> None:
    """Copy tensors to views, and let them use the memory of the views from now on."""
    for tensor, view in zip(tensors, views, strict=True):
        view.copy_(tensor)
        tensor.data = view


def _whole_storage(tensor: Tensor) -> Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def _shared_storages(module: nn.Module) -> set[int]:
    """Return the storages that several tensors of a module use, those in plain attributes included."""
    found: dict[int, Tensor] = {id(tensor): tensor for tensor in module_tensors(module)}
    for submodule in module.modules():
        found |= {id(value): value for value in vars(submodule).values() if isinstance(value, Tensor)}
    return {storage for storage, uses in Counter(map(storage_id, found.values())).items() if uses > 1}


def _is_alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def _is_dense(tensor: Tensor) -> bool:
    """Return True if the elements fill the memory between the first and the last without overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size != 1 and stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True
