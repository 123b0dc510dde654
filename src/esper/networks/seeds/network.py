"""GrowingNetwork: any host module with slots at the outputs of some of its submodules.

A slot is a forward hook on a submodule: it receives the submodule's output, blends its seed into it, and returns it in
the output's place. The hooks are methods of the network, so that a deep copy of the network uses its own seeds.

Shapes: B samples, V variants of the network with different seeds switched off.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from esper.networks.seeds.blend import Alpha
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.masks import read_mask
from esper.networks.seeds.outputs import Nested, first_tensor, replace_first_tensor, split_variants
from esper.networks.seeds.site import SlotSite
from esper.networks.seeds.slot import Slot


@dataclass
class _ForwardPass:
    """The arguments of the forward pass in progress, which the hooks read."""

    alphas: Sequence[Alpha]
    extend_at: Collection[int] = ()
    """Slots at which the batch is extended by the rows without the slot's seed."""
    samples: int | None = None
    """Number of rows to copy at such a slot: those with all seeds on. None: all rows, so that the batch doubles."""
    inputs: Nested = None
    """Inputs of the host, if a slot has a mask."""


class GrowingNetwork(nn.Module):
    """A host with slots.

    Args:
        host: Base network. It is called with the input, or with the items of an input mapping as keyword arguments.
        sites: Places of the slots, in the order of the forward pass.
        shares_prefix: Compute the part of a counterfactual forward pass before a slot once for all variants, by
            extending the batch at the slot. Valid only if no sample of a batch affects another one, and if the host
            does not depend on the number of rows.
        frozen: Modules of the host that stay in evaluation mode.
        bare_parameters: Parameters of the bare host that the network is compared with; None: those of `host`.

    Raises:
        AttributeError: The host has no submodule of this path.
    """

    def __init__(
        self,
        host: nn.Module,
        sites: Sequence[SlotSite],
        gates: GateConfig,
        *,
        shares_prefix: bool = True,
        frozen: Sequence[nn.Module] = (),
        bare_parameters: int | None = None,
    ) -> None:
        super().__init__()
        self.host = host
        self.shares_prefix = shares_prefix
        self.slots = tuple(Slot(site, gates) for site in sites)
        """Slots in the order of the forward pass."""
        for index, slot in enumerate(self.slots):
            self.add_module(f"slot_{slot.name}", slot)
            host.get_submodule(slot.site.module).register_forward_hook(partial(self._grow, index))
        self._frozen = tuple(frozen)
        self._has_mask = any(site.mask for site in sites)
        self._pass: _ForwardPass | None = None
        self.passes = 0
        """Number of forward passes so far, which shows another thread that the network is used."""
        self._own_parameters = sum(parameter.numel() for parameter in host.parameters())
        self.host_parameter_count = bare_parameters or self._own_parameters
        """Number of parameters of the bare host, frozen ones included; that of a wide host is the one at width 1."""

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; frozen modules stay in evaluation mode."""
        super().train(mode)
        for module in self._frozen:
            module.training = False
        return self

    def place(self, device: torch.device, *, channels_last: bool) -> Self:
        """Move the network, and all seeds planted later, to a device and memory format."""
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        for slot in self.slots:
            slot.kept.move(device, memory_format)
        network = self.to(device)
        return network.to(memory_format=torch.channels_last) if channels_last else network

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the live parameters and buffers by name, without the frozen ones of the host, which is built again.

        Frozen parameters of a seed are included, because they are drawn when the seed germinates. A tensor with several
        names has the first one.
        """
        frozen = {id(buffer) for module in self._frozen for buffer in module.buffers(recurse=False)}
        named = [
            (name, parameter)
            for name, parameter in self.named_parameters()
            if parameter.requires_grad or not name.startswith("host.")
        ]
        named += [pair for pair in self.named_buffers() if id(pair[1]) not in frozen]
        return dict(named)

    def alphas(self) -> list[float]:
        """Return the current alpha of each slot."""
        return [slot.alpha for slot in self.slots]

    def alpha_inputs(self) -> list[Alpha]:
        """Return the current alpha of each slot for a forward pass, as `Slot.alpha_input` describes."""
        return [slot.alpha_input() for slot in self.slots]

    def forward(self, inputs: Nested, alphas: Sequence[Alpha]) -> Nested:
        """Return the output of the host for a batch, with each slot's seed blended in at its alpha."""
        return self._run(inputs, _ForwardPass(alphas))

    def forward_ablations(self, inputs: Nested, alphas: Sequence[Alpha], ablate: Sequence[int]) -> list[Nested]:
        """Return 1 + n outputs: with all seeds on, then with each of the n slots in `ablate` switched off.

        The network must be in evaluation mode, because batch norm would mix the variants of a batch.
        With `shares_prefix`, the part before the first ablated slot is computed once. Each ablation branches off at its
        slot from the activations with all seeds on, and is part of the batch from there.

        Args:
            ablate: Indices of the slots to ablate, ascending.
        """
        if not self.shares_prefix:
            return [self.forward(inputs, _without(alphas, off)) for off in [(), *([index] for index in ablate)]]
        samples = count_samples(inputs)
        output = self._run(inputs, _ForwardPass(alphas, ablate, samples))
        return split_variants(output, 1 + len(ablate), samples)

    def forward_subsets(self, inputs: Nested, alphas: Sequence[Alpha], slots: Sequence[int]) -> list[Nested]:
        """Return 2^n outputs, for every subset of the n `slots` switched off, of a network in evaluation mode.

        Bit k of the subset's index is set if `slots[k]` is off. With `shares_prefix`, the batch doubles at each of
        these slots, so that the part before them is computed once for both halves.

        Args:
            slots: Indices of n slots, ascending.
        """
        variants = 2 ** len(slots)
        if not self.shares_prefix:
            subsets = ([slot for bit, slot in enumerate(slots) if index >> bit & 1] for index in range(variants))
            return [self.forward(inputs, _without(alphas, off)) for off in subsets]
        output = self._run(inputs, _ForwardPass(alphas, slots))
        return split_variants(output, variants, count_samples(inputs))

    def _run(self, inputs: Nested, current: _ForwardPass) -> Nested:
        if self._has_mask:
            current.inputs = inputs
        self._pass = current
        self.passes += 1
        try:
            return call_model(self.host, inputs)
        finally:
            if not self.training:  # a host with gradient checkpointing calls its modules again in the backward pass
                self._pass = None

    def _grow(self, index: int, module: nn.Module, args: object, output: Nested) -> Nested:  # noqa: ARG002 (a hook)
        """Blend the seed of a slot into a submodule's output. The forward hook of slot `index`."""
        current, slot = self._pass, self.slots[index]
        if current is None or (slot.seed is None and index not in current.extend_at):
            return output
        host = first_tensor(output)
        assert host is not None
        axis = slot.site.layout.batch_axis
        mask = read_mask(current.inputs, slot.site.mask)
        if mask is not None and current.extend_at:  # the rows of each variant are those of the inputs
            mask = mask.repeat(host.shape[axis] // len(mask), 1)
        grown = slot(host, current.alphas[index], mask)
        if index in current.extend_at:
            without = host if current.samples is None else host.narrow(axis, 0, current.samples)
            grown = torch.cat((grown, without), dim=axis)
        return output if grown is host else replace_first_tensor(output, grown)

    def host_tensors(self) -> list[Tensor]:
        """Return the tensors of `state_tensors` that belong to the bare host."""
        return [tensor for name, tensor in self.state_tensors().items() if name.startswith("host.")]

    def named_host_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the names and the parameters of the bare host that are trained."""
        return [(name, parameter) for name, parameter in self.host.named_parameters() if parameter.requires_grad]

    def host_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the bare host that are trained."""
        return [parameter for _, parameter in self.named_host_parameters()]

    @property
    def topology(self) -> tuple[Hashable, ...]:
        """Description of each slot. Two states with equal descriptions run the same operations in every epoch."""
        return tuple(slot.topology for slot in self.slots)

    @property
    def parameter_ratio(self) -> float:
        """Number of parameters of host and seeds, divided by that of the bare host."""
        seeds = sum(slot.parameter_count for slot in self.slots)
        return (self._own_parameters + seeds) / self.host_parameter_count

    @property
    def host_ratio(self) -> float:
        """Number of parameters of the host, divided by that of the bare host: above 1 for a wide host."""
        return self._own_parameters / self.host_parameter_count


def call_model(model: nn.Module, inputs: Nested) -> Nested:
    """Call a model with a batch: a tensor, or a mapping of keyword arguments."""
    return model(**cast("Mapping[str, Any]", inputs)) if isinstance(inputs, Mapping) else model(inputs)


def count_samples(inputs: Nested) -> int:
    """Return the number of samples of a batch: a tensor, or a mapping of tensors."""
    first: Tensor = next(iter(cast("Mapping[str, Tensor]", inputs).values())) if isinstance(inputs, Mapping) else inputs
    return len(first)


def _without(alphas: Sequence[Alpha], off: Collection[int]) -> list[Alpha]:
    return [0.0 if index in off else alpha for index, alpha in enumerate(alphas)]
