"""The PPO update: several epochs of clipped policy gradient over a round of whole episodes.

Shapes: E envs, T steps, H heads, M minibatch updates.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from esper.common.configuration.config import PPOConfig
from esper.common.domain import HEADS
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.networks.tasks.optimizers import AdamW
from esper.training.envs.fused_ops import foreach_norm, l2_norm
from esper.training.envs.optimizer import FusedAdamW
from esper.training.policy.agent import UpdateStats
from esper.training.policy.network import PolicyNetwork
from esper.training.ppo.advantages import gae, healthy_mask, normalise_advantages, subtract_host_effect
from esper.training.ppo.loss import PPOLoss, all_reduce_gradients, ppo_loss
from esper.training.ppo.normaliser import RunningMeanStd
from esper.training.ppo.rollout import RolloutBuffer, SequenceBatch

FINAL_POLICY_LR_FRACTION = 0.1
"""Learning rate of the last round, as a fraction of the initial rate."""


class PPOLearner:
    """Trains the policy network with Adam, in float32 regardless of the hosts' precision.

    Args:
        returns: Normaliser of the unknown part of the returns, which the critic learns.
        rounds: Number of rounds of the run, for the linear schedules.
        ranks: Ranks that train the policy together, each on the experience of its own envs.
    """

    def __init__(
        self,
        network: PolicyNetwork,
        returns: RunningMeanStd,
        config: PPOConfig,
        rounds: int,
        ranks: RankGroup = SINGLE_RANK,
    ) -> None:
        self.ranks = ranks
        self.network = network
        self.returns = returns
        self.config = config
        self.rounds = rounds
        spec = AdamW(config.learning_rate, eps=1e-5, weight_decay=0.0)
        self.optimizer = FusedAdamW(list(network.parameters()), spec, config.max_grad_norm)
        starts = {id(parameter): index for index, parameter in enumerate(self.optimizer.parameters)}
        heads = [list(network.heads[name].parameters()) for name in HEADS]
        self._head_parameters = [slice(starts[id(head[0])], starts[id(head[-1])] + 1) for head in heads]
        """Range of the parameters of each head."""

    def update(
        self, rollout: RolloutBuffer, obs_ETF: Tensor, bootstrap_E: Tensor, round_index: int, generator: torch.Generator
    ) -> UpdateStats:
        """Train the network on a round, and update the scale of the values.

        Epochs end early once the mean KL divergence of an epoch exceeds `target_kl`.

        Args:
            rollout: Complete experience of the round.
            obs_ETF: Its observations, normalised as they were when the policy acted.
            bootstrap_E: Values V(s_T), in units of return.
            round_index: Index of the round, from 0, for the schedules.
            generator: Generator of the order of the minibatches.
        """
        config = self.config
        progress = round_index / max(self.rounds - 1, 1)
        self.optimizer.lr_scale = 1.0 - (1.0 - FINAL_POLICY_LR_FRACTION) * progress
        entropy_coef = config.entropy_coef * (1.0 - progress)
        device = rollout.value_ET.device
        reward_ET, terminal_ET = rollout.reward_ET.to(device), rollout.terminal_ET.to(device)
        advantage_ET = gae(reward_ET, rollout.value_ET, bootstrap_E, terminal_ET, config.gamma, config.gae_lambda)
        return_ET = advantage_ET + rollout.value_ET
        gather = self.ranks.all_gather_rows
        valid_ET = gather(rollout.valid_ET.to(device))
        followed_ET = rollout.value_ET + gae(reward_ET, rollout.value_ET, bootstrap_E, terminal_ET, config.gamma, 1.0)
        explained = _explained_variances(gather(rollout.value_ET), gather(followed_ET), valid_ET)
        unknown_ET = return_ET - rollout.known_ET
        self.returns.update(gather(unknown_ET)[valid_ET].unsqueeze(-1))
        target_ET = (unknown_ET - self.returns.mean) / self.returns.std
        broke_down_ET = gather(terminal_ET)
        healthy_ET = healthy_mask(valid_ET, broke_down_ET)
        advantage_ET = subtract_host_effect(gather(advantage_ET), healthy_ET, config.envs_per_host)
        advantage_ET = self.ranks.local_rows(normalise_advantages(advantage_ET, healthy_ET, broke_down_ET))

        whole = rollout.batch(obs_ETF, advantage_ET, target_ET)
        updates: list[_MinibatchStats] = []
        kl, epochs = 0.0, 0
        while epochs < config.epochs and kl <= config.target_kl:
            batches = whole.minibatches(config.minibatches, generator, self.ranks)
            steps = [self._step(batch, entropy_coef) for batch in batches]
            updates += steps
            epochs += 1
            kl = float(torch.stack([step.loss.kl for step in steps]).mean())
        return self._summarise(updates, kl, explained, stopped_early=epochs < config.epochs)

    def evaluate(self, batch: SequenceBatch, entropy_coef: float) -> PPOLoss:
        """Return the loss of a minibatch of whole episodes."""
        with torch.autocast(batch.obs_ETF.device.type, enabled=False):
            features, _ = self.network.encode(
                batch.obs_ETF, batch.blueprint_ETS, self.network.initial_state(len(batch.obs_ETF))
            )
            evaluation = self.network.evaluate(features, batch.actions_ETH, batch.legal_ETHA, batch.rows)
            return ppo_loss(
                evaluation,
                batch,
                clip=self.config.clip,
                value_coef=self.config.value_coef,
                entropy_coef=entropy_coef,
            )

    def _step(self, batch: SequenceBatch, entropy_coef: float) -> _MinibatchStats:
        loss = self.evaluate(batch, entropy_coef)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss.total)
        grads = self.optimizer.gradients()
        loss = all_reduce_gradients(loss, batch.valid_ET.sum(), grads.values, self.ranks)
        norms = self._norms(grads.values)
        with torch.no_grad():
            self.optimizer.step(grads, norms[-1], None)
        return _MinibatchStats(loss, norms)

    def _norms(self, grads: list[Tensor]) -> Tensor:
        """Return the gradient norms [H + 1] of each head and of the whole network, from one pass over the gradients."""
        norms = torch.stack(foreach_norm(grads))
        parts = [*(norms[parameters] for parameters in self._head_parameters), norms]
        return torch.stack([l2_norm(part) for part in parts])

    def _summarise(
        self, updates: list[_MinibatchStats], kl: float, explained: Tensor, *, stopped_early: bool
    ) -> UpdateStats:
        """Average the statistics over the minibatches, with one copy to the host.

        Args:
            kl: Mean KL divergence of the last epoch.
            explained: [2] explained variance, pooled and within each step.
        """
        losses = [update.loss for update in updates]
        scalars = torch.stack([torch.stack((x.policy, x.value, x.entropy, x.clip_fraction)) for x in losses]).mean(0)
        choices_MH = torch.stack([loss.num_choices_H for loss in losses])
        entropy_H = torch.stack([loss.entropy_sum_H for loss in losses]).sum(0) / choices_MH.sum(0)
        # Minibatches in which a head had no choice do not count for it; a head that never had a choice gives 0/0.
        norms = torch.stack([update.norms for update in updates])
        norm_H = torch.where(choices_MH > 0, norms[:, :-1], 0.0).sum(0) / (choices_MH > 0).sum(0)
        parts = (scalars, norm_H, entropy_H, choices_MH.sum(0), norms[:, -1].mean(0, keepdim=True), explained)
        sizes = [part.numel() for part in parts]
        flat = torch.cat([part.double() for part in parts]).cpu()
        means, norms_H, entropies_H, choices_H, grad_norm, variances = (
            cast("list[float]", cast("Any", part).tolist()) for part in torch.split(flat, sizes)
        )
        return UpdateStats(
            policy_loss=means[0],
            value_loss=means[1],
            entropy=means[2],
            clip_fraction=means[3],
            kl=kl,
            explained_variance=None if math.isinf(variances[0]) else variances[0],
            within_step_explained_variance=None if math.isinf(variances[1]) else variances[1],
            grad_norm=grad_norm[0],
            learning_rate=self.optimizer.learning_rate * self.optimizer.lr_scale,
            minibatches=len(updates),
            stopped_early=stopped_early,
            head_grad_norms={name: norms_H[i] if choices_H[i] > 0 else None for i, name in enumerate(HEADS)},
            head_entropies={name: entropies_H[i] if choices_H[i] > 0 else None for i, name in enumerate(HEADS)},
        )


class _MinibatchStats(NamedTuple):
    """Statistics of one minibatch update."""

    loss: PPOLoss
    norms: Tensor
    """[H + 1] gradient norms of each head and of the whole network."""


def explained_variance(value_ET: Tensor, return_ET: Tensor, valid_ET: Tensor) -> Tensor:
    """Return 1 − var(return − value) / var(return) over the valid steps, a scalar; −inf if the returns do not vary."""
    returns = return_ET[valid_ET]
    variance = returns.var(unbiased=False)
    residual = (returns - value_ET[valid_ET]).var(unbiased=False)
    return torch.where(variance > 1e-12, 1 - residual / variance, -torch.inf)


def subtract_step_means(values_ET: Tensor, valid_ET: Tensor) -> Tensor:
    """Return the values [E, T] minus the mean of the valid values of their step.

    The explained variance of the results is that within a step, across envs. Pooled over an episode, it is close to 1
    as soon as the critic knows the time, although decisions need the differences between envs.
    """
    mean_T = torch.where(valid_ET, values_ET, 0.0).sum(0) / valid_ET.sum(0).clamp(min=1)
    return values_ET - mean_T


def _explained_variances(value_ET: Tensor, return_ET: Tensor, valid_ET: Tensor) -> Tensor:
    """Return the explained variance [2], pooled and within each step.

    Args:
        return_ET: Rewards that followed, with λ = 1. The targets of the critic contain its own values instead.
    """
    centred_value_ET = subtract_step_means(value_ET, valid_ET)
    centred_return_ET = subtract_step_means(return_ET, valid_ET)
    return torch.stack(
        (
            explained_variance(value_ET, return_ET, valid_ET),
            explained_variance(centred_value_ET, centred_return_ET, valid_ET),
        )
    )
