"""Experience of one round in preallocated buffers, and inputs of the policy.

Shapes: E envs, T steps, F features, S slots, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from esper.common.domain import HEADS
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.training.policy.masks import ActionMasks
from esper.training.policy.network import HeadRows
from esper.training.policy.observation import ObservationShape


class SequenceBatch(NamedTuple):
    """Experience of recurrent PPO: whole episodes of some envs."""

    obs_ETF: Tensor
    """Normalised observations."""
    blueprint_ETS: Tensor
    legal_ETHA: Tensor
    """Legal choices; see `ActionMasks.given`."""
    actions_ETH: Tensor
    log_prob_ETH: Tensor
    """Log-probability of each head's choice under the policy that acted."""
    advantage_ET: Tensor
    """Advantages, normalised over the round."""
    return_ET: Tensor
    """Returns in units of the value scale."""
    valid_ET: Tensor
    """True for steps in which the env was active."""
    rows: HeadRows

    def minibatches(
        self, count: int, generator: torch.Generator, ranks: RankGroup = SINGLE_RANK
    ) -> Iterator[SequenceBatch]:
        """Return minibatches of whole episodes, in a random order of the envs.

        The order covers the envs of all ranks and is the same on every rank; each rank yields its own envs of a
        minibatch, possibly none.

        Args:
            count: Number of minibatches, whose numbers of envs differ by at most one; at most one per env.
        """
        envs = int(ranks.all_reduce_(torch.tensor(len(self.obs_ETF))))
        device, op_ET = self.obs_ETF.device, self.actions_ETH[..., 0].cpu()
        for drawn in torch.randperm(envs, generator=generator).tensor_split(min(count, envs)):
            chosen = ranks.local_indices(drawn, envs)
            rows = _head_rows(op_ET[chosen], device)
            chosen = chosen.to(device)
            yield SequenceBatch._make([*(part.index_select(0, chosen) for part in self[:-1]), rows])


def _head_rows(op_ET: Tensor, device: torch.device) -> HeadRows:
    """Return the rows on a device, given ops on the CPU, so that it does not wait for the device."""
    return HeadRows(*(part.to(device) for part in HeadRows.of(op_ET)))


_CHECKPOINT_NAMES = {"valid_ET": "counts_ET"}
"""Names in checkpoints of the buffers whose attribute has another name."""


class RolloutBuffer:
    """Preallocated [E, T] buffers of a round.

    They are on the policy's device, except rewards and flags, which come from the envs and are on the CPU.
    """

    def __init__(self, envs: int, steps: int, shape: ObservationShape, device: torch.device | None = None) -> None:
        slots, blueprints = shape
        self.obs_ETF = torch.zeros(envs, steps, shape.size, device=device)
        self.blueprint_ETS = torch.zeros(envs, steps, slots, dtype=torch.int64, device=device)
        empty = ActionMasks.empty(envs, steps, slots=slots, blueprints=blueprints)
        self.masks = ActionMasks(*(mask.to(device) for mask in empty))
        self.actions_ETH = torch.zeros(envs, steps, len(HEADS), dtype=torch.int64, device=device)
        self.log_prob_ETH = torch.zeros(envs, steps, len(HEADS), device=device)
        self.value_ET = torch.zeros(envs, steps, device=device)
        """Values in units of return."""
        self.known_ET = torch.zeros(envs, steps, device=device)
        """Known part of the return at each step; see `RewardFunction.known_return`."""
        # Results of envs are written on the CPU, and copied once in a round, when the policy is trained.
        self.reward_ET = torch.zeros(envs, steps)
        self.terminal_ET = torch.zeros(envs, steps, dtype=torch.bool)
        self.valid_ET = torch.zeros(envs, steps, dtype=torch.bool)
        """True for steps in which the env was active."""

    def clear(self) -> None:
        """Start a round: no step is valid yet."""
        self.valid_ET.zero_()
        self.terminal_ET.zero_()
        self.reward_ET.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """Return every buffer, keyed by its name in checkpoints."""
        named = {
            _CHECKPOINT_NAMES.get(name, name): value for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return named | {f"masks.{name}": value for name, value in self.masks._asdict().items()}

    def batch(self, obs_ETF: Tensor, advantage_ET: Tensor, return_ET: Tensor) -> SequenceBatch:
        """Return the round as one batch, with results that were computed from it; see `SequenceBatch`."""
        return SequenceBatch(
            obs_ETF,
            self.blueprint_ETS,
            self.masks.given(self.actions_ETH[..., 0], self.actions_ETH[..., 1]),
            self.actions_ETH,
            self.log_prob_ETH,
            advantage_ET,
            return_ET,
            self.valid_ET.to(obs_ETF.device),
            _head_rows(self.actions_ETH[..., 0].cpu(), obs_ETF.device),
        )


class PolicyInputs(NamedTuple):
    """Observations, known returns and masks of one step."""

    blueprint_ES: Tensor
    obs_EF: Tensor
    known_E: Tensor
    masks: ActionMasks

    def rows(self, rows: slice) -> PolicyInputs:
        """Return views of some rows."""
        masks = ActionMasks(*(mask[rows] for mask in self.masks))
        return PolicyInputs(self.blueprint_ES[rows], self.obs_EF[rows], self.known_E[rows], masks)


class InputBuffer:
    """Policy inputs that are views of one byte buffer, so that one copy transfers all.

    Args:
        pinned: Allocate pinned memory, from which a GPU copies without blocking the host.
    """

    def __init__(self, envs: int, shape: ObservationShape, device: torch.device, *, pinned: bool = False) -> None:
        slots, blueprints = shape
        shapes = [
            (envs, slots),
            (envs, shape.size),
            (envs,),
            *(tuple(mask.shape) for mask in ActionMasks.empty(envs, slots=slots, blueprints=blueprints)),
        ]
        dtypes = [
            torch.int64,
            torch.float32,
            torch.float32,
            *[torch.bool] * (len(shapes) - 3),
        ]  # widest first: aligned views
        num_bytes = [math.prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        self._bytes = torch.zeros(sum(num_bytes), dtype=torch.uint8, device=device, pin_memory=pinned)
        parts = zip(torch.split(self._bytes, num_bytes), dtypes, shapes, strict=True)
        blueprint_ES, obs_EF, known_E, *masks = (part.view(dtype).view(shape) for part, dtype, shape in parts)
        self.inputs = PolicyInputs(blueprint_ES, obs_EF, known_E, ActionMasks(*masks))

    def copy_(self, other: InputBuffer) -> None:
        """Copy the contents of another buffer of the same shape, on the current stream."""
        self._bytes.copy_(other._bytes, non_blocking=True)


class InputStaging:
    """Policy inputs on the CPU, and their copy on the policy's device. For a policy on a CPU, both are the same."""

    def __init__(self, envs: int, shape: ObservationShape, device: torch.device) -> None:
        self._host = InputBuffer(envs, shape, torch.device("cpu"), pinned=device.type == "cuda")
        self._device = self._host if device.type == "cpu" else InputBuffer(envs, shape, device)

    @property
    def host(self) -> PolicyInputs:
        """The inputs on the CPU."""
        return self._host.inputs

    def to_device(self) -> PolicyInputs:
        """Copy `host` to the policy's device and return the copy, which the next call overwrites."""
        if self._device is not self._host:
            self._device.copy_(self._host)
        return self._device.inputs
