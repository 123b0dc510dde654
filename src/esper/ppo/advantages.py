"""Generalised advantage estimation (Schulman et al., 2016).

Shapes: E envs, T steps.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards_ET: Tensor, values_ET: Tensor, bootstrap_E: Tensor, terminal_ET: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """A_t = Σ_k (γλ)^k δ_{t+k}, with δ_t = r_t + γ·V_{t+1} − V_t.

    The end of an episode is a truncation: V_T is `bootstrap_E`, the value of the state after the last step. After a
    terminal step there is nothing: its next value is 0 and no advantage flows back over it.

    Args:
        rewards_ET: float32.
        values_ET: V(s_t), in units of return.
        bootstrap_E: V(s_T).
        terminal_ET: bool.
        gamma: discount.
        gae_lambda: λ.

    Returns:
        [E, T].
    """
    alive_ET = (~terminal_ET).to(rewards_ET.dtype)
    next_values_ET = torch.cat((values_ET[:, 1:], bootstrap_E.unsqueeze(-1)), dim=1)
    deltas_ET = rewards_ET + gamma * next_values_ET * alive_ET - values_ET
    advantages_ET = torch.empty_like(deltas_ET)
    running_E = torch.zeros_like(bootstrap_E)
    for step in reversed(range(rewards_ET.shape[1])):
        running_E = deltas_ET[:, step] + gamma * gae_lambda * alive_ET[:, step] * running_E
        advantages_ET[:, step] = running_E
    return advantages_ET
