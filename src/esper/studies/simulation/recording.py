"""RecordingSimulator: simulates what is not known yet about episodes of one recording, and stores the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from esper.common.configuration.config import ConfigError, TaskError
from esper.common.system.process import available_cores
from esper.networks.tasks.loading import load_task
from esper.networks.tasks.prepare import prepare_task
from esper.networks.tasks.registry import get_built_in, is_built_in
from esper.networks.tasks.task import Task
from esper.recordings.effects.change import NOTHING, RECORDED, UNCHANGED, Change
from esper.recordings.effects.episode import RecordedEpisode
from esper.recordings.effects.results import EpisodeResults, Simulation, results_by_software
from esper.recordings.effects.store import EffectStore
from esper.studies.simulation.simulator import SimulationJob, Simulator
from esper.training.lanes.device_names import is_auto, is_cpu_lane
from esper.training.lanes.devices import resolve_devices
from esper.training.policy.loading import is_own_policy
from esper.training.policy.plan import split_plan


class RecordingSimulator:
    """Simulates episodes of one recording with changes.

    Args:
        recording: Run directory, or one file of events.
        episodes: Episodes of the recording, each with its changes.
        repeats: Number of further hosts and data orders on which each episode and each change is played.
        task_reference: Reference of the task; must be given if it is the user's own code.
        devices: Devices of the lanes; `auto`: those of the kind on which the first episode was recorded.
        telemetry_dir: Directory of the runs whose policies can follow a change.
        in_cache: Store the results in the user's cache instead of beside the run.

    Attributes:
        results: Known results of each episode, in the order of the episodes. `simulate` adds to them.
        storage_problem: Why results could not be stored; None if all were.

    Raises:
        ConfigError: A device does not exist, or the task must be named.
        TaskError: The task cannot be loaded, is not that of the run, or its data are missing or damaged.
        OSError: The stored results cannot be read.
    """

    def __init__(
        self,
        recording: Path,
        episodes: Sequence[tuple[RecordedEpisode, Sequence[Change]]],
        *,
        repeats: int = 0,
        task_reference: str | None = None,
        devices: Sequence[str] = ("auto",),
        telemetry_dir: Path,
        in_cache: bool = False,
    ) -> None:
        first, _ = episodes[0]
        config = first.config
        prepared = prepare_task(config, _load_task(config.task, task_reference))
        num_plays = sum(1 + len(changes) for _, changes in episodes) * (1 + repeats)
        lanes = _choose_lanes(devices, first.started.lanes[first.env])[: max(1, num_plays // 2)]
        self._simulator = Simulator(config, prepared, lanes, num_plays, telemetry_dir)
        self._store = EffectStore(recording, in_cache=in_cache)
        known = self._store.read()
        self.results = [results_by_software(episode, known, self._simulator.software) for episode, _ in episodes]
        self._jobs = [
            (SimulationJob(episode=episode, changes=missing, repeat=repeat), results)
            for repeat in range(1 + repeats)
            for (episode, changes), results in zip(episodes, self.results, strict=True)
            if (missing := _missing(changes, results, repeat)) or not results.get(UNCHANGED, repeat)
        ]
        self.storage_problem: str | None = None

    @property
    def num_env_steps(self) -> int:
        """Maximum number of env-steps that are still to be simulated."""
        return sum(job.num_env_steps() for job, _ in self._jobs)

    @property
    def num_changes(self) -> int:
        """Number of changes that are still to be simulated, without the unchanged episodes."""
        return sum(len(job.changes) for job, _ in self._jobs)

    def simulate(self, on_step: Callable[[int], None]) -> Iterator[Simulation]:
        """Simulate what is not known, store each result, and yield it.

        Args:
            on_step: Called after each step with the number of episodes that took it.

        Raises:
            FaultError: A lane or a policy failed.
            ConfigError: A policy or a plan cannot be used, or a choice does not exist.
            CheckpointError: A policy cannot be read.
        """
        results = {(job.episode.round, job.episode.env): results for job, results in self._jobs}
        for found in self._simulator.simulate([job for job, _ in self._jobs], on_step):
            results[found.round, found.env].add(found)
            try:
                self._store.add(found)
            except OSError as error:
                self.storage_problem = f"results cannot be stored: {error.strerror or error}"
            yield found

    def close(self) -> None:
        """Stop the threads and workers of the lanes."""
        self._simulator.close()


def _load_task(name: str, reference: str | None) -> Task:
    """Return the task of a run. Code of the user is imported only if the user named it.

    Raises:
        ConfigError: The task is the user's own code, and was not named.
        TaskError: The task cannot be loaded, or is another one.
    """
    if reference is None:
        if not is_built_in(name):
            raise ConfigError(f"the task {name} of this run is not built in; name it with --task FILE.py")
        return get_built_in(name)
    task = load_task(reference)
    if task.name != name:
        raise TaskError(f"the run was made with the task {name}, not {task.name}")
    return task


def _missing(changes: Sequence[Change], results: EpisodeResults, repeat: int) -> list[Change]:
    """Return the changes without a result, and those that a policy of the user follows: its code may have changed."""
    follows_own = {
        change.key
        for change in changes
        if change.then not in (RECORDED, NOTHING) and is_own_policy(split_plan(change.then)[0])
    }
    return [change for change in changes if change.key in follows_own or not results.get(change, repeat)]


def _choose_lanes(devices: Sequence[str], recorded: str) -> list[str]:
    """Return the names of the lanes. By default an episode of a CPU is simulated on the CPU, for exact results."""
    if is_auto(devices) and is_cpu_lane(recorded):
        return [f"cpu:{index}" for index in range(available_cores())]
    return resolve_devices(devices)
