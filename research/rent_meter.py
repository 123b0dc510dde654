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
        self.views: dict[int, EnvStatus] = {}
        """View of each env, keyed by its index; the engine goes on updating them."""
        self._counted: dict[int, int] = {}
        """Number of steps of each env whose rent is counted. An env that broke down takes no more steps."""
        self._sums: dict[int, float] = {}

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin the round of the agent, and count from 0."""
        self.views, self._counted, self._sums = {}, {}, {}
        self._agent.begin_round(uniforms_ETH)

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """Count the rent of the last step, and return the agent's decisions."""
        self.views |= {view.env: view for view in views}
        self._count()
        return self._agent.act(step, views)

    def sums(self) -> list[float]:
        """Return the sum of the rents of each env, at weight 1, up to its last step, in the order of the envs."""
        self._count()
        return [self._sums.get(env, 0.0) for env in self.views]

    def _count(self) -> None:
        for env, view in self.views.items():
            if view.step > self._counted.get(env, 0):
                self._counted[env] = view.step
                self._sums[env] = self._sums.get(env, 0.0) + view.rent / view.rent_weight
