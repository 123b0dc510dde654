"""The loop: rounds of steps, an update after each round, requests between steps."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

from esper.common.control import RequestQueue
from esper.common.domain import Stage, StepNumber
from esper.common.seeding import make_generator
from esper.common.system.ranks import RankLostError
from esper.common.user_code.references import user_errors
from esper.networks.seeds.lifecycle import StageTransition
from esper.recordings import events as ev
from esper.recordings.files.recorder import RecordingError
from esper.training.engine import reporter
from esper.training.engine.checkpointer import Checkpointer
from esper.training.engine.episode import begin_episodes
from esper.training.engine.memory_accountant import MemoryAccountant
from esper.training.engine.run_control import RunController
from esper.training.engine.step import StepResult, first_group_size, play_steps, tick_slots
from esper.training.engine.training_state import TrainingState
from esper.training.envs.epoch_result import EpochResult
from esper.training.lanes.device_stats import read_device_stats
from esper.training.lanes.errors import FaultError, RunFailedError

MAIN_PROCESS = "main process"
"""Name of this process among those of the run."""


class Trainer:
    """Trains a population of envs and the policy that grows them.

    Args:
        interactive: Hold the run on a fault and wait for the user. If False, a fault ends the run.
    """

    def __init__(
        self,
        state: TrainingState,
        *,
        control: RequestQueue,
        checkpointer: Checkpointer,
        interactive: bool = False,
    ) -> None:
        self.state = state
        self.run_control = RunController(state, control, checkpointer, interactive=interactive)
        self._memory = MemoryAccountant(state.pool, state.agent)
        self._measured: list[EpochResult | None] = []
        """Results of the envs in the step in progress."""
        self._step_started = 0.0
        """Time of `perf_counter` at the start of this step."""

    def run(self) -> str:
        """Train until the last round or a stop request.

        Returns:
            `done` or `stopped`.

        Raises:
            FaultError: A step failed and no checkpoint was restored.
            RunFailedError: The last checkpoint cannot be written.
        """
        state = self.state
        while not state.has_ended:
            fault = _fault_of(self._play_on)
            if fault is not None and state.director.recover(fault):
                state.round, state.step = state.round + 1, 0
            elif fault is not None:
                self.run_control.hold_after_fault(fault)
            elif state.step and not self.run_control.handle_requests():
                return "stopped"
        return "done"

    def _play_on(self) -> None:
        """Play steps until all envs have done the same one, or end the round."""
        state = self.state
        if state.step == state.config.steps:
            self._end_round()
            return
        if state.step == 0:
            self._begin_round()
        self._measured, self._step_started = [], time.perf_counter()
        if state.director.is_lockstep:
            self._play_in_lockstep()
            return
        play_steps(
            state.pool,
            state.episodes,
            state.agent,
            range(state.step, state.config.steps),
            self._end_of_group,
            after_step=self._end_step,
            may_go_ahead=self.run_control.may_go_ahead,
            stopwatch=state.timer,
        )

    def _play_in_lockstep(self) -> None:
        """Play a step, and end it when all ranks have played it. Raises the first FaultError of any rank.

        After a fault in the second of the two groups of the envs of all ranks, the step of the first one still counts,
        as in a run of one rank.
        """
        state = self.state
        results: list[StepResult] = []
        first = first_group_size(state.config.envs)
        fault = self._first_fault(
            lambda: play_steps(
                state.pool,
                state.episodes,
                state.agent,
                range(state.step, state.step + 1),
                results.append,
                first_group=sum(episode.env.index < first for episode in state.episodes),
                stopwatch=state.timer,
            )
        )
        for result in results:
            if fault is None or result.episodes[-1].env.index < first <= (fault.env or 0):
                self._end_of_group(result)
        if fault is not None:
            raise fault
        self._end_step(False)

    def _first_fault(self, work: Callable[[], None]) -> FaultError | None:
        """Call a function, and return its fault; in lockstep, that of the first env of any rank."""
        fault = _fault_of(work)
        if not self.state.director.is_lockstep:
            return fault
        faults = [found for found in self.state.ranks.all_gather_object(fault) if found]
        return min(faults, key=lambda found: -1 if found.env is None else found.env, default=None)

    def _end_step(self, is_ahead: bool) -> bool:
        """Report a step of all envs. Return True while a group is ahead, so that no request can be handled."""
        state = self.state
        state.step += 1
        self._emit_timing()
        if state.director.end_step(time.perf_counter() - self._step_started):
            state.step = state.config.steps
            return False
        self._measured, self._step_started = [], time.perf_counter()
        return is_ahead

    def _end_of_group(self, result: StepResult) -> None:
        """Record the step of a group of envs."""
        state = self.state
        state.director.observe(result.episodes)
        with state.timer("reward"):
            views = [episode.view for episode in result.episodes]
            state.agent.record_rewards(result.step, views, result.rewards, result.broke_down)
            ticked = tick_slots(result.episodes)
        with state.timer("telemetry"):
            self._emit_step(result, ticked)
        state.director.end_group(result)
        self._measured += [epoch and epoch.measured for epoch in result.epochs]

    def _begin_round(self) -> None:
        state = self.state
        keys = state.director.begin_round()
        if fault := self._first_fault(lambda: begin_episodes(state.pool, state.episodes, keys)):
            raise fault
        self.run_control.stash_round_start()
        state.agent.begin_round(state.decision_uniforms())
        state.hub.emit_global(ev.RoundStarted(round=state.round + 1))
        state.director.start_round()
        if state.pool.is_family:
            for episode in state.episodes:
                state.hub.emit(reporter.episode_started(episode.env, state.round + 1))

    def _end_round(self) -> None:
        state = self.state
        state.director.end_round()
        for episode in state.episodes:
            if episode.view.step:  # else the env had no episode in this round
                state.hub.emit(reporter.episode_ended(episode, state.round + 1))
        with state.timer("update"):
            order = make_generator(state.config.seed, "minibatches", state.round)
            learned = state.agent.learn([episode.view for episode in state.episodes], state.round, order)
        if learned is not None:
            returns = state.ranks.all_gather_object([episode.episode_return for episode in state.episodes])
            mean_return = statistics.fmean(value for of_rank in returns for value in of_rank)
            state.hub.emit_global(reporter.policy_updated(learned, mean_return, state.round + 1))
        state.round, state.step = state.round + 1, 0
        self.run_control.checkpoint_if_due()

    # Telemetry

    def _emit_step(self, result: StepResult, ticked: Sequence[list[StageTransition]]) -> None:
        state = self.state
        at = StepNumber.from_completed(state.round, result.step + 1, state.config.steps)
        emit = state.hub.emit
        for index, episode in enumerate(result.episodes):
            epoch, outcome = result.epochs[index], result.outcomes[index]
            if epoch is None or outcome is None:
                continue
            env = episode.env.index
            emit(reporter.env_stepped(episode, result.decisions[index], epoch.measured, outcome.reward_parts, at))
            if outcome.breakdown:
                emit(reporter.rolled_back(outcome, env, at))
            for move in [*epoch.moves, *outcome.removed, *ticked[index]]:
                episode.culled += move.after is Stage.CULLED
                emit(reporter.seed_moved(move, env, at))
            for slot, gate in episode.changed_gates():
                emit(reporter.gate_changed(gate, slot.name, env, at))

    def _emit_timing(self) -> None:
        state = self.state
        wall, phases, loads = state.timer.end_step()
        with state.timer("telemetry"):
            by_lane = state.pool.group_by_lane(self._measured)
            owners = self._memory.bytes_by_lane(state.round)
            processes = {
                pid: MAIN_PROCESS if pid == os.getpid() else f"worker of {lane.name}"
                for lane in state.pool.lanes
                for pid in lane.pids
            }
            readings = {lane.device: read_device_stats(lane.device, processes) for lane in state.pool.lanes}
            for index, lane in enumerate(state.pool.lanes):
                reading = readings[lane.device]
                readings[lane.device] = reading._replace(processes=())  # once for the lanes of a device
                for text in lane.take_notices():
                    state.hub.emit(ev.Logged(severity="warning", text=f"{lane.name}: {text}"))
                state.hub.emit(
                    reporter.device_sampled(
                        lane,
                        reading,
                        loads[index],
                        by_lane[index],
                        owners[index],
                        is_interchangeable=lane in state.pool.interchangeable_lanes,
                    )
                )
            at = state.step_number
            state.hub.emit_global(ev.PhaseTimed(round=at.round, step=at.step, wall=wall, phases=phases))


def _fault_of(work: Callable[[], None]) -> FaultError | None:
    """Call a function, and return the fault if it fails, also for other errors than FaultError.

    Raises:
        RankLostError, RecordingError, RunFailedError: The run cannot continue.
    """
    try:
        work()
    except (RankLostError, RecordingError, RunFailedError):
        raise
    except FaultError as fault:
        return fault
    except user_errors() as error:  # any error holds or ends the run, with its message
        return FaultError.from_exception(error, "the engine")
    return None
