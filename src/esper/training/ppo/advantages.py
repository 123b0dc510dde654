"""Advantages: generalised advantage estimation (Schulman et al., 2016), minus the effect that envs of a host share.

Shapes: E envs, T steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMOOTHING_STEPS = 5
"""Number of steps, odd, over which the weight of the host effect is averaged."""
MAX_ABS_ADVANTAGE = 5.0
"""Limit of normalised advantages, in standard deviations."""
MIN_STD = 1e-5
"""Minimum divisor of the normalisation, in units of return; smaller standard deviations are rounding errors."""


def gae(
    rewards_ET: Tensor, values_ET: Tensor, bootstrap_E: Tensor, terminal_ET: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Return the advantages [E, T]: A_t = Σ_k (γλ)^k δ_{t+k}, with δ_t = r_t + γ·V_{t+1} − V_t.

    The end of an episode is a truncation: V_T is `bootstrap_E`, the value of the state after the last step. The next
    value of a terminal step is 0, and no advantage flows back over it.

    Args:
        rewards_ET: Rewards, float32.
        values_ET: Values V(s_t), in units of return.
        bootstrap_E: Values V(s_T), in units of return.
        terminal_ET: True for terminal steps.
        gamma: Discount factor γ.
        gae_lambda: Decay λ.
    """
    alive_ET = (~terminal_ET).to(rewards_ET.dtype)
    next_values_ET = torch.cat((values_ET[:, 1:], bootstrap_E.unsqueeze(-1)), dim=1)
    deltas_ET = rewards_ET + gamma * next_values_ET * alive_ET - values_ET
    decay_ET = gamma * gae_lambda * alive_ET
    running_E, advantages = torch.zeros_like(bootstrap_E), list[Tensor]()
    for delta_E, decay_E in reversed(list(zip(deltas_ET.unbind(1), decay_ET.unbind(1), strict=True))):
        running_E = delta_E + decay_E * running_E
        advantages.append(running_E)
    return torch.stack(advantages[::-1], dim=1)


def healthy_mask(valid_ET: Tensor, terminal_ET: Tensor) -> Tensor:
    """Return the mask [E, T] of the steps that set mean and scale of the advantages.

    These are the valid steps of envs that did not break down, or all valid steps if every env did. A breakdown is
    usually bad luck, and costs fifty times as much as one decision gains over another. If breakdowns were part of the
    standard deviation, the normalised advantages of all other decisions of the round would be close to 0.

    Args:
        valid_ET: True for steps in which the env was active.
        terminal_ET: True for the steps in which an env broke down.
    """
    healthy_ET = valid_ET & ~terminal_ET.any(dim=1, keepdim=True)
    return torch.where(healthy_ET.any(), healthy_ET, valid_ET)


def subtract_host_effect(advantage_ET: Tensor, valid_ET: Tensor, envs_per_host: int) -> Tensor:
    """Return the advantages [E, T] minus the effect that the envs of one host share, such as an easy data order.

    Envs of one host differ only by their decisions (common random numbers). The mean advantage of the other envs of the
    host in the same step does not depend on the env's own decision, and is therefore a control variate (Glasserman &
    Yao, 1992; as a baseline: Kool et al., 2019). It is subtracted with the weight that minimises the variance: close to
    1 in the first steps of an episode, and lower as the envs diverge.

    Args:
        advantage_ET: Advantages of all envs, in order; the first `envs_per_host` envs have the first host, and so on.
        valid_ET: True for steps to compare. Other steps are not used and not changed.
        envs_per_host: Number of envs per host; with 1, nothing is changed.
    """
    env_E = torch.arange(len(advantage_ET), device=advantage_ET.device)
    host_E = env_E // envs_per_host
    others_EE = ((host_E[:, None] == host_E) & (env_E[:, None] != env_E)).to(advantage_ET.dtype)
    centred_ET = (advantage_ET - advantage_ET[valid_ET].mean()).where(valid_ET, 0.0)
    effect_ET = (others_EE @ centred_ET) / (others_EE @ valid_ET.to(centred_ET.dtype)).clamp(min=1)
    effect_ET = effect_ET.where(valid_ET, 0.0)
    covariance_T = _moving_average((centred_ET * effect_ET).sum(0))
    variance_T = _moving_average(effect_ET.square().sum(0))
    weight_T = (covariance_T / variance_T.clamp(min=torch.finfo(variance_T.dtype).tiny)).clamp(0, 1)
    return advantage_ET - weight_T * effect_ET


def normalise_advantages(advantage_ET: Tensor, healthy_ET: Tensor, terminal_ET: Tensor) -> Tensor:
    """Return the advantages [E, T] in standard deviations from the mean, limited to ±`MAX_ABS_ADVANTAGE`.

    The advantages of an env that broke down are scaled down together, so that its last decisions still count more than
    its first. All others are clamped.

    Args:
        healthy_ET: Mask of the steps that set mean and standard deviation; see `healthy_mask`.
        terminal_ET: True for the steps in which an env broke down.
    """
    reference = advantage_ET[healthy_ET]
    scaled_ET = (advantage_ET - reference.mean()) / reference.std(unbiased=False).clamp(min=MIN_STD)
    of_breakdown_E = scaled_ET.abs().where(terminal_ET, 0.0).amax(dim=1).clamp(min=MAX_ABS_ADVANTAGE)
    scaled_ET = scaled_ET * (MAX_ABS_ADVANTAGE / of_breakdown_E).unsqueeze(1)
    return scaled_ET.clamp(-MAX_ABS_ADVANTAGE, MAX_ABS_ADVANTAGE)


def _moving_average(values_T: Tensor) -> Tensor:
    """Average each value [T] with those of the steps around it."""
    return F.avg_pool1d(
        values_T[None], SMOOTHING_STEPS, stride=1, padding=SMOOTHING_STEPS // 2, count_include_pad=False
    )[0]
