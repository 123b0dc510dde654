"""Precision of training: float32, TF32, autocast and loss scaling.

By default, cuDNN computes float32 convolutions on a GPU in TF32, which has 10 bits of mantissa.

bfloat16 has float32's range and needs no scaling. float16 does: gradients below 6e-8 vanish, so the loss is multiplied
by a scale before the backward pass; if a gradient overflows, the step is skipped and the scale is halved (Micikevicius
et al., 2018). The option `--scaler` selects the scope of a scale:

    env     One scale for each env (the default). An overflow skips one step of that env and affects no other env.
            The scales of the envs may drift apart; telemetry reports this, and a rule limits it.
    device  One scale for all envs of a lane. An overflow in any of them halves the scale for all of them; 2,000 clean
            batches in a row, of any of them, double it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn


def resolve_amp(amp: str, device: torch.device, *, float32_defaults: bool) -> torch.dtype | None:
    """Return the dtype of autocast on a device; None without autocast.

    Args:
        amp: `off`, `tf32`, `bf16`, `fp16`, or `auto`: bfloat16 on GPUs that are fast at it, else float32.
        float32_defaults: True for a task whose defaults were tuned in float32: `auto` is float32 on every device, so
            that a run on a GPU learns as one on a CPU does.
    """
    if amp == "auto":
        return torch.bfloat16 if is_fast_in_bf16(device) and not float32_defaults else None
    return {"off": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[amp]


def is_fast_in_bf16(device: torch.device) -> bool:
    """Return True for GPUs of compute capability 8.0 or higher."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def set_float32_precision(amp: str) -> None:
    """Make this process compute float32 products on a GPU in float32, or in TF32 if `amp` is `tf32`."""
    precision = "tf32" if amp == "tf32" else "ieee"
    backends: Any = torch.backends  # whose types lack the newer attributes
    # torch refuses to read the older flags if they differ from the newer ones, and other libraries read them.
    backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = amp == "tf32"
    backends.cudnn.conv.fp32_precision = precision
    backends.cudnn.rnn.fp32_precision = precision
    backends.cuda.matmul.fp32_precision = precision


class LossScaler:
    """Loss scale of one scope, and the decision to skip a step after an overflow.

    A skip is atomic: if the gradient of any owner (host or seed) of an env is not finite, none of the env's optimizers
    steps, so that host and seeds never train at different effective rates. The decision stays on the device, where the
    fused optimizers read it.
    """

    def __init__(self, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        self._fresh = self._scaler.state_dict()
        self._one = torch.ones((), device=device)
        self.current()  # creates scale and growth tracker: not in a CUDA graph, whose replays would reset them

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        return self._scaler.scale(loss)

    def unscale_grads_(self, parameters: Sequence[nn.Parameter]) -> None:
        """Divide the gradients of these parameters by the scale, in place. Called once per batch of an env."""
        # A batch that failed halfway may have left its state behind, for an object of the same id.
        vars(self._scaler)["_per_optimizer_states"].clear()
        # GradScaler uses only this attribute of an optimizer.
        optimizer = SimpleNamespace(param_groups=[{"params": parameters}])
        self._scaler.unscale_(cast("torch.optim.Optimizer", optimizer))

    def update(self, norm_O: Tensor) -> Tensor:
        """Adjust the scale after a batch, and decide whether its step is skipped. Called once per batch of an env.

        Args:
            norm_O: Norm of the unscaled gradient of each owner.

        Returns:
            1.0 if the step must be skipped, else 0.0: a scalar on the device, where the fused optimizers read it.
        """
        self._scaler.update()
        return (~norm_O.isfinite()).any().float()

    def current(self) -> Tensor:
        """Return the scale as a scalar on the device, without a synchronisation."""
        return self._scaler.scale(self._one)

    def set_scale(self, scale: Tensor) -> None:
        """Set the scale, a scalar on the device."""
        self._scaler.update(scale)

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the state, which are changed in place."""
        return [vars(self._scaler)["_scale"], self.growth_tracker()]

    def growth_tracker(self) -> Tensor:
        """Return the number of clean batches since the scale last changed, as a scalar on the device."""
        # The public equivalent, in `state_dict`, synchronises the device.
        tracker: Tensor = vars(self._scaler)["_growth_tracker"]
        return tracker

    def reset(self) -> None:
        """Restore the initial scale and growth tracker."""
        self.load_state_dict(self._fresh)

    @property
    def growth_interval(self) -> int:
        """Number of clean batches after which the scale doubles."""
        return self._scaler.get_growth_interval()

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, the growth tracker and the settings, as JSON-compatible values."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._scaler.load_state_dict(state)


def make_scaler_factory(amp: str, scope: str, device: torch.device) -> Callable[[], LossScaler | None]:
    """Return a function that creates or returns the scaler of an env.

    Args:
        amp: Precision of the run, as for `resolve_amp`.
        scope: `env` for one scaler per env, `device` for one shared by all envs of a lane.

    Returns:
        A function to be called once for each env of the lane. It returns None unless autocast uses float16.
    """
    if amp != "fp16":
        return lambda: None
    if scope == "env":
        return lambda: LossScaler(device)
    shared = LossScaler(device)
    return lambda: shared


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context with autocast to `dtype`, or without autocast if it is None.

    The cache of cast weights is cleared when the context ends, so that no forward pass reuses weights of another.
    """
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
