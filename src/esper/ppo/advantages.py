"""What a decision was worth: generalised advantage estimation (Schulman et al., 2016), less what was luck.

Shapes: E envs, T steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMOOTHING_STEPS = 5
"""Steps, an odd number, over which it is estimated how much luck the envs of one host have in common."""
MAX_ABS_ADVANTAGE = 5.0
"""Standard deviations: no decision is judged better or worse than that."""
MIN_STD = 1e-5
"""Standard deviation, in units of return, below which advantages are the rounding of what they were subtracted from."""


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


def healthy_mask(counts_ET: Tensor, terminal_ET: Tensor) -> Tensor:
    """Bool [E, T]: the experience by which advantages are measured: of envs that did not break down, unless all did.

    A breakdown, most often bad luck, costs fifty times what one decision is worth against another. Measured by a
    deviation with that in it, nothing that the other envs decided in the round would seem to matter.
    """
    sound_ET = counts_ET & ~terminal_ET.any(dim=1, keepdim=True)
    return torch.where(sound_ET.any(), sound_ET, counts_ET)


def subtract_host_effect(advantage_ET: Tensor, counts_ET: Tensor, envs_per_host: int) -> Tensor:
    """Advantages without what the envs of one host have in common: a good host, an easy order of the data.

    Such envs differ by their own decisions alone (common random numbers), so what the others came to in the same step
    is a control variate (Glasserman & Yao, 1992; as a baseline: Kool et al., 2019): it does not depend on what the env
    itself decided. Of it as much is subtracted as leaves the least variance: nearly all in the first steps of an
    episode, and less and less as the envs go apart.

    Args:
        advantage_ET: of all envs, in order; the first `envs_per_host` have the first host, and so on.
        counts_ET: bool: the step is to be compared. Others are neither changed nor looked at.
        envs_per_host: 1: nothing is in common, and nothing is changed.

    Returns:
        [E, T].
    """
    env_E = torch.arange(len(advantage_ET), device=advantage_ET.device)
    host_E = env_E // envs_per_host
    others_EE = ((host_E[:, None] == host_E) & (env_E[:, None] != env_E)).to(advantage_ET.dtype)
    own_ET = (advantage_ET - advantage_ET[counts_ET].mean()).where(counts_ET, 0.0)
    others_ET = (others_EE @ own_ET) / (others_EE @ counts_ET.to(own_ET.dtype)).clamp(min=1)
    others_ET = others_ET.where(counts_ET, 0.0)
    covariance_T, variance_T = _moving_average((own_ET * others_ET).sum(0)), _moving_average(others_ET.square().sum(0))
    share_T = (covariance_T / variance_T.clamp(min=torch.finfo(variance_T.dtype).tiny)).clamp(0, 1)
    return advantage_ET - share_T * others_ET


def normalise_advantages(advantage_ET: Tensor, ordinary_ET: Tensor) -> Tensor:
    """Advantages as standard deviations from the mean of the ordinary ones, within ±`MOST`: [E, T]."""
    measure = advantage_ET[ordinary_ET]
    return ((advantage_ET - measure.mean()) / measure.std(unbiased=False).clamp(min=MIN_STD)).clamp(
        -MAX_ABS_ADVANTAGE, MAX_ABS_ADVANTAGE
    )


def _moving_average(values_T: Tensor) -> Tensor:
    """Means over the steps around each."""
    return F.avg_pool1d(
        values_T[None], SMOOTHING_STEPS, stride=1, padding=SMOOTHING_STEPS // 2, count_include_pad=False
    )[0]
