"""Mixed precision: autocast and loss scaling.

bfloat16 has float32's range and needs no scaling. float16 does: gradients below 6e-8 vanish, so the loss is multiplied
by a scale before the backward pass; where a gradient overflows, the step is skipped and the scale halved (Micikevicius
et al., 2018). Whose scale it is, is a choice:

    env     One scale for each env (the default). An overflow costs the env that had it one step, and nobody else.
            The scales may drift apart; that is measured, shown, and an anomaly above a threshold.
    device  One scale for all envs of a lane: they train at one scale, and every overflow halves it for all. It doubles
            after 2,000 clean batches of whichever of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn


def resolve_amp(amp: str, device: torch.device) -> torch.dtype | None:
    """The dtype of autocast on a device; None for float32. `auto` is bfloat16 where the hardware is fast at it."""
    if amp == "auto":
        fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if fast else None
    return {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}[amp]


class LossScaler:
    """A scale for the losses of one scope, and the skips that keep its envs whole.

    A skip is atomic: if the gradient of any owner (host or seed) of an env is not finite, none of its optimizers steps,
    so that host and seeds never learn at different effective rates. The decision stays on the device: the fused
    optimizers read it there.

    Args:
        device: of the scope.
    """

    def __init__(self, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        self._fresh = self._scaler.state_dict()
        self._one = torch.ones((), device=device)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        return self._scaler.scale(loss)

    def unscale_grads_(self, parameters: Sequence[nn.Parameter]) -> None:
        """Divide their gradients by the scale, in place. Once for each minibatch of an env."""
        # All that GradScaler asks of an optimizer.
        owner = SimpleNamespace(param_groups=[{"params": parameters}])
        self._scaler.unscale_(cast("torch.optim.Optimizer", owner))

    def update(self, norm_O: Tensor) -> Tensor:
        """Let the scale grow or fall. Once for each minibatch of an env.

        Args:
            norm_O: of the unscaled gradient of each owner.

        Returns:
            1 if none of them may step, else 0: scalar on the device, where fused optimizers look at it.
        """
        self._scaler.update()
        return (~norm_O.isfinite()).any().float()

    def current(self) -> Tensor:
        """The scale, as a scalar on the device: reading it costs no synchronisation."""
        return self._scaler.scale(self._one)

    def set_scale(self, scale: Tensor) -> None:
        """Scale by this from now on, a scalar on the device."""
        self._scaler.update(scale)

    def growth_tracker(self) -> Tensor:
        """Clean batches since the scale last changed, as a scalar on the device; asked for after the scale."""
        tracker = self._scaler._growth_tracker  # its public twin waits for the device
        assert tracker is not None  # built with the scale
        return tracker

    def reset(self) -> None:
        """Be as it was built."""
        self.load_state_dict(self._fresh)

    @property
    def growth_interval(self) -> int:
        """Clean batches after which the scale doubles."""
        return self._scaler.get_growth_interval()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: scale and growth tracker among it."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._scaler.load_state_dict(state)


def make_scaler_factory(amp: str, scope: str, device: torch.device) -> Callable[[], LossScaler | None]:
    """What gives each env of a lane its scaler.

    Args:
        amp: precision of the run.
        scope: whose a scale is, env or device.
        device: of the lane.

    Returns:
        A function that is called once for each env. It returns None unless autocast there is to float16.
    """
    if resolve_amp(amp, device) is not torch.float16:
        return lambda: None
    if scope == "env":
        return lambda: LossScaler(device)
    shared = LossScaler(device)
    return lambda: shared


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Autocast to `dtype`; nothing for None. Its cache of cast weights ends with it, so no forward poisons another."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
