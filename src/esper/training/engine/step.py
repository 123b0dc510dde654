"""Steps of all envs, the same wherever episodes are played: act, apply, train, validate, record.

The envs are two groups that alternate: while one trains, the engine computes the rewards of the other, records its
step, and lets the policy choose its next actions. This keeps the lanes busy while the engine works (double-buffered
sampling; Petrenko et al., 2020, "Sample Factory"). The groups depend only on the number of envs, because the policy
decides for a group at a time, and a matrix product may round differently for another number of rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from esper.common.seeding import make_generator, seed_global_generators
from esper.common.user_code.isolation import isolated
from esper.common.user_code.references import user_errors
from esper.networks.seeds.lifecycle import StageTransition
from esper.training.engine.episode import Episode, StepOutcome, revalidate
from esper.training.envs.stopwatch import PhaseTimer
from esper.training.lanes.errors import FaultError
from esper.training.lanes.pool import EnvEpoch, EnvPool, PendingEpochs
from esper.training.policy.actions import ChosenAction
from esper.training.policy.agent import Agent, EnvStatus

MAX_SHOWN = 200
"""Maximum number of characters of a wrong result that a message shows."""


class StepResult(NamedTuple):
    """Result of one step of one group, one entry per env."""

    step: int
    """Index of the step, from 0."""
    episodes: Sequence[Episode]
    decisions: list[ChosenAction]
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


class _StartedStep(NamedTuple):
    """A step of a group whose envs train."""

    decisions: list[ChosenAction]
    epochs: PendingEpochs


def _nothing(_step: int, _episodes: Sequence[Episode]) -> None:
    """Do nothing at the start of a step."""


def first_group_size(envs: int) -> int:
    """Return the number of envs of the first of the two groups."""
    return -(-envs // 2)


def play_steps(
    pool: EnvPool,
    episodes: Sequence[Episode],
    agent: Agent,
    steps: range,
    end: Callable[[StepResult], None],
    *,
    begin: Callable[[int, Sequence[Episode]], None] = _nothing,
    after_step: Callable[[bool], bool] = lambda _: True,
    may_go_ahead: Callable[[], bool] = lambda: True,
    first_group: int | None = None,
    stopwatch: PhaseTimer | None = None,
) -> None:
    """Play steps of episodes that have begun, side by side: training, evaluation, simulation and research do it alike.

    Envs that break down are rolled back and validated again; like those without an episode, they then wait. The slots
    do not tick here, but in `end`, with `tick_slots`.

    Args:
        episodes: The episode of each env, in the order of `pool.envs`; see `begin_episodes`.
        agent: Decides for all of them.
        steps: Indices of the steps, from 0.
        end: Called with the result of each step of a group, to record it. No env of the group trains then.
        begin: Called with the index of a step and the episodes of a group, before the agent decides for them.
        after_step: Called after each step of all envs; the argument is True if the first group was allowed to start
            the next one. Returns False if no further step is to be played; one that was started is discarded.
        may_go_ahead: Called exactly once in each step but the last, also for a single group: all ranks must call it
            together. Returns True if the first group may start the next step before the second has ended this one.
        first_group: Number of envs of the first group; None: half of them.
        stopwatch: Measures the phases `act` and `reward`; None: they are not reported.

    Raises:
        FaultError: The policy failed; or a lane, and the envs are then in an inconsistent state. No env trains any
            more.
    """
    groups = _Groups(pool, episodes, agent, stopwatch or PhaseTimer(), begin, end, first_group)
    try:
        for step in steps:
            is_ahead = groups.play(step, may_go_ahead if step != steps[-1] else lambda: False)
            if not after_step(is_ahead):
                return
    finally:
        groups.abandon()


class _Groups:
    """The two groups of the envs of a pool, and their steps in progress. The arguments are those of `play_steps`."""

    def __init__(
        self,
        pool: EnvPool,
        episodes: Sequence[Episode],
        agent: Agent,
        stopwatch: PhaseTimer,
        begin: Callable[[int, Sequence[Episode]], None],
        end: Callable[[StepResult], None],
        first_group: int | None,
    ) -> None:
        self._pool = pool
        self._agent = agent
        self._stopwatch = stopwatch
        self._begin, self._end = begin, end
        # Envs that share a loss scale train one after another.
        half = first_group_size(len(episodes)) if first_group is None else first_group
        first = len(episodes) if pool.shares_loss_scale else half
        self._groups = [group for group in (episodes[:first], episodes[first:]) if group]
        self._started: dict[int, _StartedStep] = {}
        """Steps in progress, keyed by the index of the group."""

    def play(self, step: int, may_go_ahead: Callable[[], bool]) -> bool:
        """Play a step of all envs. Return True if the first group was allowed to start the next one."""
        is_ahead = False
        for index in range(len(self._groups)):
            if index not in self._started:
                self._start(index, step)
        for index, group in enumerate(self._groups):
            self._end(self._finish(index, group, step))
            if index == 0:
                is_ahead = may_go_ahead()
            if is_ahead and index < len(self._groups) - 1:
                self._start(index, step + 1)
        return is_ahead

    def abandon(self) -> None:
        """Finish the epochs in progress, also those that a CPU lane has not begun yet, and discard their results."""
        for started in self._started.values():
            with contextlib.suppress(FaultError):
                started.epochs()
        self._started.clear()

    def _start(self, index: int, step: int) -> None:
        """Decide for a group, and let its envs train."""
        group = self._groups[index]
        self._begin(step, group)
        with self._stopwatch("act"):
            key = group[0].env.key
            # A policy of the user may draw from the global generators, whose state depends on what ran before.
            seed_global_generators(make_generator(key.seed, "policy", key.env, key.round, step).initial_seed())
            decisions = _decide(self._agent, step, [episode.view for episode in group])
        actions = {
            episode.env: decision.action
            for episode, decision in zip(group, decisions, strict=True)
            if not episode.inactive
        }
        self._started[index] = _StartedStep(decisions, self._pool.start_step(actions, step))

    def _finish(self, index: int, group: Sequence[Episode], step: int) -> StepResult:
        """Wait for the envs of a group, and reward them."""
        decisions, pending = self._started.pop(index)
        measured = pending()
        epochs = [measured.get(episode.env) for episode in group]
        with self._stopwatch("reward"):
            outcomes = [
                episode.record_step(decision.action, epoch) if epoch else None
                for episode, decision, epoch in zip(group, decisions, epochs, strict=True)
            ]
            result = StepResult(step, group, decisions, epochs, outcomes)
            revalidate(
                self._pool, [episode for episode, broken in zip(group, result.broke_down, strict=True) if broken]
            )
        return result


def _decide(agent: Agent, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
    """Return the decisions of a policy, which may be the user's code.

    Raises:
        FaultError: The policy raises an exception, or does not return one `ChosenAction` for each env.
    """
    try:
        with isolated("the policy"):
            decisions = agent.act(step, views)
    except FaultError:
        raise
    except user_errors() as error:  # any error of the policy holds or ends the run, with its message
        fault = FaultError.from_exception(error, "the policy")
    else:
        if [type(decision) for decision in decisions] == [ChosenAction] * len(views):
            return decisions
        found = repr(decisions)[:MAX_SHOWN]
        fault = FaultError(f"the policy returned {found}; it must return a ChosenAction for each of {len(views)} envs")
    raise fault


def tick_slots(episodes: Sequence[Episode]) -> list[list[StageTransition]]:
    """Tick the slots of envs, which may remove seeds, and update the parameter ratios that policies see.

    Training ticks right after the step, so that its transitions are reported with it. Evaluation does not tick after
    the last step: the test split must be measured with the alphas of the last validation.

    Returns:
        The transitions of each env.
    """
    moves = [episode.env.tick() for episode in episodes]
    for episode in episodes:
        episode.update_parameter_ratio()
    return moves
