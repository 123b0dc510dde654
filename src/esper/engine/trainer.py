"""The loop: observe, act, apply, train, validate, reward, tick, emit; then honour requests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor

from esper.config import Config
from esper.control import Control, Kind, Request
from esper.engine import report
from esper.engine.agents import Agent
from esper.engine.checkpoint import Checkpoint
from esper.engine.env import Measurement
from esper.engine.episode import Episode, Outcome, measure_again
from esper.engine.faults import HALF_DONE, FaultError, RunFailedError
from esper.engine.gauges import read_gauges
from esper.engine.manifest import CheckpointError
from esper.engine.memory import Ledger
from esper.engine.pool import Epoch, Pool
from esper.engine.report import Moment
from esper.engine.saving import Saver
from esper.engine.seeding import decision_noise, generator
from esper.engine.stopwatch import StepTimes
from esper.growth.slot import Move
from esper.growth.stages import Stage
from esper.policy.actions import Choice
from esper.ranks import ALONE, RankLostError, Ranks
from esper.telemetry import events as ev
from esper.telemetry.hub import Hub
from esper.telemetry.recorder import RecordingError

NOBODY = frozenset({"end", "signal", "dashboard"})
"""Origins of the end of a run at which nobody is there who could try again."""


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
        attended: whether somebody sees a fault and can say what to do; a fault ends any other run.
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
        attended: bool = False,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.attended = attended
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
        self._times = StepTimes([lane.stopwatch for lane in pool.lanes])
        self._ledger = Ledger(pool.lanes, pool.envs, agent)

    def run(self) -> str:
        """Train to the end, or until told to stop. Returns done or stopped.

        Raises:
            FaultError: a step failed, and nobody has gone back to a checkpoint.
            RunFailedError: the checkpoint of the end cannot be written.
        """
        while self.round < self.config.rounds:
            fault = self._advance()
            if fault is not None:
                self._hold_failed(fault)
            elif self.step and not self._honour_requests():
                return "stopped"
        return "done"

    def _advance(self) -> FaultError | None:
        """The next step, or the end of a round; what made it fail."""
        try:
            if self.step == self.config.steps:
                self._end_round()
            else:
                if self.step == 0:
                    self._begin_round()
                self._step()
        except (RankLostError, RecordingError, RunFailedError):
            raise
        except FaultError as fault:
            return fault
        except Exception as error:  # noqa: BLE001 (whatever it is, the run is held or ended with its words)
            return FaultError.of(error, "the engine")
        return None

    def _step(self) -> None:
        with self._times("act"):
            choices = self.agent.act(self.step, [episode.view for episode in self.episodes])
        actions = [
            None if episode.out else choice.action for episode, choice in zip(self.episodes, choices, strict=True)
        ]
        epochs = self.pool.step(actions, self.round, self.step)
        with self._times("reward"):
            outcomes = [
                episode.record(choice.action, epoch) if epoch else None
                for episode, choice, epoch in zip(self.episodes, choices, epochs, strict=True)
            ]
            rewards = [sum(outcome.parts.values()) if outcome else None for outcome in outcomes]
            broken = [bool(outcome and outcome.panic) for outcome in outcomes]
            self.agent.reward(self.step, rewards, broken)
            measure_again(self.pool, list(compress(self.episodes, broken)))
            ticked = self.pool.tick()
            for episode in self.episodes:
                episode.resize()
        self.step += 1
        with self._times("telemetry"):
            self._emit_step(choices, epochs, outcomes, ticked)
        self._emit_timing([epoch and epoch.measured for epoch in epochs])

    def _begin_round(self) -> None:
        for episode, (loss, accuracy) in zip(self.episodes, self.pool.reset(self.round), strict=True):
            episode.begin(loss, accuracy)
        if self.ranks.alone:
            self.saver.remember(self)
        self.agent.begin_round(self.noise())
        self.hub.announce(ev.RoundStarted(round=self.round + 1))

    def noise(self) -> Tensor:
        """All the random numbers of this round's decisions, [E, T, H]."""
        envs = [env.index for env in self.pool.envs]
        return decision_noise(self.config.seed, envs, self.config.steps, self.round)

    def _end_round(self) -> None:
        for episode in self.episodes:
            self.hub.emit(report.episode_ended(episode, self.round + 1))
        with self._times("update"):
            order = generator(self.config.seed, "minibatches", self.round)
            learned = self.agent.learn([episode.view for episode in self.episodes], self.round, order)
        if learned is not None:
            returns = self.ranks.collect([episode.episode_return for episode in self.episodes])
            mean_return = statistics.fmean(value for share in returns for value in share)
            self.hub.announce(report.policy_updated(learned, mean_return, self.round + 1))
        self.round, self.step = self.round + 1, 0
        every = self.config.checkpoint_every
        if self.round == self.config.rounds:
            self._checkpoint_to_leave("end")
        elif every and self.round % every == 0:
            self._attempt(lambda: self._checkpoint("schedule"))

    # Telemetry

    @property
    def _at(self) -> Moment:
        """Round and step as people count them, of the last step completed."""
        return self._moment(self.round, self.step)

    def _moment(self, rounds: int, steps: int) -> Moment:
        """After so many rounds, and so many steps of the next."""
        if steps == 0:
            return Moment(rounds, self.config.steps if rounds else 0)
        return Moment(rounds + 1, steps)

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
                news = episode.gate_news(number)
                if news:
                    emit(report.gate(news, slot.name, env, at))

    def _emit_timing(self, measured: Sequence[Measurement | None]) -> None:
        wall, phases, busy = self._times.lap()
        with self._times("telemetry"):
            lanes = len(self.pool.lanes)
            owners = self._ledger.by_lane(self.round)
            processes = {lane.process for lane in self.pool.lanes}
            readings = {lane.device: read_gauges(lane.device, processes) for lane in self.pool.lanes}
            for index, lane in enumerate(self.pool.lanes):
                reading, its, shares = readings[lane.device], measured[index::lanes], lane in self.pool.sharing
                told = report.device_sampled(lane, reading, busy[index], its, owners[index], shares=shares)
                self.hub.emit(told)
            at = self._at
            self.hub.announce(ev.PhaseTimed(round=at.round, step=at.step, wall=wall, phases=phases))

    # Faults

    def _hold_failed(self, fault: FaultError) -> None:
        """Save what the step had not touched, and hold the run until somebody goes back to a checkpoint.

        Raises:
            FaultError: nobody is there, or who is there ends the run.
        """
        unsaved = self._attempt(lambda: self._rescue("fault"))
        if not self.attended:
            raise fault
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self._tell_failed(fault, unsaved)
        while True:
            match request := self.control.take(timeout=0.2):
                case None:
                    pass
                case Request(Kind.CHECKPOINT | Kind.STOP, origin) if unsaved:
                    self._tell_request(request)
                    unsaved = self._attempt(lambda: self._rescue(origin))
                    if request.kind is Kind.STOP and (not unsaved or origin in NOBODY):
                        raise fault
                    self._tell_failed(fault, unsaved)
                case Request(Kind.RESTORE, origin, str(path)):
                    self._tell_request(request)
                    if not self._attempt(lambda: self.restore(Path(path), origin)):
                        return
                case Request(Kind.STOP | Kind.ABANDON):
                    self._tell_request(request)
                    raise fault
                case _:
                    self._tell_request(request, ignored=HALF_DONE)

    def _tell_failed(self, fault: FaultError, unsaved: str | None) -> None:
        reason, cause = (f"{fault}; {unsaved}", "unsaved") if unsaved else (str(fault), "fault")
        self._tell_paused("engine", reason, cause)

    def _rescue(self, origin: str) -> None:
        """Write the checkpoint of the beginning of the round. Raises CheckpointError."""
        start = time.perf_counter()
        rescued = self.saver.rescue()
        if rescued is not None:
            self._tell_checkpoint(*rescued, time.perf_counter() - start, origin)
            self._attempt(lambda: self.saver.keep_newest(self.ranks))

    def _hold_unrecorded(self) -> str | None:
        """Why the run cannot go on being recorded, if it cannot. One of several ranks goes on until memory is full."""
        failure = self.hub.failure if self.ranks.alone else None
        if failure is not None:
            self._tell_paused("engine", f"{failure}; the run goes on when it can be recorded again", "recording")
        return failure

    # Requests

    def _honour_requests(self) -> bool:
        """Do what was asked for since the last step; hold while paused. False if the run is to end."""
        paused = self._single_step is not None
        if self._single_step is not None:
            self._tell_paused(self._single_step)
            self._single_step = None
        unrecorded = self._hold_unrecorded()
        while True:
            if unrecorded and self.hub.flush():
                unrecorded = None
                if paused:
                    self._tell_paused("engine")
                else:
                    self._tell_resumed("engine")
            request = self.control.take(timeout=0.2 if paused or unrecorded else 0.0)
            if request is not None:
                self._tell_request(request, ignored=_vain(request, paused=paused, unrecorded=bool(unrecorded)))
            match request:
                case None if not paused and not unrecorded:
                    return True
                case Request(Kind.STOP, origin):
                    if self._checkpoint_to_leave(origin):
                        return False
                    paused = True
                case Request(Kind.ABANDON):
                    return False
                case Request(Kind.CHECKPOINT, origin):
                    self._attempt(lambda: self._checkpoint(origin))
                case Request(Kind.RESTORE, origin, str(path)):
                    if not self._attempt(lambda: self.restore(Path(path), origin)):
                        return True
                case Request(Kind.PAUSE, origin) if not paused:
                    paused = True
                    self._tell_paused(origin)
                case Request(Kind.STEP, origin) if paused and not unrecorded:
                    self._single_step = origin
                    self._times.restart()
                    return True
                case Request(Kind.RESUME, origin) if paused and not unrecorded:
                    self._tell_resumed(origin)
                    return True
                case _:
                    """Nothing to do: a pause while paused, a resume while running."""

    def _tell_request(self, request: Request, ignored: str | None = None) -> None:
        self.hub.announce(
            ev.ControlRequested(kind=request.kind.value, origin=request.origin, path=request.path, ignored=ignored)
        )

    def _tell_paused(self, origin: str, reason: str | None = None, cause: str | None = None) -> None:
        at = self._at
        self.hub.announce(ev.Paused(round=at.round, step=at.step, origin=origin, reason=reason, cause=cause))
        self.hub.flush()

    def _tell_resumed(self, origin: str, checkpoint: str | None = None) -> None:
        at = self._at
        self.hub.announce(ev.Resumed(round=at.round, step=at.step, origin=origin, checkpoint=checkpoint))
        self._times.restart()

    def _attempt(self, work: Callable[[], None]) -> str | None:
        """Do what the run can do without. What stands in its way is told and returned; the run goes on as it was."""
        try:
            work()
        except CheckpointError as error:
            self.hub.announce(ev.Logged(severity="error", text=str(error)))
            return str(error)
        return None

    def _checkpoint(self, origin: str) -> None:
        """Raises CheckpointError if it cannot be written."""
        start = time.perf_counter()
        with self._times("checkpoint"):
            saved = self.saver.save(self)
        self._tell_checkpoint(*saved, time.perf_counter() - start, origin)
        self._attempt(lambda: self.saver.keep_newest(self.ranks))
        self.hub.flush()

    def _checkpoint_to_leave(self, origin: str) -> bool:
        """Write the checkpoint that ends the run. False if it cannot be written, and somebody is there to be told.

        Raises:
            RunFailedError: nobody is there, or it is the end of the run.
        """
        try:
            self._checkpoint(origin)
        except CheckpointError as error:
            if origin in NOBODY or not self.attended:
                raise RunFailedError(str(error)) from None
            self._tell_paused("engine", f"{error}; make room and try again, or leave without one", "checkpoint")
            return False
        return True

    def restore(self, path: Path, origin: str) -> None:
        """Go back, or on, to a checkpoint of this run; the events after it are undone.

        Later checkpoints are of a future that will not be: they are set aside.

        Raises:
            CheckpointError: it is damaged, or of another run.
        """
        restored = self.saver.restore(self, path)
        self._single_step = None
        self.hub.restore(restored.telemetry)
        self._tell_checkpoint(path, restored.bytes, restored.checkpoint, None, "restore", restored.written)
        self._tell_resumed(origin, str(path))
        self._attempt(lambda: self.saver.undo_later(self))

    def _tell_checkpoint(
        self, path: Path, size: int, saved: Checkpoint, seconds: float | None, origin: str, written: float | None = None
    ) -> None:
        at = self._moment(saved.round, saved.step)
        self.hub.announce(report.checkpoint_saved(path, size, saved, seconds, origin, written, at))


def _vain(request: Request, *, paused: bool, unrecorded: bool) -> str | None:
    """Why a request changes nothing; None if it does."""
    if request.kind is Kind.PAUSE and paused:
        return "the run is paused already"
    if request.kind in {Kind.RESUME, Kind.STEP} and unrecorded:
        return "the run cannot be recorded: it goes on by itself when it can"
    if request.kind in {Kind.RESUME, Kind.STEP} and not paused:
        return "the run is not paused"
    return None
