"""The loop: observe, act, apply, train, validate, reward, tick, emit; then honour requests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

from torch import Tensor

from esper.config import Config
from esper.control import Control, Kind, Request
from esper.engine import report
from esper.engine.agents import Agent
from esper.engine.env import Measurement
from esper.engine.episode import Episode, Outcome
from esper.engine.manifest import CheckpointError
from esper.engine.memory import Ledger
from esper.engine.pool import Epoch, Pool
from esper.engine.report import Moment
from esper.engine.saving import Saver
from esper.engine.seeding import decision_noise, generator
from esper.engine.stopwatch import Stopwatch
from esper.growth.slot import Move
from esper.growth.stages import Stage
from esper.policy.actions import Choice
from esper.ranks import ALONE, Ranks
from esper.telemetry import events as ev
from esper.telemetry.hub import Hub

P = ParamSpec("P")


class Trainer:
    """Trains a population, and the policy that grows it.

    Args:
        config: of the run.
        pool: the envs.
        agent: who decides.
        hub: where events go.
        control: where requests come from.
        saver: writes and reads checkpoints.
        ranks: that train together, each the envs of its own pool.
    """

    def __init__(
        self,
        *,
        config: Config,
        pool: Pool,
        agent: Agent,
        hub: Hub,
        control: Control,
        saver: Saver,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.pool = pool
        self.agent = agent
        self.hub = hub
        self.control = control
        self.saver = saver
        self.episodes = [Episode(env, config) for env in pool.envs]
        self.round = 0
        """Rounds completed; the index of the one in progress."""
        self.step = 0
        """Steps completed of the round in progress."""
        self._single_step: str | None = None
        """Who asked for one step and no more; None while nobody did."""
        self._stopwatch = Stopwatch()
        self._ledger = Ledger(pool.lanes, pool.envs, agent)
        self._since = time.perf_counter()

    def run(self) -> str:
        """Train to the end, or until told to stop. Returns done or stopped."""
        while self.round < self.config.rounds:
            if self.step == self.config.steps:
                self._end_round()
                continue
            if self.step == 0:
                self._begin_round()
            self._step()
            if not self._honour_requests():
                return "stopped"
        return "done"

    def _step(self) -> None:
        with self._stopwatch("act"):
            choices = self.agent.act([episode.view for episode in self.episodes])
        actions = [
            None if episode.out else choice.action for episode, choice in zip(self.episodes, choices, strict=True)
        ]
        epochs = self.pool.step(actions, self.round, self.step)
        with self._stopwatch("reward"):
            outcomes = [
                episode.record(choice.action, epoch) if epoch else None
                for episode, choice, epoch in zip(self.episodes, choices, epochs, strict=True)
            ]
            rewards = [sum(outcome.parts.values()) if outcome else None for outcome in outcomes]
            self.agent.reward(self.step, rewards, [bool(outcome and outcome.panic) for outcome in outcomes])
            ticked = self.pool.tick()
        self.step += 1
        with self._stopwatch("telemetry"):
            self._emit_step(choices, epochs, outcomes, ticked)

    def _begin_round(self) -> None:
        for episode, (loss, accuracy) in zip(self.episodes, self.pool.reset(self.round), strict=True):
            episode.begin(loss, accuracy)
        self.agent.begin_round(self.noise())
        self.hub.announce(ev.RoundStarted(round=self.round + 1))

    def noise(self) -> Tensor:
        """All the random numbers of this round's decisions, [E, T, H]."""
        envs = [env.index for env in self.pool.envs]
        return decision_noise(self.config.seed, envs, self.config.steps, self.round)

    def _end_round(self) -> None:
        for episode in self.episodes:
            self.hub.emit(report.episode_ended(episode, self.round + 1))
        with self._stopwatch("update"):
            order = generator(self.config.seed, "minibatches", self.round)
            learned = self.agent.learn([episode.view for episode in self.episodes], self.round, order)
        if learned is not None:
            returns = self.ranks.collect([episode.episode_return for episode in self.episodes])
            mean_return = statistics.fmean(value for share in returns for value in share)
            self.hub.announce(report.policy_updated(learned, mean_return, self.round + 1))
        self.round, self.step = self.round + 1, 0
        every = self.config.checkpoint_every
        if self.round == self.config.rounds:
            self._checkpoint("end")
        elif every and self.round % every == 0:
            self._attempt(self._checkpoint, "schedule")

    # Telemetry

    @property
    def _at(self) -> Moment:
        """Round and step as people count them, of the last step completed."""
        if self.step == 0:
            return Moment(self.round, self.config.steps)
        return Moment(self.round + 1, self.step)

    def _emit_step(
        self,
        choices: Sequence[Choice],
        epochs: Sequence[Epoch | None],
        outcomes: Sequence[Outcome | None],
        ticked: Sequence[list[Move]],
    ) -> None:
        at, emit = self._at, self.hub.emit
        for index, episode in enumerate(self.episodes):
            epoch, outcome = epochs[index], outcomes[index]
            if epoch is None or outcome is None:
                continue
            env = episode.env.index
            emit(report.env_stepped(episode, choices[index], epoch.measured, outcome.parts, at))
            if outcome.panic:
                emit(report.rolled_back(outcome, env, at))
            for move in [*epoch.moves, *outcome.removed, *ticked[index]]:
                episode.culled += move.after is Stage.CULLED
                emit(report.seed_moved(move, env, at))
            for number, slot in enumerate(episode.env.network.slots):
                refusal = episode.new_refusal(number)
                if refusal:
                    emit(report.gate_refused(*refusal, slot.name, env, at))
        self._emit_timing([epoch and epoch.measured for epoch in epochs])

    def _emit_timing(self, measured: Sequence[Measurement | None]) -> None:
        now = time.perf_counter()
        wall, self._since = now - self._since, now
        phases = self._stopwatch.take()
        lanes = len(self.pool.lanes)
        owners = self._ledger.by_lane(self.round)
        for index, lane in enumerate(self.pool.lanes):
            seconds = lane.stopwatch.take()
            busy = min(sum(seconds.values()) / wall, 1.0)
            self.hub.emit(report.device_sampled(lane, busy, measured[index::lanes], owners[index]))
            for phase, spent in seconds.items():
                # Lanes run side by side: the mean over them is a phase's part of the wall time.
                phases[phase] = phases.get(phase, 0.0) + spent / lanes
        at = self._at
        self.hub.announce(ev.PhaseTimed(round=at.round, step=at.step, wall=wall, phases=phases))

    # Requests

    def _honour_requests(self) -> bool:
        """Do what was asked for since the last step; hold while paused. False if the run is to end."""
        paused = self._single_step is not None
        if self._single_step is not None:
            self._tell_paused(self._single_step)
            self._single_step = None
        while True:
            request = self.control.take(timeout=0.2 if paused else 0.0)
            if request is not None:
                self._tell_request(request, paused=paused)
            match request:
                case None if not paused:
                    return True
                case Request(Kind.STOP, origin):
                    self._checkpoint(origin)
                    return False
                case Request(Kind.ABANDON):
                    return False
                case Request(Kind.CHECKPOINT, origin):
                    self._attempt(self._checkpoint, origin)
                case Request(Kind.RESTORE, origin, str(path)):
                    if self._attempt(self.restore, Path(path), origin):
                        return True
                case Request(Kind.PAUSE, origin) if not paused:
                    paused = True
                    self._tell_paused(origin)
                case Request(Kind.STEP, origin) if paused:
                    self._single_step = origin
                    self._since = time.perf_counter()
                    return True
                case Request(Kind.RESUME, origin) if paused:
                    self.hub.announce(ev.Resumed(round=self._at.round, step=self._at.step, origin=origin))
                    self._since = time.perf_counter()
                    return True
                case _:
                    """Nothing to do: a pause while paused, a resume while running."""

    def _tell_request(self, request: Request, *, paused: bool) -> None:
        ignored = None
        if request.kind is Kind.PAUSE and paused:
            ignored = "the run is paused already"
        elif request.kind in {Kind.RESUME, Kind.STEP} and not paused:
            ignored = "the run is not paused"
        self.hub.announce(
            ev.ControlRequested(kind=request.kind.value, origin=request.origin, path=request.path, ignored=ignored)
        )

    def _tell_paused(self, origin: str) -> None:
        self.hub.announce(ev.Paused(round=self._at.round, step=self._at.step, origin=origin))
        self.hub.flush()

    def _attempt(self, work: Callable[P, None], *args: P.args, **options: P.kwargs) -> bool:
        """Do what the run can do without; what stands in its way is told, and the run goes on as it was."""
        try:
            work(*args, **options)
        except (OSError, CheckpointError) as error:
            self.hub.announce(ev.Logged(severity="error", text=str(error)))
            return False
        return True

    def _checkpoint(self, origin: str) -> None:
        """Raises OSError if it cannot be written."""
        start = time.perf_counter()
        with self._stopwatch("checkpoint"):
            path, size = self.saver.save(self)
        self._tell_checkpoint(path, size, time.perf_counter() - start, origin)
        self.hub.flush()

    def restore(self, path: Path, origin: str) -> None:
        """Go back, or on, to a checkpoint of this run; the events after it are undone.

        Raises:
            CheckpointError: it is damaged, or of another run.
        """
        self.hub.restore(self.saver.restore(self, path))
        self._since = time.perf_counter()
        size = self.ranks.first(lambda: sum(file.stat().st_size for file in path.iterdir()))
        self._tell_checkpoint(path, size, None, origin)
        at = self._at
        self.hub.announce(ev.Resumed(round=at.round, step=at.step, origin=origin, checkpoint=str(path)))

    def _tell_checkpoint(self, path: Path, size: int, seconds: float | None, origin: str) -> None:
        at = self._at
        self.hub.announce(
            ev.CheckpointSaved(round=at.round, step=at.step, path=str(path), bytes=size, seconds=seconds, origin=origin)
        )
