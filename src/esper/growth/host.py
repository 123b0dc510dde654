"""Hosts, which declare where seeds can be injected, and the network of a host and its slots.

Shapes: B samples, V configurations (every seed on, then each of some off), C channels, H × W pixels, K classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.growth.gates import GateConfig
from esper.growth.initialise import initialise
from esper.growth.layers import BatchNorm, convolution, halved, pixel_mean
from esper.growth.slot import Slot
from esper.nearest import nearest

_BATCH_NORM_MOMENTUM = 0.5
"""An epoch may be no more than 8 batches: with PyTorch's 0.1 the running statistics lag behind the weights, and the
validation accuracy of a sound network jumps by tens of points."""


Pooled = Literal["conv", "norm"]
"""Which layer of a block sees the picture halved first."""


class Injection(NamedTuple):
    """A point of a host where a seed may grow."""

    name: str
    channels: int
    after_segment: int
    """The seed sees, and is blended into, the output of this segment."""


class Host(nn.Module):
    """A base network: segments that run in order, then a head; injection points between them."""

    def __init__(self, segments: Sequence[nn.Module], head: nn.Module, injections: Sequence[Injection]) -> None:
        super().__init__()
        self.segments = nn.ModuleList(segments)
        self.head = head
        self.injections = tuple(sorted(injections, key=lambda injection: injection.after_segment))


class ConvBlock(nn.Module):
    """Convolution, batch norm, ReLU; in front of one of the first two, if asked, a 2×2 max pool."""

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int, pool_before: Pooled | None) -> None:
        super().__init__()
        self.pool_before = pool_before
        self.conv = convolution(channels_in, channels_out, kernel_size)
        self.norm = BatchNorm(channels_out, momentum=_BATCH_NORM_MOMENTUM)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """From [B, C_in, H, W] to [B, C_out, H, W], halved if pooled."""
        if self.pool_before == "conv":
            x_BCHW = halved(x_BCHW)
        h_BCHW = self.conv(x_BCHW)
        if self.pool_before == "norm":
            h_BCHW = halved(h_BCHW)
        return F.relu(self.norm(h_BCHW), inplace=True)


class PooledLinear(nn.Module):
    """Mean over the pixels, then a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits [B, K]."""
        return self.linear(pixel_mean(x_BCHW))


class ConvHost(Host):
    """Convolution blocks with a slot after each.

    Args:
        in_channels: of the pictures.
        widths: channels of each block.
        kernel_size: of every convolution, odd.
        pools: how often the picture is halved.
        pool_before: where. "conv": by the blocks from the second, before their convolution, so that the seed of the
            block before sees every pixel; for small pictures. "norm": by the blocks from the first, between convolution
            and norm, so that norm, ReLU and seed have a quarter of the pixels to compute (as Page, 2019, "How to train
            your ResNet", and Jordan, 2024, "94% on CIFAR-10 in 3.29 seconds").
        classes: outputs.
        slots: names, one to a block.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        widths: Sequence[int],
        kernel_size: int,
        pools: int,
        pool_before: Pooled,
        classes: int,
        slots: Sequence[str] = ("early", "mid", "late"),
    ) -> None:
        if len(slots) != len(widths):
            raise ValueError(f"a host of {len(widths)} blocks needs as many slot names, not {len(slots)}")
        inputs = (in_channels, *widths[:-1])
        first = 1 if pool_before == "conv" else 0
        blocks = [
            ConvBlock(channels_in, channels_out, kernel_size, pool_before if first <= i < first + pools else None)
            for i, (channels_in, channels_out) in enumerate(zip(inputs, widths, strict=True))
        ]
        injections = [Injection(name, width, i) for i, (name, width) in enumerate(zip(slots, widths, strict=True))]
        super().__init__(blocks, PooledLinear(widths[-1], classes), injections)


class GrowingNetwork(nn.Module):
    """A host with slots at some or all of its injection points.

    Args:
        host: the base network.
        slots: names of the injection points to use, in any order.
        gates: thresholds for all of them.

    Raises:
        ValueError: the host has no injection point of a name.
    """

    def __init__(self, host: Host, slots: Sequence[str], gates: GateConfig) -> None:
        super().__init__()
        _check_names(slots, [injection.name for injection in host.injections])
        self.host = host
        used = [injection for injection in host.injections if injection.name in slots]
        self.slots = tuple(Slot(injection.name, injection.channels, gates) for injection in used)
        """In the order of the forward pass."""
        for slot in self.slots:
            self.add_module(f"slot_{slot.name}", slot)
        self._slots_after = [
            tuple(i for i, injection in enumerate(used) if injection.after_segment == segment)
            for segment in range(len(host.segments))
        ]
        self.host_parameter_count = sum(parameter.numel() for parameter in host.parameters())
        """Of the bare host."""

    def alphas(self) -> list[float]:
        """For each slot, its alpha as its schedule has it."""
        return [slot.alpha for slot in self.slots]

    def forward(self, x_BCHW: Tensor, alphas: Sequence[float]) -> Tensor:
        """Logits [B, K] with each slot's seed blended in at its alpha."""
        h = x_BCHW
        for segment, indices in zip(self.host.segments, self._slots_after, strict=True):
            h = segment(h)
            for i in indices:
                h = self.slots[i](h, alphas[i])
        return self.host.head(h)

    def forward_ablations(self, x_BCHW: Tensor, alphas: Sequence[float], ablate: Sequence[int]) -> Tensor:
        """Logits [V, B, K]: first with every seed on, then with each slot in `ablate` (ascending) off.

        What lies before the first ablated slot is computed once. At its slot, each ablation branches off from the
        activations with every seed on, and shares the batch from there.

        Raises:
            ValueError: `ablate` is not ascending.
            RuntimeError: the network is in training mode, in which batch norm would mix the configurations.
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
        """Logits [2^n, B, K] of every subset of `slots` (ascending): bit k of the index is set where `slots[k]` is off.

        The batch doubles at each of these slots, so that what lies before it is computed once for both halves.

        Raises:
            ValueError: `slots` is not ascending.
            RuntimeError: the network is in training mode, in which batch norm would mix the subsets.
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
            raise RuntimeError("counterfactuals are measured in evaluation mode: call eval() first")
        if any(a >= b for a, b in itertools.pairwise(slots)):
            raise ValueError(f"slots to switch off must ascend, without repetition; got {list(slots)}")

    def reset(self, generator: torch.Generator) -> None:
        """A fresh host with empty slots, in place."""
        for slot in self.slots:
            slot.reset()
        initialise(self.host, generator)

    def host_parameters(self) -> list[nn.Parameter]:
        """Parameters of the bare host."""
        return list(self.host.parameters())

    def slot_parameters(self, index: int) -> list[nn.Parameter]:
        """Parameters of a slot's seed and of its gate; empty without a seed."""
        return list(self.slots[index].parameters())

    @property
    def parameter_ratio(self) -> float:
        """Parameters of host and seeds, the permanent ones too, over those of the bare host."""
        seeds = sum(slot.parameter_count for slot in self.slots)
        return (self.host_parameter_count + seeds) / self.host_parameter_count


def _check_names(slots: Sequence[str], known: Sequence[str]) -> None:
    for name in slots:
        if name not in known:
            raise ValueError(f"the host has no slot {name!r}: {nearest(name, known)}")
    if len(set(slots)) != len(slots):
        raise ValueError(f"a slot is named twice: {', '.join(slots)}")
