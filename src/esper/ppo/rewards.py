"""The reward of a step, r(s, a, s'): measured after the action has had its effect.

    shaped      Δ accuracy + w·(γ·Φ(s') − Φ(s)) − rent − op
    simplified  Δ accuracy − rent − op
    sparse      at the last step only: the simplified rewards of the whole episode

Φ is the sum of the contributions of all seeds, so that the shaping telescopes over every slot and leaves the optimal
policy as it is (Ng, Harada and Russell, 1999). Where the episode's end is the end, Φ is 0 there: what was left over
would be a reward for contributions, and no shaping (Grzes, 2017). A seed that is not in the forward pass contributes 0
by definition, and adds nothing to Φ. Where no contributions are measured at all, the shaped reward has no such part.
Every op but WAIT costs the same little: one that does nothing is worth less than to wait, and can be unlearned.
All in units of validation accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from esper.config import PPOConfig, RewardConfig, RewardName


def rent_cost(parameter_ratio: float, host_parameters: int, weights: RewardConfig) -> float:
    """Charge of one step for the parameters that were grown: weight · ln(1 + grown / host).

    Every grown parameter counts once, whether its seed is still live or was made permanent.

    Args:
        parameter_ratio: parameters of host and seeds over those of the bare host.
        host_parameters: of the bare host.
        weights: the weight, and the floor that keeps a tiny host from making every seed look enormous.
    """
    grown = (parameter_ratio - 1.0) * host_parameters
    return weights.rent * math.log1p(grown / max(host_parameters, weights.rent_floor))


def contribution_potential(contributions: Iterable[float]) -> float:
    """Φ(s): the sum of the contributions of an env's blended seeds."""
    return sum(contributions)


class RewardFunction:
    """Rewards of one env over one episode.

    Args:
        mode: shaped, simplified or sparse.
        weights: of the components.
        learning: of the learner: its discount and horizon, for the shaping.
        steps: steps of an episode.
    """

    def __init__(self, mode: RewardName, weights: RewardConfig, learning: PPOConfig, steps: int) -> None:
        self._mode = mode
        self._weights = weights
        self._gamma = learning.gamma
        self._ends = learning.horizon == "episode"
        self._steps = steps
        self.begin(0.0)

    def begin(self, accuracy: float) -> None:
        """Start an episode from a fresh host of this accuracy."""
        self._taken = 0
        self._accuracy = accuracy
        self._potential = 0.0
        self._unpaid = {"accuracy": 0.0, "rent": 0.0, "op": 0.0}

    def step(
        self, accuracy: float, potential_now: float | None, rent_now: float, *, acted: bool, broken: bool = False
    ) -> dict[str, float]:
        """Components of this step's reward; their sum is the reward.

        Args:
            accuracy: on the validation split, after the step.
            potential_now: Φ after the step; None where no contributions are measured.
            rent_now: charge of the step.
            acted: the op was not to wait.
            broken: the env was taken back by the governor, and with this step its episode ends.
        """
        self._taken += 1
        parts = {"accuracy": accuracy - self._accuracy, "rent": -rent_now, "op": -self._weights.op if acted else 0.0}
        self._accuracy = accuracy
        if self._mode == "shaped" and potential_now is not None:
            if broken or (self._ends and self._taken == self._steps):
                potential_now = 0.0
            parts["contribution"] = self._weights.contribution * (self._gamma * potential_now - self._potential)
            self._potential = potential_now
        if self._mode == "sparse":
            self._unpaid = {name: self._unpaid[name] + value for name, value in parts.items()}
            parts = self._unpaid if broken or self._taken == self._steps else dict.fromkeys(parts, 0.0)
        return parts | {"penalty": -self._weights.penalty} if broken else parts

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint keeps."""
        return {
            "taken": self._taken,
            "accuracy": self._accuracy,
            "potential": self._potential,
            "unpaid": dict(self._unpaid),
        }

    def load_state_dict(self, saved: dict) -> None:
        """Continue from a snapshot."""
        self._taken = saved["taken"]
        self._accuracy = saved["accuracy"]
        self._potential = saved["potential"]
        self._unpaid = dict(saved["unpaid"])
