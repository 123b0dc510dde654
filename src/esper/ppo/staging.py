"""What a policy is told before a decision, and the one copy that takes it to the policy's device.

Shapes: E envs, F features, S slots.
"""

from __future__ import annotations

import math

import torch

from esper.policy.masks import Masks


class Situation:
    """Observations and masks of one step: views of a single buffer of bytes, so that one copy moves them all.

    Args:
        envs: number of envs.
        features: of an observation.
        slots: of an env.
        device: where the buffer is.
        pinned: whether a GPU may copy from it while the host goes on.
    """

    def __init__(self, envs: int, features: int, slots: int, device: torch.device, *, pinned: bool = False) -> None:
        shapes = [(envs, slots), (envs, features), *(tuple(mask.shape) for mask in Masks.empty(envs, slots=slots))]
        dtypes = [torch.int64, torch.float32, *[torch.bool] * (len(shapes) - 2)]  # the widest first: views are aligned
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        self._bytes = torch.zeros(sum(sizes), dtype=torch.uint8, device=device, pin_memory=pinned)
        parts = zip(self._bytes.split(sizes), dtypes, shapes, strict=True)
        self.blueprint_ES, self.obs_EF, *masks = (part.view(dtype).view(shape) for part, dtype, shape in parts)
        self.masks = Masks(*masks)

    def copy_(self, other: Situation) -> None:
        """Become another one of the same shape, on the current stream."""
        self._bytes.copy_(other._bytes, non_blocking=True)


class Staging:
    """A situation on the host, to be filled in, and its twin on the policy's device; on a CPU they are one.

    Args:
        envs: number of envs.
        features: of an observation.
        slots: of an env.
        device: of the policy.
    """

    def __init__(self, envs: int, features: int, slots: int, device: torch.device) -> None:
        self.here = Situation(envs, features, slots, torch.device("cpu"), pinned=device.type == "cuda")
        self._there = self.here if device.type == "cpu" else Situation(envs, features, slots, device)

    def move(self) -> Situation:
        """What was filled in, on the policy's device. It is valid until the next time."""
        if self._there is not self.here:
            self._there.copy_(self.here)
        return self._there
