"""The PPO agent: policy network, rollout buffer and learner behind the `Agent` protocol.

Shapes: E envs, T steps, F features, S slots, H heads, O ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from esper.common.configuration.config import PPOConfig
from esper.common.domain import HEADS, Op
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.networks.seeds.site import SlotSite
from esper.training.policy.actions import Action, ChosenAction
from esper.training.policy.agent import EnvStatus, UpdateStats, rows_of, strip_prefix
from esper.training.policy.masks import ActionMasks, write_masks
from esper.training.policy.network import Features, PolicyNetwork
from esper.training.policy.observation import ObservationShape, write_observation
from esper.training.policy.occlusion import Explanation, explain_decision
from esper.training.ppo.learner import PPOLearner
from esper.training.ppo.normaliser import ObservationNormaliser, RunningMeanStd
from esper.training.ppo.rollout import InputStaging, PolicyInputs, RolloutBuffer

CPU = torch.device("cpu")
OPS = tuple(Op)
"""Every op, in the order of the head. To iterate over the enum takes longer."""


class PPOAgent:
    """Decides with the policy network, stores the experience of a round, and trains the network at the end of it.

    Args:
        envs: Number of envs of all ranks.
        rounds: Number of rounds of the run, for the schedules.
        generator: Generator of the initial weights.
        stochastic_heads: Sample every head, as training requires; see `PolicyNetwork.act`. If False, the policy does
            not learn.
        ranks: Ranks that share the envs and train the policy together.
        device: Device of the policy and its experience.
    """

    def __init__(
        self,
        *,
        envs: int,
        steps: int,
        sites: Sequence[SlotSite],
        blueprints: Sequence[str],
        config: PPOConfig,
        rounds: int,
        generator: torch.Generator,
        stochastic_heads: bool = True,
        ranks: RankGroup = SINGLE_RANK,
        device: torch.device = CPU,
    ) -> None:
        self._device = device
        own = ranks.env_range(envs)
        self._ranks, self._first_env, envs = ranks, own.start, len(own)
        shape = ObservationShape(len(sites), len(blueprints))
        self._blueprints = tuple(blueprints)
        self._stochastic_heads = stochastic_heads
        self._terminal_at_limit = config.horizon == "episode"
        self.network = PolicyNetwork(shape, config.hidden)
        self.network.initialise(generator)
        self.network.to(device)
        self.observations = ObservationNormaliser(shape).to(device)
        self.returns = RunningMeanStd(1).to(device)
        self.learner = PPOLearner(self.network, self.returns, config, rounds, ranks)
        self.rollout = RolloutBuffer(envs, steps, shape, device)
        self._staging = InputStaging(envs, shape, device)
        self.hidden = self.network.initial_state(envs)
        self.freezes_observations = False
        """True if `learn` does not update the normaliser of the observations, whose scale a loaded network needs."""
        self._uniform_ETH = torch.empty(0)

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin a round after every env was reset: clear the experience and the LSTM state."""
        self._uniform_ETH = uniforms_ETH.to(self._device)
        self.rollout.clear()
        self.hidden = self.network.initial_state(len(uniforms_ETH))

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Decide for envs in one batched forward pass, with one copy to the policy's device and one back."""
        heads, chosen = len(HEADS), rows_of(views, self._first_env)
        # PyTorch does not annotate `tolist`.
        rows: list[list[float]] = cast("Any", self._decide(step, views, chosen)).tolist()
        legal_EO: list[list[bool]] = cast("Any", self._staging.host.masks.op_EO[chosen]).tolist()
        return [
            ChosenAction(
                action=Action(*map(int, row[:heads])),
                head_probabilities=row[heads : 2 * heads],
                value=row[2 * heads],
                op_probabilities={
                    op: p for op, p, legal in zip(OPS, row[2 * heads + 1 :], legal_O, strict=True) if legal
                },
            )
            for row, legal_O in zip(rows, legal_EO, strict=True)
        ]

    @torch.no_grad()
    def _decide(self, step: int, views: Sequence[EnvStatus], rows: slice) -> Tensor:
        """Decide for envs, and store the inputs and the decisions in their rows of the rollout buffer.

        Returns:
            [E, 2 H + 1 + O] float32 on the policy's device, for E views: actions, their probabilities, value, and
            probability of every op.
        """
        rollout, inputs = self.rollout, self._observe(views, rows)
        rollout.obs_ETF[rows, step] = inputs.obs_EF
        rollout.blueprint_ETS[rows, step] = inputs.blueprint_ES
        for stored, mask in zip(rollout.masks.at_step(step), inputs.masks, strict=True):
            stored[rows] = mask
        features = self._features(inputs, rows)
        actions_EH, probs_EO, evaluation = self.network.act(
            features, inputs.masks, self._uniform_ETH[rows, step], stochastic_heads=self._stochastic_heads
        )
        values_E = self._values(evaluation.value, inputs)
        rollout.actions_ETH[rows, step] = actions_EH
        rollout.log_prob_ETH[rows, step] = evaluation.log_prob_H
        rollout.value_ET[rows, step] = values_E
        rollout.known_ET[rows, step] = inputs.known_E
        chosen_EH = evaluation.log_prob_H.exp()
        return torch.cat((actions_EH.float(), chosen_EH, values_E.unsqueeze(1), probs_EO), dim=1)

    def _observe(self, views: Sequence[EnvStatus], rows: slice) -> PolicyInputs:
        """Return the inputs of the policy for envs, on its device, given their rows."""
        inputs = self._staging.host.rows(rows)
        write_observation(views, inputs.obs_EF, inputs.blueprint_ES, self._blueprints)
        inputs.known_E.numpy()[:] = [view.known_return for view in views]
        write_masks(views, inputs.masks, self._blueprints)
        return self._staging.to_device().rows(rows)

    def _values(self, output_E: Tensor, inputs: PolicyInputs) -> Tensor:
        """Return the values [E] in units of return: the critic's output, which is the unknown part, plus the known."""
        return self.returns.denormalise(output_E) + inputs.known_E

    def record_rewards(
        self, step: int, views: Sequence[EnvStatus], rewards: Sequence[float | None], terminated: Sequence[bool]
    ) -> None:
        """Store the results of a step; see `Agent.record_rewards`."""
        rows = rows_of(views, self._first_env)
        self.rollout.reward_ET[rows, step] = torch.tensor([0.0 if reward is None else reward for reward in rewards])
        self.rollout.valid_ET[rows, step] = torch.tensor([reward is not None for reward in rewards])
        self.rollout.terminal_ET[rows, step] = torch.tensor(terminated)

    @torch.no_grad()
    def _bootstrap(self, views: Sequence[EnvStatus]) -> Tensor:
        """Return the values [E] of the state after the last step; 0 if the end of an episode is terminal.

        A policy that is trained for a fixed horizon must treat its end as terminal; one that acts as if there were no
        time limit must bootstrap V(s_T) (Pardo et al., 2018). The LSTM continues from the state of the last step.
        """
        if self._terminal_at_limit:
            return torch.zeros(len(views), device=self._device)
        rows = slice(len(views))
        inputs = self._observe(views, rows)
        return self._values(self.network.value(self._features(inputs, rows)), inputs)

    def learn(self, views: Sequence[EnvStatus], round_index: int, generator: torch.Generator) -> UpdateStats | None:
        """Train the policy on the round, then update the normaliser of the observations; not if heads are greedy.

        A frozen normaliser stays as it is: features that varied little in the earlier training would soon have another
        scale than the network has learned.
        """
        if not self._stochastic_heads:
            return None
        obs_ETF = self.observations.normalise(self.rollout.obs_ETF)
        stats = self.learner.update(self.rollout, obs_ETF, self._bootstrap(views), round_index, generator)
        if self.freezes_observations:
            return stats
        gather = self._ranks.all_gather_rows
        self.observations.update(gather(self.rollout.obs_ETF)[gather(self.rollout.valid_ET)])
        return stats

    def _features(self, inputs: PolicyInputs, rows: slice) -> Features:
        """Return the features for the heads, and advance the LSTM state of these rows."""
        obs_E1F = self.observations.normalise(inputs.obs_EF).unsqueeze(1)
        before = self.hidden[0][:, rows], self.hidden[1][:, rows]
        features, after = self.network.encode(obs_E1F, inputs.blueprint_ES.unsqueeze(1), before)
        for state, new in zip(before, after, strict=True):
            state.copy_(new)
        return features.at_step(0)

    def explain(self, row: int, step: int) -> Explanation:
        """Explain a decision of the round in progress; see `ExplainingAgent.explain`."""
        rollout, until = self.rollout, step + 1
        return explain_decision(
            self.network,
            self.observations.normalise(rollout.obs_ETF[row, :until]),
            rollout.blueprint_ETS[row, :until],
            ActionMasks(*(mask[row : row + 1] for mask in rollout.masks.at_step(step))),
            rollout.actions_ETH[row, step],
        )

    def state_tensors(self, ranks: RankGroup = SINGLE_RANK) -> dict[str, Tensor]:
        """Return all tensors of the agent by name, including Adam's moments; see `Agent.state_tensors`."""
        gather = ranks.all_gather_rows
        named = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        named |= {f"observations.{name}": value for name, value in self.observations.state_dict().items()}
        named |= {f"returns.{name}": value for name, value in self.returns.state_dict().items()}
        named |= {f"rollout.{name}": gather(value) for name, value in self.rollout.tensors().items()}
        named |= {
            f"hidden.{name}": gather(value[0]).unsqueeze(0) for name, value in zip("hc", self.hidden, strict=True)
        }
        return named | self._optimizer_tensors()

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the state of the optimizer, keyed by its name in checkpoints."""
        return {
            f"adam.{index}.{name}": value
            for name, values in self.learner.optimizer.state.items()
            for index, value in enumerate(values)
        }

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict: all state of PPO is in tensors."""
        return {}

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        """Load only the network and the normalisers, from a run with any number of envs.

        Args:
            tensors: Result of `state_tensors`.

        Raises:
            KeyError: A tensor is missing.
            RuntimeError: A tensor has another shape.
        """
        self.network.load_state_dict(strip_prefix("network.", tensors))
        self.observations.load_state_dict(strip_prefix("observations.", tensors))
        self.returns.load_state_dict(strip_prefix("returns.", tensors))

    def load_state_dict(self, state: dict[str, Any], tensors: Mapping[str, Tensor], uniforms_ETH: Tensor) -> None:
        """Resume from a checkpoint; see `Agent.load_state_dict`."""
        self._uniform_ETH = uniforms_ETH.to(self._device)
        self.load_policy(tensors)
        for name, value in self.rollout.tensors().items():
            value.copy_(self._ranks.local_rows(tensors[f"rollout.{name}"]))
        h_ED, c_ED = (self._ranks.local_rows(tensors[name][0]) for name in ("hidden.h", "hidden.c"))
        self.hidden = (h_ED.unsqueeze(0).clone().to(self._device), c_ED.unsqueeze(0).clone().to(self._device))
        for name, value in self._optimizer_tensors().items():
            value.copy_(tensors[name])
