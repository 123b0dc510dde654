"""The learning agent: policy network, experience and learner behind the same face as the baselines.

Shapes: E envs, T steps, F features, S slots, H heads, O ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from esper.config import PPOConfig
from esper.domain import HEADS, Op
from esper.policy.actions import Action, Decision
from esper.policy.agent import EnvStatus, UpdateStats, strip_prefix
from esper.policy.masks import write_masks
from esper.policy.network import PolicyNetwork
from esper.policy.observation import observation_size, write_observation
from esper.ppo.learner import PPOLearner
from esper.ppo.rollout import InputStaging, PolicyInputs, RolloutBuffer, RunningMeanStd
from esper.ranks import SINGLE_RANK, RankGroup

CPU = torch.device("cpu")


class PPOAgent:
    """Decides with the policy network, remembers the round, and learns at its end.

    Args:
        envs: number of envs, of all ranks.
        steps: steps of an episode.
        slots: slots of an env.
        blueprints: names of those on offer.
        config: hyperparameters.
        rounds: rounds of the run, for the schedules.
        generator: of the initial weights.
        explores: it draws all its choices from their probabilities, as one that learns has to; else only what to do,
            among what is likely, and how in the most probable way.
        ranks: that share the envs, and learn together.
        device: where the policy runs and its experience is kept.
    """

    def __init__(
        self,
        *,
        envs: int,
        steps: int,
        slots: int,
        blueprints: Sequence[str],
        config: PPOConfig,
        rounds: int,
        generator: torch.Generator,
        explores: bool = True,
        ranks: RankGroup = SINGLE_RANK,
        device: torch.device = CPU,
    ) -> None:
        self._device = device
        self._ranks, envs = ranks, len(ranks.env_range(envs))
        features = observation_size(slots)
        self._blueprints = blueprints
        self._explores = explores
        self._terminal_at_limit = config.horizon == "episode"
        self.network = PolicyNetwork(slots, len(blueprints), config.hidden)
        self.network.initialise(generator)
        self.network.to(device)
        self.observations = RunningMeanStd(features).to(device)
        self.returns = RunningMeanStd(1).to(device)
        self.learner = PPOLearner(self.network, self.returns, config, rounds, ranks)
        self.rollout = RolloutBuffer(envs, steps, features, slots, device)
        self._staging = InputStaging(envs, features, slots, device)
        self.hidden = self.network.initial_state(envs)
        self._uniform_ETH = torch.empty(0)

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Every env was reset: forget the experience and the LSTM state."""
        self._uniform_ETH = uniforms_ETH.to(self._device)
        self.rollout.clear()
        self.hidden = self.network.initial_state(len(uniforms_ETH))

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """One batched forward for all envs: one copy to the policy's device, and one back."""
        heads = len(HEADS)
        rows = self._decide(step, views).tolist()
        legal_EO = self._staging.host.masks.op_EO.tolist()
        return [
            Decision(
                action=Action(*map(int, row[:heads])),
                head_probabilities=row[heads : 2 * heads],
                value=row[2 * heads],
                op_probabilities={op: row[2 * heads + 1 + op] for op in Op if legal[op]},
            )
            for row, legal in zip(rows, legal_EO, strict=True)
        ]

    @torch.no_grad()
    def _decide(self, step: int, views: Sequence[EnvStatus]) -> Tensor:
        """Actions, their probabilities, value, and probability of every op, for each env.

        Returns:
            [E, 2 H + 1 + O] float32 on the policy's device.
        """
        rollout, now = self.rollout, self._observe(views)
        rollout.obs_ETF[:, step] = now.obs_EF
        rollout.blueprint_ETS[:, step] = now.blueprint_ES
        for kept, mask in zip(rollout.masks.at_step(step), now.masks, strict=True):
            kept.copy_(mask)
        features_ED = self._features(now)
        actions_EH, probs_EO, evaluation = self.network.act(
            features_ED, now.masks, self._uniform_ETH[:, step], explores=self._explores
        )
        values_E = self.returns.denormalise(evaluation.value)
        rollout.actions_ETH[:, step] = actions_EH
        rollout.log_prob_ETH[:, step] = evaluation.log_prob_H
        rollout.value_ET[:, step] = values_E
        chosen_EH = evaluation.log_prob_H.exp()
        return torch.cat((actions_EH.float(), chosen_EH, values_E.unsqueeze(1), probs_EO), dim=1)

    def _observe(self, views: Sequence[EnvStatus]) -> PolicyInputs:
        here = self._staging.host
        write_observation(views, here.obs_EF, here.blueprint_ES, self._blueprints)
        write_masks(views, here.masks)
        return self._staging.to_device()

    def record_rewards(self, step: int, rewards: Sequence[float | None], ended: Sequence[bool]) -> None:
        """Take in the rewards of a step, None for an env that sat it out, and whether an episode ended with it."""
        self.rollout.reward_ET[:, step] = torch.tensor([0.0 if reward is None else reward for reward in rewards])
        self.rollout.counts_ET[:, step] = torch.tensor([reward is not None for reward in rewards])
        self.rollout.terminal_ET[:, step] = torch.tensor(ended)

    @torch.no_grad()
    def _bootstrap(self, views: Sequence[EnvStatus]) -> Tensor:
        """Value of the state after the last step, [E]: 0 where the episode's end is the end.

        An agent that sees the limit coming is to treat it as terminal; one that is to act as if there were none must
        bootstrap V(s_T) (Pardo et al., 2018). The LSTM goes on from the last step's state.
        """
        if self._terminal_at_limit:
            return torch.zeros(len(views), device=self._device)
        return self.returns.denormalise(self.network.value(self._features(self._observe(views))))

    def learn(self, views: Sequence[EnvStatus], round_index: int, generator: torch.Generator) -> UpdateStats:
        """Update the policy from the round, then let the normalisers take its observations in."""
        obs_ETF = self.observations.normalise(self.rollout.obs_ETF)
        learned = self.learner.update(self.rollout, obs_ETF, self._bootstrap(views), round_index, generator)
        everyones = self._ranks.all_gather_rows
        self.observations.update(everyones(self.rollout.obs_ETF)[everyones(self.rollout.counts_ET)])
        return learned

    def _features(self, now: PolicyInputs) -> Tensor:
        normalised = self.observations.normalise(now.obs_EF)
        features, self.hidden = self.network.encode(normalised.unsqueeze(1), now.blueprint_ES.unsqueeze(1), self.hidden)
        return features.squeeze(1)

    def state_tensors(self, ranks: RankGroup = SINGLE_RANK) -> dict[str, Tensor]:
        """Everything that a checkpoint keeps, by name, for the envs of these ranks; the moments of Adam included."""
        everyones = ranks.all_gather_rows
        named = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        named |= {f"observations.{name}": value for name, value in self.observations.state_dict().items()}
        named |= {f"returns.{name}": value for name, value in self.returns.state_dict().items()}
        named |= {f"rollout.{name}": everyones(value) for name, value in self.rollout.tensors().items()}
        named |= {
            f"hidden.{name}": everyones(value[0]).unsqueeze(0) for name, value in zip("hc", self.hidden, strict=True)
        }
        for index, moments in self.learner.optimizer.state_dict()["state"].items():
            named |= {f"adam.{index}.{name}": value for name, value in moments.items()}
        return named

    def state_dict(self) -> dict[str, Any]:
        """Nothing: all that PPO keeps is tensors."""
        return {}

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the network and the normalisers of what `tensors` gave, for any number of envs.

        Raises:
            KeyError: a tensor is missing.
            RuntimeError: a tensor has another shape.
        """
        self.network.load_state_dict(strip_prefix("network.", tensors))
        self.observations.load_state_dict(strip_prefix("observations.", tensors))
        self.returns.load_state_dict(strip_prefix("returns.", tensors))

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Take over what `tensors` gave.

        Raises:
            KeyError: a tensor is missing.
            RuntimeError: a tensor has another shape.
        """
        self._uniform_ETH = uniforms_ETH.to(self._device)
        self.load_policy(tensors)
        for name, value in self.rollout.tensors().items():
            value.copy_(self._ranks.local_rows(tensors[f"rollout.{name}"]))
        h_ED, c_ED = (self._ranks.local_rows(tensors[name][0]) for name in ("hidden.h", "hidden.c"))
        self.hidden = (h_ED.unsqueeze(0).clone().to(self._device), c_ED.unsqueeze(0).clone().to(self._device))
        adam = self.learner.optimizer.state_dict()
        adam["state"] = {}
        for name, value in strip_prefix("adam.", tensors).items():
            index, _, moment = name.partition(".")
            adam["state"].setdefault(int(index), {})[moment] = value.clone()
        self.learner.optimizer.load_state_dict(adam)
