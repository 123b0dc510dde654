"""The loop: observe, act, apply, train, validate, reward, tick, emit; then honour requests."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import compress

from torch import Tensor

from esper.config import Config
from esper.control import Control
from esper.engine import report
from esper.engine.agents import Agent
from esper.engine.attendant import Attendant
from esper.engine.env import Measurement
from esper.engine.episode import Episode, Outcome, measure_again
from esper.engine.faults import FaultError, RunFailedError
from esper.engine.gauges import read_gauges
from esper.engine.memory import Ledger
from esper.engine.moment import Moment
from esper.engine.pool import Epoch, Pool
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
        self.pool = pool
        self.agent = agent
        self.hub = hub
        self.attendant = Attendant(self, control, saver, attended=attended)
        self.episodes = [Episode(env, config) for env in pool.envs]
        self.round = 0
        """Rounds completed; the index of the one in progress."""
        self.step = 0
        """Steps completed of the round in progress."""
        self.times = StepTimes([lane.stopwatch for lane in pool.lanes])
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
                self.attendant.hold_failed(fault)
            elif self.step and not self.attendant.honour_requests():
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
        with self.times("act"):
            choices = self.agent.act(self.step, [episode.view for episode in self.episodes])
        actions = [
            None if episode.out else choice.action for episode, choice in zip(self.episodes, choices, strict=True)
        ]
        epochs = self.pool.step(actions, self.round, self.step)
        with self.times("reward"):
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
        with self.times("telemetry"):
            self._emit_step(choices, epochs, outcomes, ticked)
        self._emit_timing([epoch and epoch.measured for epoch in epochs])

    def _begin_round(self) -> None:
        for episode, (loss, accuracy) in zip(self.episodes, self.pool.reset(self.round), strict=True):
            episode.begin(loss, accuracy)
        self.attendant.remember()
        self.agent.begin_round(self.noise())
        self.hub.announce(ev.RoundStarted(round=self.round + 1))

    def noise(self) -> Tensor:
        """All the random numbers of this round's decisions, [E, T, H]."""
        envs = [env.index for env in self.pool.envs]
        return decision_noise(self.config.seed, envs, self.config.steps, self.round)

    def _end_round(self) -> None:
        for episode in self.episodes:
            self.hub.emit(report.episode_ended(episode, self.round + 1))
        with self.times("update"):
            order = generator(self.config.seed, "minibatches", self.round)
            learned = self.agent.learn([episode.view for episode in self.episodes], self.round, order)
        if learned is not None:
            returns = self.ranks.collect([episode.episode_return for episode in self.episodes])
            mean_return = statistics.fmean(value for share in returns for value in share)
            self.hub.announce(report.policy_updated(learned, mean_return, self.round + 1))
        self.round, self.step = self.round + 1, 0
        self.attendant.checkpoint_round()

    # Telemetry

    @property
    def at(self) -> Moment:
        """Round and step as people count them, of the last step completed."""
        return Moment.after(self.round, self.step, self.config.steps)

    def _emit_step(
        self,
        choices: Sequence[Choice],
        epochs: Sequence[Epoch | None],
        outcomes: Sequence[Outcome | None],
        ticked: Sequence[list[Move]],
    ) -> None:
        at, emit = self.at, self.hub.emit
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
        wall, phases, busy = self.times.lap()
        with self.times("telemetry"):
            lanes = len(self.pool.lanes)
            owners = self._ledger.by_lane(self.round)
            processes = {lane.process for lane in self.pool.lanes}
            readings = {lane.device: read_gauges(lane.device, processes) for lane in self.pool.lanes}
            for index, lane in enumerate(self.pool.lanes):
                reading, its, shares = readings[lane.device], measured[index::lanes], lane in self.pool.sharing
                told = report.device_sampled(lane, reading, busy[index], its, owners[index], shares=shares)
                self.hub.emit(told)
            at = self.at
            self.hub.announce(ev.PhaseTimed(round=at.round, step=at.step, wall=wall, phases=phases))
