"""Recorded episodes: the decisions and measurements of one env in one round, read from a history."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterator
from typing import NamedTuple

import msgspec

from esper.common.configuration.config import Config, ConfigError
from esper.common.decisions import GERMINATE
from esper.recordings import events as ev
from esper.recordings.events.codec import encode_json
from esper.recordings.history.address import MissingMomentError, position_of_number
from esper.recordings.history.history import History
from esper.recordings.state.series import decision_of
from esper.recordings.state.state import RunState


class LossScale(NamedTuple):
    """A loss scale, and the number of clean batches since it last changed."""

    scale: float
    growth_tracker: int


class RecordedSeed(NamedTuple):
    """A seed of an episode, and the decisions that concern it."""

    slot: str
    blueprint: str
    step: int
    """Step, from 1, in which it was planted."""
    decisions: tuple[int, ...]
    """Steps of all decisions about it, that one included."""


class RecordedEpisode(NamedTuple):
    """An episode of an env, as far as it is recorded."""

    started: ev.RunStarted
    """Start of the process that ended the episode, or recorded its last step."""
    round: int
    """Round, from 1."""
    env: int
    steps: list[ev.EnvStepped]
    """Steps in order, from step 1 on; fewer than those of an episode after a rollback, and in a round in progress."""
    ended: ev.EpisodeEnded | None
    """None in a round in progress."""
    loss_scale: LossScale | None
    """Loss scale before the first step; None in the first round, and without loss scaling."""
    previous: RecordedEpisode | None
    """The env's previous episode if it ended with a rollback under loss scaling, which the recording does not contain
    the resulting scale of; else None."""
    training: ev.TrialStarted | None = None
    """Candidate and host of the training; None unless the run is a growth."""

    @property
    def num_steps(self) -> int:
        """Number of steps of the episode: those of a whole one if it has ended, else those that were recorded.

        The trainings of a growth may end early.
        """
        is_whole = self.ended is not None and self.training is None
        return self.started.steps if is_whole else len(self.steps)

    @property
    def drawn_as(self) -> tuple[int, int]:
        """Env and round index, from 0, from which the random draws of the episode derive.

        In a growth, they are those of a host that several trainings share.
        """
        return (self.env, self.round - 1) if self.training is None else (self.training.fresh or 0, 0)

    @property
    def host(self) -> Hashable:
        """Value that episodes of a round share if they begin alike: with the same host, data order and loss scale."""
        rolled_back = None if self.previous is None else self.env
        return self.drawn_as[0] // self.config.envs_per_host, self.loss_scale, rolled_back

    @property
    def config(self) -> Config:
        """Configuration of the run. Raises ConfigError if this version cannot read it."""
        try:
            return msgspec.convert(self.started.config, Config, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the run has a configuration that this version cannot read: {error}") from None

    def digest(self, steps: int) -> str:
        """Return a digest of what the results of a simulation depend on in the recording, in hexadecimal.

        Args:
            steps: Number of steps, from the first on, that were simulated.
        """
        started = self.started
        env, round_index = self.drawn_as
        identity = started.task, started.seed, started.steps, round_index + 1, env, self.loss_scale, started.task_code
        content = [msgspec.structs.replace(step, seq=0, time=0.0) for step in self.steps[:steps]]
        return hashlib.blake2b(encode_json((identity, content)), digest_size=16).hexdigest()

    @property
    def seeds(self) -> list[RecordedSeed]:
        """Seeds that were planted in the episode, in order."""
        planted = [step for step in self.steps if step.op == GERMINATE]
        seeds: list[RecordedSeed] = []
        for step in planted:
            later = [other.step for other in planted if other.step > step.step and other.target == step.target]
            end = min(later, default=len(self.steps) + 1)
            about = [other.step for other in self.steps[step.step - 1 : end - 1] if other.target == step.target]
            blueprint = str(decision_of(step).blueprint)
            seeds.append(RecordedSeed(str(step.target), blueprint, step.step, tuple(about)))
        return seeds


def read_episode(history: History, round_number: int, env: int) -> RecordedEpisode:
    """Return an episode of a recording.

    Args:
        history: Recording, completely read.
        round_number: Round, from 1.

    Raises:
        ConfigError: The recording does not contain the episode, or not completely.
    """
    episodes, problems = _read_episodes(history, round_number, {env})
    if env in episodes:
        return episodes[env]
    known = sorted(event.env for event in _round_events(history, round_number) if isinstance(event, ev.EnvStepped))
    envs = f"envs {known[0]} to {known[-1]}" if known else "no steps"
    missing = f"env {env} has no step in round {round_number} of {history.path}; the round has {envs}"
    raise ConfigError(problems.get(env, missing))


def read_round(history: History, round_number: int) -> dict[int, RecordedEpisode]:
    """Return the episodes of a round, keyed by env; envs without a recorded or with a missing step are left out.

    Raises:
        ConfigError: The recording does not contain the round, or every env has a missing step.
    """
    episodes, problems = _read_episodes(history, round_number, None)
    if problems and not episodes:
        raise ConfigError(next(iter(problems.values())))
    return episodes


class _RecordedRound(NamedTuple):
    """The steps of a round, and the state of the run before it."""

    before: RunState
    steps: dict[int, list[ev.EnvStepped]]
    """Keyed by env."""
    ended: dict[int, ev.EpisodeEnded]
    broken: set[int]
    """Envs that were rolled back."""
    training: dict[int, ev.TrialStarted]
    """Training of each env in a growth."""
    started: ev.RunStarted


def _read_episodes(
    history: History, round_number: int, envs: Collection[int] | None
) -> tuple[dict[int, RecordedEpisode], dict[int, str]]:
    """Return the episodes of some envs in a round, or of all, and why those that are incomplete cannot be used.

    An episode after a rollback under loss scaling needs the previous one, which can need the one before it.
    """
    needed = _scan_round(history, round_number)
    rounds = {round_number: needed}
    chosen = {round_number: set(needed.steps) if envs is None else set(envs) & set(needed.steps)}
    first = round_number
    unrecorded: set[int] = set()
    while after_rollback := _rolled_back_before(rounds[first], chosen[first]):
        try:
            earlier = _scan_round(history, first - 1)
        except ConfigError:  # an excerpt that begins here
            unrecorded = after_rollback
            break
        first -= 1
        rounds[first], chosen[first] = earlier, after_rollback
    episodes: dict[int, RecordedEpisode] = {}
    problems: dict[int, str] = {}
    for number in range(first, round_number + 1):
        previous, before = episodes, problems
        episodes, problems = {}, {}
        for env in sorted(chosen[number]):
            try:
                if env in before:
                    raise ConfigError(before[env])
                if env in unrecorded and number == first:
                    raise ConfigError(_unknown_scale(history, number, env))
                episodes[env] = _make_episode(history, rounds[number], number, env, previous.get(env))
            except ConfigError as error:
                problems[env] = str(error)
    return episodes, problems


def _scan_round(history: History, round_number: int) -> _RecordedRound:
    """Return the steps of a round. Raises ConfigError if the recording has no such round, or no start of a run."""
    before = history.state_at(_start_of_round(history, round_number))
    started = latest = before.started
    steps: dict[int, list[ev.EnvStepped]] = {}
    ended: dict[int, ev.EpisodeEnded] = {}
    broken: set[int] = set()
    training: dict[int, ev.TrialStarted] = {}
    for event in _round_events(history, round_number):
        if isinstance(event, ev.EnvStepped):
            steps.setdefault(event.env, []).append(event)
            started = latest
        elif isinstance(event, ev.EpisodeEnded):
            ended[event.env] = event
        elif isinstance(event, ev.GovernorRolledBack):
            broken.add(event.env)
        elif isinstance(event, ev.TrialStarted):
            training[event.env] = event
        elif isinstance(event, ev.RunStarted):
            latest = event
    if started is None:
        raise ConfigError(f"{history.path} has no start of a run, so its episodes cannot be simulated")
    return _RecordedRound(before, steps, ended, broken, training, started)


def _rolled_back_before(found: _RecordedRound, envs: Collection[int]) -> set[int]:
    """Return the envs that were rolled back in the round before one with loss scaling."""
    if found.started.growth_interval is None or found.started.search is not None:  # a growth resets the scales
        return set()
    return {state.env for state in found.before.envs if state.rolled_back and state.env in envs}


def _make_episode(
    history: History, found: _RecordedRound, round_number: int, env: int, previous: RecordedEpisode | None
) -> RecordedEpisode:
    """Return an episode. Raises ConfigError if a step is missing, or the loss scale before it."""
    steps, ended, started = found.steps[env], found.ended.get(env), found.started
    recorded = [step.step for step in steps]
    training = found.training.get(env)
    if training is not None and training.origin == "comparison":
        raise ConfigError(
            f"in round {round_number} of {history.path}, env {env} trains a network that is only compared, "
            f"{training.candidate!r}, and takes no decisions; choose the training of another candidate"
        )
    is_whole = ended is not None and env not in found.broken and training is None
    expected = range(1, 1 + (started.steps if is_whole else len(steps)))
    if recorded != list(expected):
        missing = min(set(expected) - set(recorded), default=recorded[-1])
        raise ConfigError(f"step {missing} of env {env} in round {round_number} of {history.path} is missing")
    scale = None
    if started.growth_interval is not None and round_number > 1 and previous is None and training is None:
        last = found.before.envs[env].latest if env < len(found.before.envs) else None
        if last is None or last.step != started.steps or last.loss_scale is None or last.growth_tracker is None:
            raise ConfigError(_unknown_scale(history, round_number, env))
        scale = LossScale(last.loss_scale, last.growth_tracker)
    return RecordedEpisode(started, round_number, env, steps, ended, scale, previous, training)


def _unknown_scale(history: History, round_number: int, env: int) -> str:
    return (
        f"the loss scale of env {env} before round {round_number} is not in {history.path}, so the episode cannot be "
        "simulated; choose a later round"
    )


def _round_events(history: History, round_number: int) -> Iterator[ev.AnyEvent]:
    """Yield the events of a round. Raises ConfigError."""
    for event in history.events(_start_of_round(history, round_number)):
        if isinstance(event, ev.RoundStarted) and event.round != round_number:
            return
        yield event


def _start_of_round(history: History, round_number: int) -> int:
    """Return the position before the first event of a round. Raises ConfigError."""
    try:
        return position_of_number("round", round_number, history)
    except MissingMomentError as error:
        raise ConfigError(str(error)) from None
