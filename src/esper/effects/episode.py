"""Recorded episodes: the decisions and measurements of one env in one round, read from a history."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from esper.config import Config, ConfigError
from esper.history.address import MissingMomentError, position_of_number
from esper.history.history import History
from esper.telemetry import events as ev
from esper.telemetry.codec import encode_json
from esper.telemetry.series import StepTrace

WAIT = "wait"
GERMINATE = "germinate"


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
        identity = started.task, started.seed, started.steps, self.round, self.env, self.loss_scale, started.task_code
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
            blueprint = choices_of(step)["blueprint"]
            seeds.append(RecordedSeed(str(step.target), blueprint, step.step, tuple(about)))
        return seeds


def choices_of(step: ev.EnvStepped | StepTrace) -> dict[str, str]:
    """Return the decision of a step: the choice of each head that the op uses, keyed by head."""
    return {"op": step.op} | {head: choice.choice for head, choice in step.decision.items()}


def read_episode(history: History, round_number: int, env: int) -> RecordedEpisode:
    """Return an episode of a recording.

    Args:
        history: Recording, completely read.
        round_number: Round, from 1.

    Raises:
        ConfigError: The recording does not contain the episode, or not completely.
    """
    episodes = read_round(history, round_number)
    if env not in episodes:
        known = f"envs {min(episodes)} to {max(episodes)}" if episodes else "no steps"
        raise ConfigError(f"env {env} has no step in round {round_number} of {history.path}; the round has {known}")
    return episodes[env]


def read_round(history: History, round_number: int) -> dict[int, RecordedEpisode]:
    """Return the episodes of a round, keyed by env; envs without a recorded step are left out.

    Raises:
        ConfigError: The recording does not contain the round, or a step of it is missing.
    """
    steps: dict[int, list[ev.EnvStepped]] = {}
    ended: dict[int, ev.EpisodeEnded] = {}
    start = _start_of_round(history, round_number)
    started = latest = history.state_at(start).started
    for event in _round_events(history, start, round_number):
        if isinstance(event, ev.EnvStepped):
            steps.setdefault(event.env, []).append(event)
            started = latest
        elif isinstance(event, ev.EpisodeEnded):
            ended[event.env] = event
        elif isinstance(event, ev.RunStarted):
            latest = event
    if started is None:
        raise ConfigError(f"{history.path} has no start of a run, so its episodes cannot be simulated")
    for env, of_env in steps.items():
        missing = set(range(1, len(of_env) + 1)) - {step.step for step in of_env}
        if missing:
            raise ConfigError(f"step {min(missing)} of env {env} in round {round_number} of {history.path} is missing")
    before = _before_round(history, round_number) if started.growth_interval is not None and round_number > 1 else {}
    return {
        env: RecordedEpisode(started, round_number, env, of_env, ended.get(env), *before.get(env, (None, None)))
        for env, of_env in steps.items()
    }


def _before_round(history: History, round_number: int) -> dict[int, tuple[LossScale | None, RecordedEpisode | None]]:
    """Return the loss scale of each env before a round, or its previous episode if that was rolled back."""
    found: dict[int, tuple[LossScale | None, RecordedEpisode | None]] = {}
    broken: set[int] = set()
    for event in _round_events(history, _start_of_round(history, round_number - 1), round_number - 1):
        if isinstance(event, ev.GovernorRolledBack):
            broken.add(event.env)
        elif isinstance(event, ev.EnvStepped) and event.loss_scale is not None and event.growth_tracker is not None:
            found[event.env] = LossScale(event.loss_scale, event.growth_tracker), None
    previous = read_round(history, round_number - 1) if broken else {}
    return found | {env: (None, previous[env]) for env in broken & previous.keys()}


def _round_events(history: History, start: int, round_number: int) -> Iterator[ev.AnyEvent]:
    """Yield the events of a round, from the position of its start on."""
    for event in history.events(start):
        if isinstance(event, ev.RoundStarted) and event.round != round_number:
            return
        yield event


def _start_of_round(history: History, round_number: int) -> int:
    """Return the position before the first event of a round. Raises ConfigError."""
    try:
        return position_of_number("round", round_number, history)
    except MissingMomentError as error:
        raise ConfigError(str(error)) from None
