"""Rewards r(s, a, s') of a step, measured after the action has taken effect.

    shaped      Δ score + w·(γ·Φ(s') − Φ(s)) − rent − op
    simplified  Δ score − rent − op
    sparse      at the last step only: the simplified rewards of the whole episode

Φ is the sum of the dependences of all seeds, so that the shaping telescopes over every slot and does not change the
optimal policy (Ng, Harada and Russell, 1999). If the end of an episode is terminal, Φ is 0 there: otherwise the final Φ
would remain as a reward for dependences (Grzes, 2017). A seed that is not in the forward pass contributes 0 to Φ by
definition. If no dependences are measured, the shaped reward has no dependence component. Every op except WAIT has
the same small cost, so that the policy unlearns ops without effect. All rewards are in units of the validation
score, as a fraction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from esper.common.configuration.config import PPOConfig, RewardConfig, RewardName


def rent_cost(parameter_ratio: float, host_parameters: int, weights: RewardConfig) -> float:
    """Return the cost of the grown parameters for one step: weight · ln(1 + grown / host).

    Every grown parameter counts once, whether or not its seed is fossilized.

    Args:
        parameter_ratio: Number of parameters of host and seeds, divided by that of the bare host.
        host_parameters: Number of parameters of the bare host.
        weights: Weight of the rent, and the minimum divisor, without which every seed of a tiny host would be
            expensive.
    """
    grown = (parameter_ratio - 1.0) * host_parameters
    return weights.rent * math.log1p(grown / max(host_parameters, weights.rent_floor))


class RewardFunction:
    """Rewards of one env over one episode.

    Args:
        ppo: Configuration of PPO; its discount factor and horizon are used for the shaping.
    """

    def __init__(self, mode: RewardName, weights: RewardConfig, ppo: PPOConfig, steps: int) -> None:
        self._mode = mode
        self._weights = weights
        self._gamma = ppo.gamma
        self._terminal_at_limit = ppo.horizon == "episode"
        self._steps = steps
        self.begin(0.0)

    def begin(self, score: float) -> None:
        """Start an episode."""
        self._steps_taken = 0
        self._score = score
        self._potential = 0.0
        self._deferred_parts = {"score": 0.0, "rent": 0.0, "op": 0.0}

    @property
    def known_return(self) -> float:
        """Part of the return from here on that does not depend on what happens: a baseline for the critic.

        Gains in score and Φ count from their current values. The return therefore contains −score − w·Φ,
        exactly for a discount factor of 1. In the mode `sparse`, it also contains the components of all steps so far.
        """
        return sum(self._deferred_parts.values()) - self._score - self._weights.dependence * self._potential

    def step(
        self, score: float, potential_now: float | None, rent_now: float, *, is_op: bool, is_breakdown: bool = False
    ) -> dict[str, float]:
        """Return the components of a step's reward by name; their sum is the reward.

        Args:
            score: Validation score after the step.
            potential_now: Φ after the step; None if no dependences are measured.
            is_op: True if the op was not WAIT.
            is_breakdown: True if the env broke down in this step, which ends its episode.
        """
        self._steps_taken += 1
        parts = {"score": score - self._score, "rent": -rent_now, "op": -self._weights.op if is_op else 0.0}
        self._score = score
        if self._mode == "shaped" and potential_now is not None:
            if is_breakdown or (self._terminal_at_limit and self._steps_taken == self._steps):
                potential_now = 0.0
            parts["dependence"] = self._weights.dependence * (self._gamma * potential_now - self._potential)
            self._potential = potential_now
        if self._mode == "sparse":
            self._deferred_parts = {name: self._deferred_parts[name] + value for name, value in parts.items()}
            is_last = is_breakdown or self._steps_taken == self._steps
            parts = self._deferred_parts if is_last else dict.fromkeys(parts, 0.0)
        return parts | {"penalty": -self._weights.penalty} if is_breakdown else parts

    def state_dict(self) -> dict[str, object]:
        """Return the state of the episode as JSON-compatible values."""
        return {
            "steps_taken": self._steps_taken,
            "score": self._score,
            "potential": self._potential,
            "deferred_parts": dict(self._deferred_parts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._steps_taken = state["steps_taken"]
        self._score = state["score"]
        self._potential = state["potential"]
        self._deferred_parts = dict(state["deferred_parts"])
