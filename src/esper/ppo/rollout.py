"""One round of experience, in buffers that are allocated once.

Shapes: E envs, T steps, F features, S slots, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from esper.domain import HEADS
from esper.policy.masks import Masks
from esper.ranks import ALONE, Ranks


class Sequences(NamedTuple):
    """Whole episodes of some envs: what a minibatch of recurrent PPO is made of."""

    obs_ETF: Tensor
    """Normalised."""
    blueprint_ETS: Tensor
    masks: Masks
    actions_ETH: Tensor
    log_prob_ETH: Tensor
    """By the policy that acted."""
    advantage_ET: Tensor
    """Normalised over the round."""
    return_ET: Tensor
    """Normalised by the value scale."""
    counts_ET: Tensor
    """Bool: the step is part of the experience; false while an env sits out."""


class Rollout:
    """Preallocated [E, T] buffers of a round, on the policy's device but for what comes back from the envs."""

    def __init__(self, envs: int, steps: int, features: int, slots: int, device: torch.device | None = None) -> None:
        self.obs_ETF = torch.zeros(envs, steps, features, device=device)
        self.blueprint_ETS = torch.zeros(envs, steps, slots, dtype=torch.int64, device=device)
        self.masks = Masks(*(mask.to(device) for mask in Masks.empty(envs, steps, slots=slots)))
        self.actions_ETH = torch.zeros(envs, steps, len(HEADS), dtype=torch.int64, device=device)
        self.log_prob_ETH = torch.zeros(envs, steps, len(HEADS), device=device)
        self.value_ET = torch.zeros(envs, steps, device=device)
        """In units of return."""
        # What an env came to is noted on the host, and moved once in a round, when the policy learns from it.
        self.reward_ET = torch.zeros(envs, steps)
        self.terminal_ET = torch.zeros(envs, steps, dtype=torch.bool)
        self.counts_ET = torch.zeros(envs, steps, dtype=torch.bool)

    def clear(self) -> None:
        """Start a round: nothing counts yet."""
        self.counts_ET.zero_()
        self.terminal_ET.zero_()
        self.reward_ET.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """Every buffer by name: what a checkpoint keeps."""
        named = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return named | {f"masks.{name}": value for name, value in self.masks._asdict().items()}

    def minibatches(
        self,
        obs_ETF: Tensor,
        advantage_ET: Tensor,
        return_ET: Tensor,
        count: int,
        generator: torch.Generator,
        ranks: Ranks = ALONE,
    ) -> Iterator[Sequences]:
        """Whole env sequences in a random order, dealt to `count` minibatches whose sizes differ by one at most.

        There are fewer where there are fewer envs.

        They are drawn from the envs of all ranks, the same on each; a rank has its own envs of them, or none.
        """
        envs = int(ranks.sum(torch.tensor(len(self.obs_ETF))))
        counts_ET = self.counts_ET.to(obs_ETF.device)
        for drawn in torch.randperm(envs, generator=generator).tensor_split(min(count, envs)):
            chosen = ranks.places(drawn, envs).to(obs_ETF.device)
            yield Sequences(
                obs_ETF[chosen],
                self.blueprint_ETS[chosen],
                Masks(*(mask[chosen] for mask in self.masks)),
                self.actions_ETH[chosen],
                self.log_prob_ETH[chosen],
                advantage_ET[chosen],
                return_ET[chosen],
                counts_ET[chosen],
            )
