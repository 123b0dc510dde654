"""The policy network: a shared encoder of slots → LSTM → one small head per factor of the action, and V(s).

All slots share one encoder. The heads of slot and blueprint compute a score for each candidate from its features, as
pointer networks do (Vinyals et al., 2015). No weight depends on the number of slots or blueprints, so that one policy
fits every host, and a change of their order changes nothing else.

Shapes: E envs, T steps, S slots, B blueprints, F features, K properties of a blueprint, H heads, A actions, D width,
U width of a slot. Everything is float32.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from esper.domain import HEADS, HEADS_BY_OP, Op
from esper.policy.actions import head_sizes
from esper.policy.masks import (
    ActionMasks,
    exploration_bonus,
    log_prob_of,
    masked_log_probs,
    min_p_filter,
    normalised_entropy,
    sample,
)
from esper.policy.observation import BASE_FEATURES, BLUEPRINT_FEATURES, SLOT_FEATURES, ObservationShape

SLOT_WIDTH = 64
"""Width of the encoding of a slot."""
HEAD_HIDDEN_DIM = 64
"""Size of the hidden layer of each head and of the critic."""
FORGET_BIAS = 1.0
"""Initial bias of the forget gates."""
WAIT_LOGIT = 3.0
"""Logit of WAIT in the prior of the op; all other ops have 0, so that each is a twentieth as probable as WAIT.

A uniform prior fills every slot: a slot stays empty only if each of many steps chooses to wait.
"""

LSTMState = tuple[Tensor, Tensor]
"""LSTM state (h, c), each [1, E, D]."""


class ActionEvaluation(NamedTuple):
    """Log-probabilities, entropies, bonuses and values of given decisions, with the leading dimensions of the input."""

    log_prob_H: Tensor
    """Log-probability of each head's choice; 0 if the op does not use the head."""
    entropy_H: Tensor
    """Entropy of each head, divided by log(number of legal actions)."""
    bonus_H: Tensor
    """Exploration bonus of each head: `exploration_bonus` with a prior for the op, the entropy for the other heads."""
    has_choice_H: Tensor
    """True if the op uses the head and more than one choice was legal."""
    value: Tensor
    """Value in units of the learner's value scale."""


class PointerHead(nn.Module):
    """Gives each of any number of candidates a score, from a context and the candidate's features."""

    def __init__(self, context: int, candidate: int) -> None:
        super().__init__()
        self.context = nn.Linear(context, HEAD_HIDDEN_DIM)
        self.candidate = nn.Linear(candidate, HEAD_HIDDEN_DIM, bias=False)
        self.score = nn.Linear(HEAD_HIDDEN_DIM, 1, bias=False)  # a bias would cancel out

    def forward(self, context_F: Tensor, candidate_AF: Tensor) -> Tensor:
        """Return the scores [..., A], given a context [..., F] and the candidates [..., A, F]."""
        hidden = torch.tanh(self.context(context_F).unsqueeze(-2) + self.candidate(candidate_AF))
        return self.score(hidden).squeeze(-1)


