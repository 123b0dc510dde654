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

from esper.common.domain import HEADS, HEADS_BY_OP, Op
from esper.training.policy.actions import head_sizes
from esper.training.policy.masks import (
    ActionMasks,
    exploration_bonus,
    gather_rows,
    log_prob_of,
    masked_log_probs,
    min_p_filter,
    normalised_entropy,
    sample,
)
from esper.training.policy.observation import BASE_FEATURES, BLUEPRINT_FEATURES, SLOT_FEATURES, ObservationShape

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


class Choice(NamedTuple):
    """The part of an `ActionEvaluation` that acting needs: log-probabilities [E, H], 0 for unused heads; values [E]."""

    log_prob_H: Tensor
    value: Tensor


class Features(NamedTuple):
    """Features for the heads, from `PolicyNetwork.encode`, with any leading dimensions."""

    memory_D: Tensor
    """Encoded observation plus the output of the LSTM."""
    slot_SU: Tensor
    """Encoding of each slot."""
    blueprint_SBK: Tensor
    """Properties of each blueprint in each slot."""

    def at_step(self, step: int) -> Features:
        """Return views of one step, for features with leading dimensions [E, T]."""
        return Features(*(part[:, step] for part in self))


class HeadRows(NamedTuple):
    """Decisions for which the heads after the op are computed, with flattened leading dimensions."""

    acting_R: Tensor
    """Indices of the decisions that are not WAIT, which uses no other head."""
    germinating_G: Tensor
    """Indices, among these, of GERMINATE, the only op that uses the blueprint head."""

    @classmethod
    def of(cls, op: Tensor) -> HeadRows:
        """Return the rows for ops [...]. On a GPU, this waits for the device."""
        acting_R = (op.flatten() != Op.WAIT).nonzero().squeeze(-1)
        return cls(acting_R, (op.flatten()[acting_R] == Op.GERMINATE).nonzero().squeeze(-1))


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
        self.register_buffer("one_hot_OO", torch.eye(len(Op)), persistent=False)
        self.one_hot_OO: Tensor

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

    def encode(self, obs_ETF: Tensor, blueprint_ETS: Tensor, state: LSTMState) -> tuple[Features, LSTMState]:
        """Run the encoders and the LSTM.

        Args:
            obs_ETF: Normalised observations.
            blueprint_ETS: Blueprint of each slot, 1 + its index; 0 for an empty slot.

        Returns:
            Features with leading dimensions [E, T], and the LSTM state after the last step.
        """
        base_F, slot_SF, blueprint_SBK = self.shape.split(obs_ETF)
        planted = (blueprint_ETS - 1).clamp(min=0)[..., None, None].expand(*blueprint_ETS.shape, 1, BLUEPRINT_FEATURES)
        planted_SK = blueprint_SBK.gather(-2, planted).squeeze(-2) * (blueprint_ETS > 0).unsqueeze(-1)
        present_S1 = slot_SF[..., :1] > 0
        slot_SU = self.slot_encoder(torch.cat((slot_SF, planted_SK), dim=-1)) * present_S1
        mean_U = slot_SU.sum(dim=-2) / present_S1.sum(dim=-2).clamp(min=1)
        encoded = self.encoder(torch.cat((base_F, mean_U, slot_SU.amax(dim=-2)), dim=-1))
        remembered_ETD, state = self.lstm(encoded, state)
        return Features(encoded + remembered_ETD, slot_SU, blueprint_SBK), state

    def value(self, features: Features) -> Tensor:
        """Return the values [...], in units of the learner's value scale."""
        return self.critic(features.memory_D).squeeze(-1)

    @torch.no_grad()
    def act(
        self, features: Features, masks: ActionMasks, uniform_EH: Tensor, *, stochastic_heads: bool = True
    ) -> tuple[Tensor, Tensor, Choice]:
        """Choose an action for every env.

        Args:
            features: Features of one step, with leading dimension E.
            uniform_EH: Uniform random numbers in [0, 1), one for each head.
            stochastic_heads: Sample every head. If False, sample only the op, after `min_p_filter`, and choose the most
                probable action of the other heads. The op is always sampled, because the most probable op is often
                WAIT in every step: if the time of an op does not matter, its probability is low in each step.

        Returns:
            Actions [E, H] int64, probability of every op [E, O] (0 if illegal), and the evaluation of the actions.
        """

        def choose(log_probs_A: Tensor, uniform: Tensor) -> Tensor:
            return sample(log_probs_A, uniform) if stochastic_heads else log_probs_A.argmax(dim=-1)

        log_probs_EO = masked_log_probs(self.heads["op"](features.memory_D), masks.op_EO)
        op_E = sample(log_probs_EO if stochastic_heads else min_p_filter(log_probs_EO), uniform_EH[:, 0])
        log_probs_ES = masked_log_probs(self._slot_logits(features, op_E), gather_rows(masks.slot_EOS, op_E))
        slot_E = choose(log_probs_ES, uniform_EH[:, 1])
        legal_EHA = masks.given(op_E, slot_E)[:, 2:]
        log_probs_EHA = masked_log_probs(_pad(self._other_logits(features, op_E, slot_E), legal_EHA), legal_EHA)
        others_EH = choose(log_probs_EHA, uniform_EH[:, 2:])
        used_EH = self.head_used_OH[op_E]
        actions_EH = torch.cat((op_E[:, None], slot_E[:, None], others_EH), dim=1) * used_EH
        chosen = (log_prob_of(log_probs_EO, op_E)[:, None], log_prob_of(log_probs_ES, slot_E)[:, None])
        log_prob_EH = torch.cat((*chosen, log_prob_of(log_probs_EHA, others_EH)), dim=1)
        choice = Choice(torch.where(used_EH, log_prob_EH, 0.0), self.value(features))
        return actions_EH, log_probs_EO.exp(), choice

    def evaluate(
        self, features: Features, actions_H: Tensor, legal_HA: Tensor, rows: HeadRows | None = None
    ) -> ActionEvaluation:
        """Evaluate given actions.

        Args:
            features: Features with leading dimensions [E] or [E, T].
            actions_H: Actions with the same leading dimensions.
            legal_HA: Legal choices with the same leading dimensions, from `ActionMasks.given`.
            rows: Rows of these actions; None determines them here.
        """
        lead = actions_H.shape[:-1]
        op_N, legal_NHA = actions_H[..., 0].flatten(), legal_HA.flatten(0, -3)
        legal_NO, used_NH = legal_NHA[:, 0, : len(Op)], self.head_used_OH[op_N]
        log_probs_NO = masked_log_probs(self.heads["op"](features.memory_D).flatten(0, -2), legal_NO)

        rows_R, germinating_G = rows or HeadRows.of(op_N)
        op_R, actions_RH = op_N.index_select(0, rows_R), actions_H.flatten(0, -2).index_select(0, rows_R)
        chosen = Features(
            *(part.reshape(len(op_N), *part.shape[len(lead) :]).index_select(0, rows_R) for part in features)
        )
        legal_RHA, used_RH = legal_NHA[:, 1:].index_select(0, rows_R), used_NH[:, 1:].index_select(0, rows_R)
        others = self._other_logits(chosen, op_R, actions_RH[:, 1], germinating_G)
        log_probs_RHA = masked_log_probs(_pad([self._slot_logits(chosen, op_R), *others], legal_RHA), legal_RHA)
        # The choice of an unused head is 0, legal or not: its terms are replaced and not multiplied by 0.
        log_prob_RH = torch.where(used_RH, log_prob_of(log_probs_RHA, actions_RH[:, 1:]), 0.0)
        entropy_RH = torch.where(used_RH, normalised_entropy(log_probs_RHA, legal_RHA), 0.0)

        def with_op(values_N: Tensor, others_RH: Tensor) -> Tensor:
            others_NH = torch.zeros_like(used_NH[:, 1:], dtype=values_N.dtype).index_copy(0, rows_R, others_RH)
            return torch.cat((values_N.unsqueeze(-1), others_NH), dim=-1).view(actions_H.shape)

        return ActionEvaluation(
            with_op(log_prob_of(log_probs_NO, op_N), log_prob_RH),
            with_op(normalised_entropy(log_probs_NO, legal_NO), entropy_RH),
            with_op(exploration_bonus(log_probs_NO, _op_prior(legal_NO), legal_NO), entropy_RH),
            (used_NH & (legal_NHA.sum(dim=-1) > 1)).view(actions_H.shape),
            self.value(features),
        )

    def _slot_logits(self, features: Features, op: Tensor) -> Tensor:
        """Return the logits [..., S] of the slot head, given the op."""
        return self.heads["slot"](torch.cat((features.memory_D, self.one_hot_OO[op]), dim=-1), features.slot_SU)

    def _other_logits(
        self, features: Features, op: Tensor, slot: Tensor, germinating_G: Tensor | None = None
    ) -> list[Tensor]:
        """Return the logits of each head after op and slot, given both.

        Args:
            germinating_G: Rows for which the blueprint head is computed; it is 0 for the others. None: all.
        """
        context = torch.cat((features.memory_D, gather_rows(features.slot_SU, slot)), dim=-1)
        properties_BK = gather_rows(features.blueprint_SBK.flatten(-2), slot)
        properties_BK = properties_BK.view(*slot.shape, *features.blueprint_SBK.shape[-2:])
        if germinating_G is None:
            blueprint_B = self.heads["blueprint"](context, properties_BK)
        else:
            found = self.heads["blueprint"](*(part.index_select(0, germinating_G) for part in (context, properties_BK)))
            blueprint_B = found.new_zeros(properties_BK.shape[:-1]).index_copy(0, germinating_G, found)
        context = torch.cat((context, self.one_hot_OO[op]), dim=-1)
        # The first layers of the other heads are computed as one.
        heads = [cast("nn.Sequential", self.heads[name]) for name in HEADS[3:]]
        weights, biases = ([getattr(head[0], name) for head in heads] for name in ("weight", "bias"))
        hidden = torch.tanh(nn.functional.linear(context, torch.cat(weights), torch.cat(biases)))
        hiddens = torch.split(hidden, HEAD_HIDDEN_DIM, dim=-1)
        return [blueprint_B, *(head[2](part) for head, part in zip(heads, hiddens, strict=True))]


def _op_prior(legal_O: Tensor) -> Tensor:
    """Return the log-probabilities [..., O] of the prior over the legal ops."""
    logits_O = torch.zeros(legal_O.shape, device=legal_O.device)
    logits_O[..., Op.WAIT] = WAIT_LOGIT
    return masked_log_probs(logits_O, legal_O)


def _last_layer(head: nn.Module) -> nn.Module:
    return head.score if isinstance(head, PointerHead) else cast("nn.Sequential", head)[-1]


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HEAD_HIDDEN_DIM), nn.Tanh(), nn.Linear(HEAD_HIDDEN_DIM, outputs))


def _pad(logits: list[Tensor], legal_HA: Tensor) -> Tensor:
    """Return the logits of some heads as one tensor [..., H, A], with zeros after the last choice of a head."""
    zeros_A = torch.zeros(legal_HA.shape[:-2] + legal_HA.shape[-1:], device=legal_HA.device)
    padded = [part for given in logits for part in (given, zeros_A[..., given.shape[-1] :])]
    return torch.cat(padded, dim=-1).view(legal_HA.shape)
