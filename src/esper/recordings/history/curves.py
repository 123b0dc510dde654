"""Curves of a run, computed from its events one after another: for the dashboard, Python, TensorBoard and W&B.

The name of a curve is the quantity, a slash, and whose it is: `loss/median`, `loss/env 03`, `entropy/head op`,
`busy/cpu:0`. Quantities of the env steps and of the devices have a point per step, those of episodes and of the policy
one per round. The x axis counts the steps of the run over all rounds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, cast

from esper.common.domain import Stage, StepNumber
from esper.recordings import events as ev
from esper.recordings.history.summary import flat_config
from esper.recordings.state.curves import MEMORY_QUANTITIES, update_values
from esper.recordings.state.series import five_numbers
from esper.recordings.state.state import RunState

POPULATION = ("min", "lower quartile", "median", "upper quartile", "max")
"""Owners of the curves over all envs, in the order of `five_numbers`."""
_ENV_QUANTITIES = {
    "score": "{score}",
    "train_score": "train {score}",
    "loss": "loss",
    "train_loss": "train loss",
    "reward": "reward",
    "value": "predicted return",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
    "parameter_ratio": "parameters",
    "loss_scale": "loss scale",
}
"""Quantities of EnvStepped, keyed by field."""
_DEVICE_QUANTITIES = {
    "busy": "busy",
    "launching": "launching",
    "graphs": "CUDA graphs",
    "utilisation": "utilisation",
    **MEMORY_QUANTITIES,
    "temperature": "temperature",
    "power": "power",
}


class Point(NamedTuple):
    """A value of a curve."""

    curve: str
    """Quantity and owner, with a slash between them."""
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


def split_name(curve: str) -> tuple[str, str]:
    """Return quantity and owner of a curve. A quantity may contain slashes, because tasks name their metrics."""
    quantity, _, owner = curve.rpartition("/")
    return quantity, owner


class RunCurves:
    """Curves of the run whose events it is given.

    Args:
        state: State before the first of these events, if it is not the start of the run.
        planted: Curves of plantings that have earlier points.
        per_env: Also yield the curves of single envs.
    """

    def __init__(self, state: RunState | None = None, *, planted: Sequence[str] = (), per_env: bool = False) -> None:
        self._per_env = per_env
        self.env_curves = EnvCurves(state.started if state else None)
        """Curves of the single envs."""
        self._last_step = state.steps_done if state else 0
        """Number of the last finished step over all rounds."""
        self._ended: list[ev.EpisodeEnded] = []
        self._planted = dict.fromkeys(planted, 0)
        """Number of plantings of this round, keyed by curve."""
        self._begin_round()

    def _begin_round(self) -> None:
        self._stepped: list[ev.EnvStepped] = []
        """Events of the step in progress."""
        self._planted = dict.fromkeys(self._planted, 0)
        self._rolled_back, self._env_steps, self._wall = 0, 0, 0.0

    def points(self, event: ev.AnyEvent) -> Iterator[Point | Note]:
        """Yield what an event adds."""
        match event:
            case ev.EnvStepped():
                self._stepped.append(event)
                if self._per_env:
                    yield from self.env_curves.points(event)
            case ev.RunStarted():
                self.env_curves = EnvCurves(event)
            case ev.PhaseTimed():
                yield from self._of_step(event)
            case ev.DeviceSampled():
                values = (
                    (f"{name}/{event.device}", getattr(event, field)) for field, name in _DEVICE_QUANTITIES.items()
                )
                yield from self._of_values(values, event.time)
            case ev.SeedMoved(after=Stage.GERMINATED.label, blueprint=str()):
                curve = f"planted/{event.blueprint} in {event.slot}"
                self._planted[curve] = self._planted.get(curve, 0) + 1
            case ev.EpisodeEnded():
                self._last_step = self.env_curves.step_of(event)
                self._ended.append(event)
            case ev.GovernorRolledBack():
                self._rolled_back += 1
                yield Note("rollbacks", self._step, f"env {event.env:02d}: {event.reason}", event.time)
            case ev.AnomalyFound():
                yield Note("anomalies", self._step, f"{event.rule}, {event.where}: {event.text}", event.time)
            case ev.PolicyUpdated():
                yield from self._of_round(event.time)
                yield from self._of_values(update_values(event), event.time)
            case ev.RoundStarted():
                yield from self._of_round(event.time)
                self._begin_round()
            case ev.RunEnded():
                yield from self._of_round(event.time)
            case _:
                pass

    @property
    def _step(self) -> int:
        """Number of the step over all rounds that is in progress, or finished last."""
        return self.env_curves.step_of(self._stepped[0]) if self._stepped else self._last_step

    def _of_step(self, event: ev.PhaseTimed) -> Iterator[Point]:
        """Yield the points of a step that all envs have finished."""
        self._last_step = self.env_curves.step_of(event)
        self._env_steps += len(self._stepped)
        columns = self.env_curves.columns(self._stepped)
        readings = [reading for stepped in self._stepped for reading in stepped.slots]
        columns["dependence"] = [reading.dependence for reading in readings if reading.dependence is not None]
        columns["seed gradient norm"] = [reading.grad_norm for reading in readings if reading.grad_norm is not None]
        self._stepped = []
        for quantity, values in columns.items():
            yield from self._of_population(quantity, values, event.time)
        yield Point("step time/total", self._step, event.wall, event.time)
        for phase, seconds in event.phases.items():
            yield Point(f"step time/{phase}", self._step, seconds, event.time)
        self._wall += event.wall

    def _of_round(self, time: float) -> Iterator[Point]:
        """Yield the points of the round whose episodes have ended; none if that has been done."""
        if not self._ended:
            return
        count = len(self._ended)
        for quantity, values in {
            f"final {self.env_curves.score_name}": [episode.score for episode in self._ended],
            "return": [episode.episode_return for episode in self._ended],
        }.items():
            yield from self._of_population(quantity, values, time)
        curves = {
            "fossilized seeds/mean": sum(episode.fossilized for episode in self._ended) / count,
            "culled seeds/mean": sum(episode.culled for episode in self._ended) / count,
            "rollbacks/sum": self._rolled_back,
            **{curve: plantings / count for curve, plantings in self._planted.items()},
        }
        if self._wall:
            curves["env-steps per second/mean"] = self._env_steps / self._wall
        for curve, value in curves.items():
            yield Point(curve, self._step, value, time)
        self._ended = []

    def _of_population(self, quantity: str, values: Sequence[float], time: float) -> Iterator[Point]:
        numbers = five_numbers(values)
        if not math.isnan(numbers.median):
            for owner, value in zip(POPULATION, numbers, strict=True):
                yield Point(f"{quantity}/{owner}", self._step, value, time)

    def _of_values(self, values: Iterable[tuple[str, float | None]], time: float) -> Iterator[Point]:
        """Yield the points of curves that were measured."""
        for curve, value in values:
            if value is not None:
                yield Point(curve, self._step, value, time)


class EnvCurves:
    """Curves of the single envs of a run.

    Args:
        started: Start of the run; None if it is not known yet.
    """

    def __init__(self, started: ev.RunStarted | None) -> None:
        self.score_name = started.score_name if started else "score"
        self.steps = started.steps if started else 0
        """Number of steps of an episode."""
        self._getters = [
            (quantity.format(score=self.score_name), attrgetter(field)) for field, quantity in _ENV_QUANTITIES.items()
        ]

    def step_of(self, event: ev.EnvStepped | ev.PhaseTimed | ev.EpisodeEnded) -> int:
        """Return the number of the step of an event over all rounds."""
        step = self.steps if isinstance(event, ev.EpisodeEnded) else event.step
        return StepNumber(event.round, step).steps_done(self.steps)

    def columns(self, events: Sequence[ev.EnvStepped]) -> dict[str, list[float]]:
        """Return the measured values of a step of some envs, keyed by quantity."""
        columns = {
            quantity: [value for value in map(get, events) if value is not None] for quantity, get in self._getters
        }
        columns["skipped batches"] = [event.skipped_batches for event in events if event.loss_scale is not None]
        parts, metrics = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for event in events:
            for part, value in event.reward_parts.items():
                parts[part].append(value)
            for metric, value in event.metrics.items():
                metrics[metric].append(value)
        of_parts = {f"reward part {part.replace('score', self.score_name)}": values for part, values in parts.items()}
        return columns | of_parts | metrics

    def points(self, event: ev.EnvStepped) -> Iterator[Point]:
        """Yield the points of a step of an env."""
        step, owner = self.step_of(event), f"env {event.env:02d}"
        for quantity, values in self.columns([event]).items():
            for value in values:
                yield Point(f"{quantity}/{owner}", step, value, event.time)


def hyperparameters(config: dict[str, Any]) -> dict[str, bool | float | str]:
    """Return the values of a configuration that are present, keyed like `ppo.gamma`. Lists are texts."""
    values = flat_config(config)
    return {
        key: " ".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else value
        for key, value in values.items()
        if value is not None
    }
