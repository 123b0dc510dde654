"""One step of all envs, the same in training and in evaluation: act, apply, train, validate, record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from esper.engine.episode import Episode, StepOutcome, revalidate
from esper.envs.stopwatch import PhaseTimer
from esper.growth.lifecycle import StageTransition
from esper.lanes.errors import FaultError
from esper.lanes.pool import EnvEpoch, EnvPool
from esper.policy.actions import Decision
from esper.policy.agent import Agent, EnvStatus

MAX_SHOWN = 200
"""Maximum number of characters of a wrong result that a message shows."""


class StepResult(NamedTuple):
    """Result of one step, one entry per env."""

    decisions: list[Decision]
    epochs: list[EnvEpoch | None]
    """None for an env that is inactive after a rollback."""
    outcomes: list[StepOutcome | None]
    """None for the same envs."""

    @property
    def rewards(self) -> list[float | None]:
        """Reward of each env; None for an inactive one."""
        return [sum(outcome.reward_parts.values()) if outcome else None for outcome in self.outcomes]

    @property
    def broke_down(self) -> list[bool]:
        """True for each env that broke down in this step and was rolled back."""
        return [bool(outcome and outcome.breakdown) for outcome in self.outcomes]


def play_step(pool: EnvPool, episodes: Sequence[Episode], agent: Agent, step: int, stopwatch: PhaseTimer) -> StepResult:
    """Let the agent decide for every env, then apply its decisions, train, validate and record the results.

    Envs that break down are rolled back and validated again.

    The slots do not tick here; the caller ends the step with `tick_slots`. Training ticks right after the step, so that
    its transitions are reported with it. Evaluation ticks only before the next step: after the last one, the test split
    must be measured with the alphas of the last validation.

    Args:
        episodes: Their episodes, in the order of `pool.envs`.
        stopwatch: Measures the phases `act` and `reward`.

    Raises:
        FaultError: The policy failed; or a lane, and the envs are then in an inconsistent state.
    """
    with stopwatch("act"):
        choices = _decide(agent, step, [episode.view for episode in episodes])
    actions = [None if episode.inactive else choice.action for episode, choice in zip(episodes, choices, strict=True)]
    epochs = pool.step(actions, step)
    with stopwatch("reward"):
        outcomes = [
            episode.record_step(choice.action, epoch) if epoch else None
            for episode, choice, epoch in zip(episodes, choices, epochs, strict=True)
        ]
        result = StepResult(choices, epochs, outcomes)
        revalidate(pool, [episode for episode, broken in zip(episodes, result.broke_down, strict=True) if broken])
    return result


def _decide(agent: Agent, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
    """Return the decisions of a policy, which may be the user's code.

    Raises:
        FaultError: The policy raises an exception, or does not return one `Decision` for each env.
    """
    try:
        decisions = agent.act(step, views)
    except Exception as error:  # noqa: BLE001 (any error of the policy holds or ends the run, with its message)
        fault = FaultError.from_exception(error, "the policy")
    else:
        if [type(decision) for decision in decisions] == [Decision] * len(views):
            return decisions
        found = repr(decisions)[:MAX_SHOWN]
        fault = FaultError(f"the policy returned {found}; it must return a Decision for each of {len(views)} envs")
    raise fault


def tick_slots(pool: EnvPool, episodes: Sequence[Episode]) -> list[list[StageTransition]]:
    """Tick the slots of every env, which may remove seeds, and update the parameter ratios that policies see.

    Returns:
        The transitions of each env.
    """
    moves = pool.tick()
    for episode in episodes:
        episode.update_parameter_ratio()
    return moves
