"""The policy network: features and blueprint embeddings → LSTM → one small head per factor of the action, and V(s).

Shapes: E envs, T steps, S slots, F features, H heads, A actions, D width. Everything is float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from esper.domain import HEADS, Op
from esper.policy.actions import HEADS_BY_OP, head_sizes
from esper.policy.masks import (
    ActionMasks,
    log_prob_of,
    masked_log_probs,
    min_p_filter,
    normalised_entropy,
    sample,
)
from esper.policy.observation import observation_size

EMBEDDING_DIM = 4
"""Size of a blueprint embedding."""
HEAD_HIDDEN_DIM = 64
"""Size of the hidden layer of each head and of the critic."""

LSTMState = tuple[Tensor, Tensor]
"""LSTM state (h, c), each [1, E, D]."""


class ActionEvaluation(NamedTuple):
    """Log-probabilities, entropies and values of given decisions. Leading dimensions are those of the input."""

    log_prob_H: Tensor
    """Log-probability of each head's choice; 0 if the op does not use the head."""
    entropy_H: Tensor
    """Entropy of each head, divided by log(number of legal actions)."""
    has_choice_H: Tensor
    """True if the op uses the head and more than one choice was legal."""
    value: Tensor
    """Value in units of the learner's value scale."""


class PolicyNetwork(nn.Module):
    """Recurrent actor and critic with factored heads.

    The op is chosen first, then the slot given the op, then the other heads given both.

    Args:
        slots: Number of slots of an env.
        blueprints: Number of blueprints that the policy can select.
        hidden: Width of the LSTM.
    """

    def __init__(self, slots: int, blueprints: int, hidden: int) -> None:
        super().__init__()
        self.slots = slots
        self.hidden = hidden
        self.embedding = nn.Embedding(1 + blueprints, EMBEDDING_DIM, padding_idx=0)
        self.encoder = nn.Sequential(
            nn.Linear(observation_size(slots) + slots * EMBEDDING_DIM, hidden), nn.LayerNorm(hidden), nn.ReLU()
        )
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        context = {"op": hidden, "slot": hidden + len(Op)}
        self.heads = nn.ModuleDict(
            {
                name: _mlp(context.get(name, hidden + len(Op) + slots), size)
                for name, size in zip(HEADS, head_sizes(slots, blueprints), strict=True)
            }
        )
        self.critic = _mlp(hidden, 1)
        head_used_OH = torch.tensor([[head in HEADS_BY_OP[op] for head in HEADS] for op in Op])
        self.register_buffer("head_used_OH", head_used_OH, persistent=False)
        self.head_used_OH: Tensor

    def initialise(self, generator: torch.Generator) -> None:
        """Initialise with orthogonal weights, zero biases, and a small gain on the last layer of each policy head."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                nn.init.ones_(parameter) if name == "encoder.1.weight" else nn.init.zeros_(parameter)
            elif name == "embedding.weight":
                nn.init.normal_(parameter, std=0.5, generator=generator)
                with torch.no_grad():
                    parameter[0].zero_()
            else:
                gain = 0.01 if name.startswith("heads.") and name.endswith("2.weight") else 2**0.5
                nn.init.orthogonal_(parameter, gain if "lstm" not in name else 1.0, generator=generator)

    def initial_state(self, envs: int) -> LSTMState:
        """Return the LSTM state at the start of an episode."""
        zeros = torch.zeros(1, envs, self.hidden, device=self.head_used_OH.device)
        return zeros, zeros.clone()

    def encode(self, obs_ETF: Tensor, blueprint_ETS: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Run the encoder and the LSTM.

        Args:
            obs_ETF: Normalised observations.
            blueprint_ETS: Blueprint of each slot, 1 + its index; 0 for an empty slot.
            state: LSTM state before the first step.

        Returns:
            Features [E, T, D], and the LSTM state after the last step.
        """
        embedded = self.embedding(blueprint_ETS).flatten(start_dim=2)
        features_ETD, state = self.lstm(self.encoder(torch.cat((obs_ETF, embedded), dim=-1)), state)
        return features_ETD, state

    def value(self, features_D: Tensor) -> Tensor:
        """Return the values [...], in units of the learner's value scale."""
        return self.critic(features_D).squeeze(-1)

    @torch.no_grad()
    def act(
        self, features_ED: Tensor, masks: ActionMasks, uniform_EH: Tensor, *, stochastic_heads: bool = True
    ) -> tuple[Tensor, Tensor, ActionEvaluation]:
        """Choose an action for every env.

        Args:
            features_ED: Features of one step, from `encode`.
            masks: Masks of legal actions.
            uniform_EH: Uniform random numbers in [0, 1), one for each head.
            stochastic_heads: Sample every head. If False, sample only the op, after `min_p_filter`, and choose the most
                probable action of the other heads. The op is always sampled, because the most probable op is often
                WAIT in every step: if the time of an op does not matter, its probability is low in each step.

        Returns:
            Actions [E, H] int64, probability of every op [E, O] (0 if illegal), and the evaluation of the actions.
        """
        actions_EH = torch.zeros(features_ED.shape[0], len(HEADS), dtype=torch.int64, device=features_ED.device)
        log_probs_EO, _ = self._head(0, features_ED, actions_EH, masks)
        ops_EO = log_probs_EO if stochastic_heads else min_p_filter(log_probs_EO)
        actions_EH[:, 0] = sample(ops_EO, uniform_EH[:, 0])
        for index in range(1, len(HEADS)):
            log_probs_EA, _ = self._head(index, features_ED, actions_EH, masks)
            actions_EH[:, index] = (
                sample(log_probs_EA, uniform_EH[:, index]) if stochastic_heads else log_probs_EA.argmax(dim=-1)
            )
        actions_EH *= self.head_used_OH[actions_EH[:, 0]]
        evaluation = self.evaluate(features_ED, actions_EH, masks)
        return actions_EH, log_probs_EO.exp(), evaluation

    def evaluate(self, features_D: Tensor, actions_H: Tensor, masks: ActionMasks) -> ActionEvaluation:
        """Evaluate given actions.

        Args:
            features_D: Features from `encode`, [E, D] or [E, T, D].
            actions_H: Actions with the same leading dimensions.
            masks: Masks of legal actions with the same leading dimensions.
        """
        log_probs: list[Tensor] = []
        entropies: list[Tensor] = []
        has_choice: list[Tensor] = []
        used_H = self.head_used_OH[actions_H[..., 0]]
        for index in range(len(HEADS)):
            log_probs_A, legal_A = self._head(index, features_D, actions_H, masks)
            used = used_H[..., index]
            action = actions_H[..., index]
            # The choice of an unused head is 0, legal or not: its terms are replaced and not multiplied by 0.
            log_probs.append(torch.where(used, log_prob_of(log_probs_A, action), 0.0))
            entropies.append(torch.where(used, normalised_entropy(log_probs_A, legal_A), 0.0))
            has_choice.append(used & (legal_A.sum(dim=-1) > 1))
        return ActionEvaluation(
            torch.stack(log_probs, dim=-1),
            torch.stack(entropies, dim=-1),
            torch.stack(has_choice, dim=-1),
            self.value(features_D),
        )

    def _head(self, index: int, features_D: Tensor, actions_H: Tensor, masks: ActionMasks) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities [..., A] of one head given the choices before it, and the mask of legal ones."""
        name = HEADS[index]
        op, slot = actions_H[..., 0], actions_H[..., 1]
        inputs = [features_D]
        if index >= 1:
            inputs.append(nn.functional.one_hot(op, len(Op)).float())
        if index >= 2:
            inputs.append(nn.functional.one_hot(slot, self.slots).float())
        logits_A = self.heads[name](torch.cat(inputs, dim=-1))
        if name == "op":
            legal_A = masks.op_EO
        elif name == "slot":
            legal_A = _gather_rows(masks.slot_EOS, op)
        elif name == "blueprint":
            legal_A = _gather_rows(masks.blueprint_ESB, slot)
        elif name == "style":
            legal_A = _gather_rows(masks.style_ESY, slot)
        else:
            legal_A = torch.ones_like(logits_A, dtype=torch.bool)
        return masked_log_probs(logits_A, legal_A), legal_A


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HEAD_HIDDEN_DIM), nn.Tanh(), nn.Linear(HEAD_HIDDEN_DIM, outputs))


def _gather_rows(table_NA: Tensor, index: Tensor) -> Tensor:
    """Return row `index` [...] of each table [..., N, A], as [..., A]."""
    rows = index[..., None, None].expand(*index.shape, 1, table_NA.shape[-1])
    return table_NA.gather(-2, rows).squeeze(-2)
