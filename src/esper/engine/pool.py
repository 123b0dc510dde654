"""The population: envs that are built once, spread over the lanes, and reset in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import IO

from esper.config import Config, ConfigError
from esper.engine.devices import lane_of
from esper.engine.env import Env, Measurement, most_numbers
from esper.engine.faults import FaultError
from esper.engine.lanes import Lane, Later, Numbers, Vectors, open_lanes
from esper.engine.precision import loss_scaler
from esper.engine.worker import Contract, share
from esper.growth.slot import Move
from esper.policy.actions import Action
from esper.tasks.task import Splits, Task


@dataclass(frozen=True)
class Epoch:
    """What one env did in one step, before its slots are told that the epoch is over."""

    moves: list[Move]
    measured: Measurement


class Pool:
    """Envs on lanes, dealt round-robin: the i-th of them lives on lane i mod lanes.

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
        one_stream = config.scaler == "device" and config.amp == "fp16"
        width = most_numbers(len(slots))
        self.lanes = open_lanes(lanes[: len(owned)], splits, len(owned), width, amp=config.amp, one_stream=one_stream)
        self._data = self._hire(task, slots, config)
        scalers = {lane.name: loss_scaler(config.amp, lane.device) for lane in self.lanes}
        self.envs: list[Env] = []
        for index in owned:
            lane = self._lane_of(index)
            scaler = scalers[lane.name] if config.scaler == "device" else loss_scaler(config.amp, lane.device)
            self.envs.append(Env(index, task, lane.splits, slots, config, scaler))
        self._steps = config.steps

    def _hire(self, task: Task, slots: Sequence[str], config: Config) -> IO[bytes] | None:
        """A worker for each CPU lane but the first lane, whose thread has nobody to wait for; the data they share.

        Where processes cannot be handed open files, which is on Windows, there are none.
        """
        beside = [lane for lane in self.lanes[1:] if lane.device.type == "cpu" and os.name == "posix"]
        if not beside:
            return None
        try:
            data = share(beside[0].splits)
            for lane in beside:
                lane.hire(Contract(task, slots, config, data.fileno()))
        except OSError as error:
            for lane in beside:
                lane.close()
            raise ConfigError(
                f"the processes of {', '.join(lane.name for lane in beside)} cannot be started: {error.strerror}; "
                f"--devices {self.lanes[0].name} needs none"
            ) from error
        return data

    def _lane_of(self, env: int) -> Lane:
        return lane_of(env - self._first, self.lanes)

    @property
    def assignment(self) -> list[str]:
        """For each env, the name of its lane."""
        return [self._lane_of(env.index).name for env in self.envs]

    def reset(self, round_index: int) -> list[tuple[float, float]]:
        """Give every env a fresh host; its validation loss and accuracy before any training."""

        def work(env: Env) -> Vectors:
            with self._lane_of(env.index).stopwatch("reset"):
                env.reset(round_index)
                return [env.validate(last=False)]

        return [(loss, accuracy) for [[loss, accuracy]] in self._everywhere(work)]

    def step(self, actions: Sequence[Action | None], round_index: int, step: int) -> list[Epoch | None]:
        """Apply a decision to each env, train it for an epoch and validate it; None for one whose action is None."""
        moves: list[list[Move]] = [[] for _ in self.envs]

        def work(env: Env) -> Vectors | Later:
            place = env.index - self._first
            action = actions[place]
            if action is None:
                return []
            moves[place] = env.apply(action, round_index, step)
            return self._lane_of(env.index).epoch(env, round_index, step, last=step == self._steps - 1)

        rows = self._everywhere(work)
        return [
            Epoch(moved, env.take(*numbers)) if numbers else None
            for env, moved, numbers in zip(self.envs, moves, rows, strict=True)
        ]

    def tick(self) -> list[list[Move]]:
        """End the epoch in every env."""
        return [env.tick() for env in self.envs]

    def test(self) -> list[float]:
        """Accuracy of every env on the test split. For `evaluate` only."""
        return [accuracy for [[accuracy]] in self._everywhere(lambda env: [env.test()])]

    def close(self) -> None:
        """End the lanes' threads and workers."""
        for lane in self.lanes:
            lane.close()
        if self._data:
            self._data.close()

    def _everywhere(self, work: Callable[[Env], Vectors | Later]) -> list[Numbers]:
        """Run `work` for every env, all lanes at once; its vectors as floats, in the order of the envs.

        Raises:
            FaultError: it failed in one of them; no lane is at work any more.
        """
        lanes = len(self.lanes)
        futures = [
            lane.submit([partial(self._work, work, env) for env in self.envs[index::lanes]])
            for index, lane in enumerate(self.lanes)
        ]
        wait(futures)
        for lane, future in zip(self.lanes, futures, strict=True):
            error = future.exception()
            if isinstance(error, Exception):
                raise error if isinstance(error, FaultError) else FaultError.of(error, lane.name)
        found = [future.result() for future in futures]
        return [found[index % lanes][index // lanes] for index in range(len(self.envs))]

    def _work(self, work: Callable[[Env], Vectors | Later], env: Env) -> Vectors | Later:
        """On a lane's thread: `work` for one env, whose faults say which it was."""
        try:
            return work(env)
        except FaultError:
            raise
        except Exception as error:  # noqa: BLE001 (it is raised below, as a FaultError)
            fault = FaultError.of(error, f"env {env.index:02d} on {self._lane_of(env.index).name}")
        raise fault
