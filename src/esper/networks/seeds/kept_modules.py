"""KeptModules: the seeds and the blend gate of a slot, kept after their removal and planted again in place."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from esper.networks.seeds.blend import BlendGate
from esper.networks.seeds.blueprints import build_seed, reinitialise_seed_
from esper.networks.seeds.layers import initialise_
from esper.networks.seeds.site import SlotSite

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class KeptModules:
    """One seed for each blueprint that was ever planted in a slot, and one blend gate.

    A removed seed is kept, so that its parameters have the same addresses when its blueprint is planted again: CUDA
    graphs read them. This is no `nn.Module`, so kept modules are not among the parameters of the slot, and a copy of
    the slot contains only the planted ones.

    Attributes:
        device: Device of the modules.
        memory_format: Memory format of the modules, for pictures.
    """

    def __init__(self, site: SlotSite) -> None:
        self._site = site
        self._seeds: dict[str, nn.Module] = {}
        self._gate: BlendGate | None = None
        self.device = torch.device("cpu")
        self.memory_format = torch.channels_last

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how `copy` and `pickle` rebuild the object: without modules."""
        return KeptModules, (self._site,), {"device": self.device, "memory_format": self.memory_format}

    def __len__(self) -> int:
        """Return the number of kept modules."""
        return len(self._seeds) + (self._gate is not None)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The kept modules, planted or not."""
        return (*self._seeds.values(), *(() if self._gate is None else (self._gate,)))

    def move(self, device: torch.device, memory_format: torch.memory_format) -> None:
        """Set the device and memory format of modules built from now on. The modules built so far are released."""
        self.device, self.memory_format = device, memory_format
        self._seeds.clear()
        self._gate = None

    def get_seed(self, blueprint: str, generator: torch.Generator | None, *, training: bool) -> nn.Module:
        """Return the seed of a blueprint, in training or evaluation mode.

        Args:
            generator: CPU generator of the initial values. None if the caller overwrites all values.
        """
        site, kept = self._site, self._seeds.get(blueprint)
        if kept is None:
            generator = generator or torch.Generator()
            built = build_seed(blueprint, site.layout, site.channels, site.is_causal, generator)
            kept = self._seeds[blueprint] = self._place(built)
        elif generator is not None:
            reinitialise_seed_(kept, blueprint, site.layout, site.channels, site.is_causal, generator)
        return _set_mode(kept, training)

    def get_gate(self, random_seed: int, *, training: bool) -> BlendGate:
        """Return the blend gate with its initial values, in training or evaluation mode."""
        if self._gate is None:
            self._gate = self._place(BlendGate(self._site.channels, self._site.layout.canonical))
        initialise_(self._gate, torch.Generator().manual_seed(random_seed))
        return _set_mode(self._gate, training)

    def _place(self, module: ModuleT) -> ModuleT:
        return module.to(self.device, non_blocking=True).to(memory_format=self.memory_format)


def _set_mode(module: ModuleT, training: bool) -> ModuleT:
    """Set training or evaluation mode. The submodules always have the mode of the module itself."""
    return module if module.training is training else module.train(training)
