"""Pool: all envs of this process, dealt over the lanes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from esper.config import Config, ConfigError
from esper.envs.env import Env, EpochResult, max_result_width
from esper.envs.precision import make_scaler_factory
from esper.growth.lifecycle import StageTransition
from esper.lanes.devices import lane_for_env
from esper.lanes.errors import FaultError
from esper.lanes.lane import DeviceResults, HostResults, Lane, PendingResults, open_lanes
from esper.lanes.worker import WorkerInit, write_shared_splits
from esper.policy.actions import Action
from esper.tasks.task import Splits, Task


@dataclass(frozen=True)
class EnvEpoch:
    """What one env did in one step, before its slots are told that the epoch is over."""

    moves: list[StageTransition]
    measured: EpochResult


class EnvPool:
    """Envs on lanes, dealt round-robin: the i-th of them lives on lane i mod lanes.

    On CPUs that is on paper, since one lane is as good as another: each takes its part of the envs of all of them.

    Args:
        task: what the hosts learn.
        splits: its data, on the CPU.
        lanes: names of the devices.
        slots: names of the slots to use.
        config: of the run.
        owned: numbers of the envs that are this process's; all of the run's, unless it is given.

    Raises:
        ConfigError: the processes of further CPU lanes cannot be started.
    """

    def __init__(
        self,
        task: Task,
        splits: Splits,
        lanes: Sequence[str],
        slots: Sequence[str],
        config: Config,
        owned: range | None = None,
    ) -> None:
        owned = range(config.envs) if owned is None else owned
        self._first = owned.start
        # Envs that share a loss scale depend on each other's every batch: on a GPU they take turns on one stream.
        single_stream = config.scaler == "device" and config.amp == "fp16"
        width = max_result_width(len(slots))
        self.lanes = open_lanes(
            lanes[: len(owned)], splits, len(owned), width, amp=config.amp, single_stream=single_stream
        )
        beside = [lane for lane in self.lanes if lane.device.type == "cpu"]
        self.interchangeable_lanes = beside if len(beside) > 1 and not single_stream else []
        """Lanes any of which may do the work of another."""
        self._data = self._start_workers(task, slots, config)
        scaler_on = {lane: make_scaler_factory(config.amp, config.scaler, lane.device) for lane in self.lanes}
        self.envs: list[Env] = []
        for index in owned:
            lane = self._lane_of(index)
            self.envs.append(Env(index, task, lane.splits, slots, config, scaler_on[lane]()))
        self._steps = config.steps

    def _start_workers(self, task: Task, slots: Sequence[str], config: Config) -> IO[bytes] | None:
        """A worker for each CPU lane but the first lane, whose thread has nobody to wait for; the data they share.

        Where processes cannot be handed open files, which is on Windows, there are none.
        """
        beside = [lane for lane in self.lanes[1:] if lane.device.type == "cpu" and os.name == "posix"]
        if not beside:
            return None
        try:
            data = write_shared_splits(beside[0].splits)
            for lane in beside:
                lane.start_worker(WorkerInit(task, slots, config, data.fileno()))
        except OSError as error:
            for lane in beside:
                lane.close()
            raise ConfigError(
                f"the processes of {', '.join(lane.name for lane in beside)} cannot be started: {error.strerror}; "
                f"--devices {self.lanes[0].name} needs none"
            ) from error
        return data

    def _lane_of(self, env: int) -> Lane:
        return lane_for_env(env - self._first, self.lanes)

    @property
    def lane_by_env(self) -> list[str]:
        """For each env, the name of its lane."""
        return [self._lane_of(env.index).name for env in self.envs]

    def reset(self, round_index: int) -> list[tuple[float, float]]:
        """Give every env a fresh host; its validation loss and accuracy before any training."""

        def start(lane: Lane, envs: Sequence[Env]) -> PendingResults:
            def work(env: Env) -> DeviceResults:
                with lane.stopwatch("reset"):
                    env.reset(round_index)
                    return [env.validate(last=False)]

            return lane.submit(envs, work)

        found = self._run_on_lanes(self.envs, start)
        return [(loss, accuracy) for [[loss, accuracy]] in (found[env.index] for env in self.envs)]

    def step(self, actions: Sequence[Action | None], round_index: int, step: int) -> list[EnvEpoch | None]:
        """Apply a decision to each env, train it for an epoch and validate it; None for one whose action is None."""
        decided = {env.index: action for env, action in zip(self.envs, actions, strict=True) if action is not None}
        moves: dict[int, list[StageTransition]] = {}

        def apply(env: Env) -> None:
            moves[env.index] = env.apply_action(decided[env.index], round_index, step)

        def start(lane: Lane, envs: Sequence[Env]) -> PendingResults:
            return lane.submit_epochs(envs, apply, round_index, step, last=step == self._steps - 1)

        found = self._run_on_lanes([env for env in self.envs if env.index in decided], start)
        return [
            EnvEpoch(moves[env.index], env.unpack_results(*found[env.index])) if env.index in decided else None
            for env in self.envs
        ]

    def validate(self, envs: Sequence[Env]) -> list[tuple[float, float]]:
        """Validation loss and accuracy of some envs as they are."""
        found = self._run_on_lanes(envs, lambda lane, part: lane.submit(part, lambda env: [env.validate(last=False)]))
        return [(loss, accuracy) for [[loss, accuracy, *_]] in (found[env.index] for env in envs)]

    def tick(self) -> list[list[StageTransition]]:
        """End the epoch in every env."""
        return [env.tick() for env in self.envs]

    def test_accuracies(self) -> list[float]:
        """Accuracy of every env on the test split. For `evaluate` only."""
        found = self._run_on_lanes(self.envs, lambda lane, envs: lane.submit(envs, lambda env: [env.test_accuracy()]))
        return [found[env.index][0][0] for env in self.envs]

    def close(self) -> None:
        """End the lanes' threads and workers."""
        for lane in self.lanes:
            lane.close()
        if self._data:
            self._data.close()

    def _run_on_lanes(
        self, envs: Sequence[Env], start: Callable[[Lane, Sequence[Env]], PendingResults]
    ) -> dict[int, HostResults]:
        """Have every lane begin something with its part of the envs, and wait for all; by env.

        Raises:
            FaultError: it failed in one of them; no lane is at work any more.
        """
        pending: list[PendingResults] = []
        found: dict[int, HostResults] = {}
        faults: list[FaultError] = []
        # Workers are sent to before any thread is at work, and read when none is any more: two threads of one
        # interpreter hold each other up.
        for lane, part in sorted(self._assign_envs(envs), key=lambda each: not each[0].has_worker):
            try:
                pending.append(start(lane, part))
            except FaultError as fault:
                faults.append(fault)
        for finish in reversed(pending):
            try:
                found |= finish()
            except FaultError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        return found

    def _assign_envs(self, envs: Sequence[Env]) -> list[tuple[Lane, list[Env]]]:
        """Who does which of the envs: each lane its own, in their order, but for those that share theirs.

        Of these envs the one that took longest goes first, each to the lane that has least to do (Graham, 1969, "Bounds
        on multiprocessing timing anomalies"); to its own if there is a choice.
        """
        parts: dict[Lane, list[Env]] = {lane: [] for lane in self.lanes}
        load = dict.fromkeys(self.interchangeable_lanes, 0.0)
        shared: list[Env] = []
        for env in envs:
            own = self._lane_of(env.index)
            (shared if own in load else parts[own]).append(env)
        for env in sorted(shared, key=lambda env: -env.epoch_seconds):
            own = self._lane_of(env.index)
            lane = min(load, key=lambda lane: (load[lane], lane is not own))
            load[lane] += env.epoch_seconds
            parts[lane].append(env)
        return [(lane, part) for lane, part in parts.items() if part]
