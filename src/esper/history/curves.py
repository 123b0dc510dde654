"""Curves of a run for TensorBoard and W&B, computed from its events one after another.

The curves over all envs come first, one point per round. The curves of single envs, one point per step, are optional:
there are dozens per env. The x axis counts the steps of the run over all rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from esper.domain import StepNumber
from esper.history.summary import flat_config
from esper.telemetry import events as ev
from esper.telemetry.series import min_median_max

ALL = "all envs"
"""Group of the curves over all envs. It sorts before the other groups."""
_ENV_VALUES = ("score", "loss", "train_score", "train_loss", "reward", "value", "grad_norm", "parameter_ratio")
_UPDATE_VALUES = (
    "kl",
    "entropy",
    "explained_variance",
    "within_step_explained_variance",
    "clip_fraction",
    "policy_loss",
    "value_loss",
    "grad_norm",
    "learning_rate",
)
_DEVICE_VALUES = ("busy", "launching", "allocated", "reserved", "utilisation", "temperature", "power")


class Point(NamedTuple):
    """A value of a curve."""

    curve: str
    """Group and name, with a slash between them."""
    step: int
    value: float
    time: float
    """Wall-clock time in seconds since the epoch."""


class Note(NamedTuple):
    """A sentence about a moment of the run: an anomaly or a rollback."""

    title: str
    step: int
    text: str
    time: float


class RunCurves:
    """Curves of the run whose events it is given.

    Args:
        per_env: Also yield the curves of single envs.
    """

    def __init__(self, *, per_env: bool = False) -> None:
        self._per_env = per_env
        self._score_name = "score"
        self._steps = 0
        """Number of steps of an episode."""
        self._step = 0
        """Number of the last step over all rounds."""
        self._ended: list[ev.EpisodeEnded] = []
        self._rolled_back = 0
        self._env_steps = 0
        self._wall = 0.0
        self._devices: dict[str, ev.DeviceSampled] = {}

    def points(self, event: ev.AnyEvent) -> Iterator[Point | Note]:
        """Yield what an event adds."""
        match event:
            case ev.RunStarted():
                self._score_name, self._steps = event.score_name, event.steps
            case ev.EnvStepped():
                self._step = StepNumber(event.round, event.step).steps_done(self._steps)
                self._env_steps += 1
                if self._per_env:
                    yield from self._of_env(event)
            case ev.PhaseTimed():
                self._wall += event.wall
            case ev.DeviceSampled():
                self._devices[event.device] = event
            case ev.EpisodeEnded():
                self._ended.append(event)
            case ev.GovernorRolledBack():
                self._rolled_back += 1
                yield Note("rollbacks", self._step, f"env {event.env:02d}: {event.reason}", event.time)
            case ev.AnomalyFound():
                yield Note("anomalies", self._step, f"{event.rule}, {event.where}: {event.text}", event.time)
            case ev.PolicyUpdated():
                yield from self._of_round(event.time)
                yield from self._of_update(event)
            case ev.RoundStarted() | ev.RunEnded():
                yield from self._of_round(event.time)
            case _:
                pass

    def _of_round(self, time: float) -> Iterator[Point]:
        """Yield the points of the round whose episodes have ended; none if that has been done."""
        if not self._ended:
            return
        curves: dict[str, float] = {}
        for name, values in {
            self._score_name: [episode.score for episode in self._ended],
            "return": [episode.episode_return for episode in self._ended],
            "parameters": [episode.parameter_ratio for episode in self._ended],
        }.items():
            finite = [value for value in values if math.isfinite(value)]
            if finite:
                curves |= dict(
                    zip((f"{name} min", f"{name} median", f"{name} max"), min_median_max(finite), strict=True)
                )
        curves["fossilized"] = sum(episode.fossilized for episode in self._ended) / len(self._ended)
        curves["culled"] = sum(episode.culled for episode in self._ended) / len(self._ended)
        curves["rollbacks"] = self._rolled_back
        if self._wall:
            curves["env-steps per second"] = self._env_steps / self._wall
        for curve, value in curves.items():
            yield Point(f"{ALL}/{curve}", self._step, value, time)
        for device, sample in self._devices.items():
            yield from self._of_fields(f"device {device}", sample, _DEVICE_VALUES)
        self._ended, self._rolled_back, self._env_steps, self._wall = [], 0, 0, 0.0

    def _of_update(self, event: ev.PolicyUpdated) -> Iterator[Point]:
        yield from self._of_fields("policy", event, _UPDATE_VALUES)
        for head, reading in event.heads.items():
            yield from self._of_fields(f"policy head {head}", reading, ("grad_norm", "entropy"), event.time)

    def _of_env(self, event: ev.EnvStepped) -> Iterator[Point]:
        group = f"env {event.env:02d}"
        yield from self._of_fields(group, event, _ENV_VALUES)
        for name, value in event.reward_parts.items():
            yield Point(f"{group}/reward {self._curve_name(name)}", self._step, value, event.time)
        for name, value in event.metrics.items():
            yield Point(f"{group}/{name}", self._step, value, event.time)

    def _of_fields(
        self, group: str, source: Any, fields: tuple[str, ...], time: float | None = None
    ) -> Iterator[Point]:
        for field in fields:
            value = getattr(source, field)
            if value is not None:
                curve = f"{group}/{self._curve_name(field)}"
                yield Point(curve, self._step, value, source.time if time is None else time)

    def _curve_name(self, field: str) -> str:
        """Return the name of a field, with that of the task's score in place of "score"."""
        return field.replace("score", self._score_name)


def hyperparameters(config: dict[str, Any]) -> dict[str, bool | float | str]:
    """Return the values of a configuration that are present, keyed like `ppo.gamma`. Lists are texts."""
    values = flat_config(config)
    return {
        key: " ".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else value
        for key, value in values.items()
        if value is not None
    }
