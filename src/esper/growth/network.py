"""Host and GrowingNetwork: a base network with injection points, and the network of a host and its slots.

Shapes: B samples, V configurations (all seeds on, then each ablated slot off), C channels, H × W pixels, K classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from esper.formatting import suggest
from esper.growth.layers import initialise_
from esper.growth.lifecycle import GateConfig
from esper.growth.slot import Slot


class InjectionPoint(NamedTuple):
    """A named point of a host where a seed can grow."""

    name: str
    channels: int
    after_segment: int
    """Index of the segment whose output the seed receives and is blended into."""


class Host(nn.Module):
    """A base network: segments that run in order, then a head, with injection points after segments."""

    def __init__(
        self, segments: Sequence[nn.Module], head: nn.Module, injection_points: Sequence[InjectionPoint]
    ) -> None:
        super().__init__()
        self.segments = nn.ModuleList(segments)
        self.head = head
        self.injection_points = tuple(sorted(injection_points, key=lambda injection: injection.after_segment))


class GrowingNetwork(nn.Module):
    """A host with slots at some or all of its injection points.

    Args:
        host: Base network.
        slots: Names of the injection points to use, in any order.
        gates: Thresholds of every slot.

    Raises:
        ValueError: A name is unknown or given twice.
    """

    def __init__(self, host: Host, slots: Sequence[str], gates: GateConfig) -> None:
        super().__init__()
        _check_names(slots, [injection.name for injection in host.injection_points])
        self.host = host
        used = [injection for injection in host.injection_points if injection.name in slots]
        self.slots = tuple(Slot(injection.name, injection.channels, gates) for injection in used)
        """Slots in the order of the forward pass."""
        for slot in self.slots:
            self.add_module(f"slot_{slot.name}", slot)
        self._slots_after = [
            tuple(i for i, injection in enumerate(used) if injection.after_segment == segment)
            for segment in range(len(host.segments))
        ]
        self.host_parameter_count = sum(parameter.numel() for parameter in host.parameters())
        """Number of parameters of the bare host."""

    def alphas(self) -> list[float]:
        """Return the current alpha of each slot."""
        return [slot.alpha for slot in self.slots]

    def forward(self, x_BCHW: Tensor, alphas: Sequence[float]) -> Tensor:
        """Map pictures [B, C, H, W] to logits [B, K], with each slot's seed blended in at its alpha."""
        h = x_BCHW
        for segment, indices in zip(self.host.segments, self._slots_after, strict=True):
            h = segment(h)
            for i in indices:
                h = self.slots[i](h, alphas[i])
        return self.host.head(h)

    def forward_ablations(self, x_BCHW: Tensor, alphas: Sequence[float], ablate: Sequence[int]) -> Tensor:
        """Return the logits [V, B, K]: first with all seeds on, then with each slot in `ablate` switched off.

        The segments before the first ablated slot are computed once. Each ablation branches off at its slot from the
        activations with all seeds on, and is part of the batch from there.

        Args:
            x_BCHW: Input pictures.
            alphas: Alpha of each slot.
            ablate: Indices of the slots to ablate, ascending.

        Raises:
            ValueError: `ablate` is not ascending.
            RuntimeError: The network is in training mode, in which batch norm would mix the configurations.
        """
        self._check_counterfactual(ablate)
        samples = len(x_BCHW)
        h = x_BCHW
        for segment, indices in zip(self.host.segments, self._slots_after, strict=True):
            h = segment(h)
            for i in indices:
                without = h[:samples]
                h = self.slots[i](h, alphas[i])
                if i in ablate:
                    h = torch.cat((h, without))
        logits = self.host.head(h)
        return logits.view(1 + len(ablate), samples, -1)

    def forward_subsets(self, x_BCHW: Tensor, alphas: Sequence[float], slots: Sequence[int]) -> Tensor:
        """Return the logits [2^n, B, K] for every subset of `slots` switched off.

        Bit k of the subset's index is set if `slots[k]` is off. The batch doubles at each of these slots, so that the
        segments before it are computed once for both halves.

        Args:
            x_BCHW: Input pictures.
            alphas: Alpha of each slot.
            slots: Indices of n slots, ascending.

        Raises:
            ValueError: `slots` is not ascending.
            RuntimeError: The network is in training mode, in which batch norm would mix the subsets.
        """
        self._check_counterfactual(slots)
        h = x_BCHW
        for segment, indices in zip(self.host.segments, self._slots_after, strict=True):
            h = segment(h)
            for i in indices:
                without, h = h, self.slots[i](h, alphas[i])
                if i in slots:
                    h = torch.cat((h, without))
        logits = self.host.head(h)
        return logits.view(2 ** len(slots), len(x_BCHW), -1)

    def _check_counterfactual(self, slots: Sequence[int]) -> None:
        if self.training:
            raise RuntimeError("counterfactuals require evaluation mode; call eval() first")
        if any(a >= b for a, b in itertools.pairwise(slots)):
            raise ValueError(f"slots to switch off must be in ascending order without repetition, got {list(slots)}")

    def reset(self, generator: torch.Generator) -> None:
        """Empty all slots and initialise the host's parameters from `generator`, in place."""
        for slot in self.slots:
            slot.reset()
        initialise_(self.host, generator)

    def host_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the bare host."""
        return list(self.host.parameters())

    def slot_parameters(self, index: int) -> list[nn.Parameter]:
        """Return the parameters of a slot's seed and blend gate; empty without a seed."""
        return list(self.slots[index].parameters())

    @property
    def parameter_ratio(self) -> float:
        """Number of parameters of host and seeds, divided by that of the bare host."""
        seeds = sum(slot.parameter_count for slot in self.slots)
        return (self.host_parameter_count + seeds) / self.host_parameter_count


def _check_names(slots: Sequence[str], known: Sequence[str]) -> None:
    for name in slots:
        if name not in known:
            raise ValueError(f"the host has no slot {name!r}: {suggest(name, known)}")
    if len(set(slots)) != len(slots):
        raise ValueError(f"slot names must be unique, got {', '.join(slots)}")