class PolicyNetwork(nn.Module):
    """Recurrent actor and critic with factored heads.

    The op is chosen first, then the slot given the op, then the other heads given both.

    Args:
        shape: Numbers of slots and blueprints of the observations. No weight depends on them.
    """

    def __init__(self, shape: ObservationShape, hidden: int) -> None:
        super().__init__()
        self.shape = shape
        self.hidden = hidden
        self.slot_encoder = nn.Sequential(
            nn.Linear(SLOT_FEATURES + BLUEPRINT_FEATURES, SLOT_WIDTH),
            nn.LayerNorm(SLOT_WIDTH),
            nn.ReLU(),
            nn.Linear(SLOT_WIDTH, SLOT_WIDTH),
            nn.ReLU(),
        )
        self.encoder = nn.Sequential(nn.Linear(BASE_FEATURES + 2 * SLOT_WIDTH, hidden), nn.LayerNorm(hidden), nn.ReLU())
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        heads: dict[str, nn.Module] = {
            "op": _mlp(hidden, len(Op)),
            "slot": PointerHead(hidden + len(Op), SLOT_WIDTH),
            "blueprint": PointerHead(hidden + SLOT_WIDTH, BLUEPRINT_FEATURES),
        }
        for name, size in zip(HEADS, head_sizes(*shape), strict=True):
            if name not in heads:
                heads[name] = _mlp(hidden + SLOT_WIDTH + len(Op), size)
        self.heads = nn.ModuleDict(heads)
        self.critic = _mlp(hidden, 1)
        head_used_OH = torch.tensor([[head in HEADS_BY_OP[op] for head in HEADS] for op in Op])
        self.register_buffer("head_used_OH", head_used_OH, persistent=False)
        self.head_used_OH: Tensor

    def initialise(self, generator: torch.Generator) -> None:
        """Initialise with orthogonal weights, zero biases, and a small gain on the last layer of each policy head.

        The forget gates of the LSTM have a bias of 1 (Jozefowicz et al., 2015), because with zero biases a unit forgets
        half of its content in each step.
        """
        last = {_last_layer(head) for head in self.heads.values()}
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() < 2:
                    is_scale = isinstance(module, nn.LayerNorm) and name == "weight"
                    nn.init.ones_(parameter) if is_scale else nn.init.zeros_(parameter)
                else:
                    gain = 0.01 if module in last else 1.0 if module is self.lstm else 2**0.5
                    nn.init.orthogonal_(parameter, gain, generator=generator)
        bias = cast("Tensor", self.lstm.bias_ih_l0)  # of the gates input, forget, cell and output, in this order
        with torch.no_grad():
            bias[self.hidden : 2 * self.hidden] = FORGET_BIAS

    def initial_state(self, envs: int) -> LSTMState:
        """Return the LSTM state at the start of an episode."""
        zeros = torch.zeros(1, envs, self.hidden, device=self.head_used_OH.device)
        return zeros, zeros.clone()

    def encode(self, obs_ETF: Tensor, blueprint_ETS: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Run the encoders and the LSTM.

        Args:
            obs_ETF: Normalised observations.
            blueprint_ETS: Blueprint of each slot, 1 + its index; 0 for an empty slot.

        Returns:
            Features for the heads [E, T, D + S U + S B K]: the encoded observation plus the output of the LSTM, the
            encoding of each slot, and the properties of each blueprint in each slot; and the LSTM state after the last
            step.
        """
        base_F, slot_SF, blueprint_SBK = self.shape.split(obs_ETF)
        planted = (blueprint_ETS - 1).clamp(min=0)[..., None, None].expand(*blueprint_ETS.shape, 1, BLUEPRINT_FEATURES)
        planted_SK = blueprint_SBK.gather(-2, planted).squeeze(-2) * (blueprint_ETS > 0).unsqueeze(-1)
        present_S1 = slot_SF[..., :1] > 0
        slot_SU = self.slot_encoder(torch.cat((slot_SF, planted_SK), dim=-1)) * present_S1
        mean_U = slot_SU.sum(dim=-2) / present_S1.sum(dim=-2).clamp(min=1)
        encoded = self.encoder(torch.cat((base_F, mean_U, slot_SU.amax(dim=-2)), dim=-1))
        remembered_ETD, state = self.lstm(encoded, state)
        memory_ETD = encoded + remembered_ETD
        return torch.cat((memory_ETD, slot_SU.flatten(-2), blueprint_SBK.flatten(-3)), dim=-1), state

    def value(self, features_D: Tensor) -> Tensor:
        """Return the values [...], in units of the learner's value scale."""
        return self.critic(features_D[..., : self.hidden]).squeeze(-1)

    @torch.no_grad()
    def act(
        self, features_ED: Tensor, masks: ActionMasks, uniform_EH: Tensor, *, stochastic_heads: bool = True
    ) -> tuple[Tensor, Tensor, ActionEvaluation]:
        """Choose an action for every env.

        Args:
            features_ED: Features of one step, from `encode`, [E, D + S U + S B K].
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
        bonuses: list[Tensor] = []
        has_choice: list[Tensor] = []
        used_H = self.head_used_OH[actions_H[..., 0]]
        for index in range(len(HEADS)):
            log_probs_A, legal_A = self._head(index, features_D, actions_H, masks)
            used = used_H[..., index]
            action = actions_H[..., index]
            # The choice of an unused head is 0, legal or not: its terms are replaced and not multiplied by 0.
            log_probs.append(torch.where(used, log_prob_of(log_probs_A, action), 0.0))
            entropies.append(torch.where(used, normalised_entropy(log_probs_A, legal_A), 0.0))
            bonuses.append(exploration_bonus(log_probs_A, _op_prior(legal_A), legal_A) if index == 0 else entropies[-1])
            has_choice.append(used & (legal_A.sum(dim=-1) > 1))
        return ActionEvaluation(
            torch.stack(log_probs, dim=-1),
            torch.stack(entropies, dim=-1),
            torch.stack(bonuses, dim=-1),
            torch.stack(has_choice, dim=-1),
            self.value(features_D),
        )

    def _unpack(self, features_D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parts of the result of `encode`: memory [..., D], slots [..., S, U], blueprints [..., S, B, K]."""
        slots, blueprints = self.shape
        widths = [self.hidden, slots * SLOT_WIDTH, slots * blueprints * BLUEPRINT_FEATURES]
        lead = features_D.shape[:-1]
        memory_D, slot_F, blueprint_F = torch.split(features_D, widths, dim=-1)
        return (
            memory_D,
            slot_F.view(*lead, slots, SLOT_WIDTH),
            blueprint_F.view(*lead, slots, blueprints, BLUEPRINT_FEATURES),
        )

    def _head(self, index: int, features_D: Tensor, actions_H: Tensor, masks: ActionMasks) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities [..., A] of one head given the choices before it, and the mask of legal ones."""
        name = HEADS[index]
        op, slot = actions_H[..., 0], actions_H[..., 1]
        memory_D, slot_SU, blueprint_SBK = self._unpack(features_D)
        op_O = nn.functional.one_hot(op, len(Op)).float()
        head = self.heads[name]
        if name == "op":
            logits_A = head(memory_D)
        elif name == "slot":
            logits_A = head(torch.cat((memory_D, op_O), dim=-1), slot_SU)
        else:
            chosen_U = _gather_rows(slot_SU, slot)
            if name == "blueprint":
                properties_F = _gather_rows(blueprint_SBK.flatten(-2), slot)
                properties_BK = properties_F.view(*properties_F.shape[:-1], *blueprint_SBK.shape[-2:])
                logits_A = head(torch.cat((memory_D, chosen_U), dim=-1), properties_BK)
            else:
                logits_A = head(torch.cat((memory_D, chosen_U, op_O), dim=-1))
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


def _op_prior(legal_O: Tensor) -> Tensor:
    """Return the log-probabilities [..., O] of the prior over the legal ops."""
    logits_O = torch.zeros(legal_O.shape, device=legal_O.device)
    logits_O[..., Op.WAIT] = WAIT_LOGIT
    return masked_log_probs(logits_O, legal_O)


def _last_layer(head: nn.Module) -> nn.Module:
    return head.score if isinstance(head, PointerHead) else cast("nn.Sequential", head)[-1]


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HEAD_HIDDEN_DIM), nn.Tanh(), nn.Linear(HEAD_HIDDEN_DIM, outputs))


def _gather_rows(table_NA: Tensor, index: Tensor) -> Tensor:
    """Return row `index` [...] of each table [..., N, A], as [..., A]."""
    rows = index[..., None, None].expand(*index.shape, 1, table_NA.shape[-1])
    return table_NA.gather(-2, rows).squeeze(-2)
