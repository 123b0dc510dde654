"""RentMeter: sums the rent of the envs of another agent at weight 1, from which their returns at any rent follow."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from esper.policy.actions import Decision
from esper.policy.agent import Agent, EnvStatus
from esper.policy.baselines import NonLearningAgent


class RentMeter(NonLearningAgent):
    """Lets another agent decide, and sums the rent of each env at weight 1.

    Args:
        agent: Agent that decides, in envs whose rent weight is above 0.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.views: Sequence[EnvStatus] = ()
        """Views of the last call of `act`; the engine goes on updating them."""
        self._counted: list[int] = []
        """Number of steps of each env whose rent is counted. An env that broke down takes no more steps."""
        self._sums: list[float] = []

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin the round of the agent, and count from 0."""
        self._counted, self._sums = [0] * len(uniforms_ETH), [0.0] * len(uniforms_ETH)
        self._agent.begin_round(uniforms_ETH)

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """Count the rent of the last step, and return the agent's decisions."""
        self.views = views
        self._count()
        return self._agent.act(step, views)

    def sums(self) -> list[float]:
        """Return the sum of the rents of each env, at weight 1, up to its last step."""
        self._count()
        return list(self._sums)

    def _count(self) -> None:
        for env, view in enumerate(self.views):
            if view.step > self._counted[env]:
                self._counted[env] = view.step
                self._sums[env] += view.rent / view.rent_weight
