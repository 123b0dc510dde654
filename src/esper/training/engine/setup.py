"""Set-up of a run from its configuration, in the order in which it happens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from queue import SimpleQueue

from esper.common.configuration.config import Config, ConfigError
from esper.common.control import RequestQueue
from esper.common.system.process import RankInfo
from esper.common.system.ranks import SINGLE_RANK, RankGroup, reduce_on_gpu
from esper.networks.tasks.prepare import SavedTask, prepare_task
from esper.recordings.checkpoints.manifest import Manifest, read_manifest
from esper.recordings.files.recorder import check_run_directory
from esper.recordings.state.state import Keyframe, Record, RunState
from esper.training.engine.call_reports import report_calls
from esper.training.engine.checkpointer import Checkpointer
from esper.training.engine.run import Run
from esper.training.engine.run_control import RankedRequestQueue
from esper.training.engine.run_files import RunFiles, open_run_files
from esper.training.engine.run_kind import RunKind
from esper.training.engine.start_events import report_start
from esper.training.engine.start_point import RunOptions, StartPoint
from esper.training.engine.trainer import Trainer
from esper.training.engine.training_state import TrainingState
from esper.training.lanes.device_names import assign_lanes_to_rank, is_auto, is_cpu_lane
from esper.training.lanes.device_stats import cuda_uuid
from esper.training.lanes.devices import resolve_devices, resolve_policy_device, torch_device
from esper.training.lanes.errors import StoppedError
from esper.training.lanes.pool import EnvPool
from esper.training.lanes.spawn import WorkerSpawner


def set_up_run(
    start: StartPoint,
    control: RequestQueue,
    records: SimpleQueue[Record],
    options: RunOptions,
    kind: RunKind,
    *,
    ranks: RankGroup = SINGLE_RANK,
    spawner: WorkerSpawner | None = None,
) -> Run:
    """Set up a run. Everything is validated before anything is written.

    Args:
        start: Where the run starts; the same on all ranks. Its lock is released when the run ends or cannot be set up.
        records: Receives every record, for a dashboard or console.
        ranks: The ranks of the run, which are connected.
        spawner: Starts the workers of CPU lanes; None: a new one.

    Raises:
        ConfigError: This machine cannot satisfy the configuration.
        TaskError: The task cannot be loaded or grown, or its data set is missing or damaged.
        ReadError: The notes on the resumed run cannot be read.
        CheckpointError: The checkpoint is damaged or does not fit the configuration.
        RecordingError: The run directory is not at its path or cannot be written, or another process trains the run.
        RankLostError: Another rank has ended or does not respond.
        StoppedError: A stop was requested before there was anything to save.
    """
    rank_info = RankInfo.from_environment()
    with ExitStack[None]() as opened:
        opened.callback(start.release)
        lanes = _lanes_of_rank(start.config, rank_info)
        saved = ranks.run_on_rank0(lambda: _read_saved(start))  # only it must see the run
        ranks = reduce_on_gpu(ranks, start.config.policy_device)
        _check_gpus(lanes, rank_info, ranks)
        saved_task = SavedTask(str(saved.config["task"]), saved.origin) if saved else None
        prepared = prepare_task(
            start.config, options.task, saved_task, accept_changed=options.accept_changed_task, ranks=ranks
        )
        config = kind.configure(prepared, saved, lanes, control, ranks)
        ranks = ranks.dealt() if kind.deals_envs else ranks
        envs = ranks.env_range(config.envs)
        pool = EnvPool(prepared.task, prepared.profile, prepared.data, lanes, config, envs, spawner)
        opened.callback(pool.close)
        agent = kind.build_agent(config, prepared, ranks, resumes=not start.is_new)

        _begin(control, pool, ranks)
        files = open_run_files(start, config, options.notes, ranks, opened)
        files.hub.subscribe(records)
        report_calls(pool.supervisor, files.hub, ranks)
        state = TrainingState(config=config, pool=pool, agent=agent, hub=files.hub, ranks=ranks, origin=prepared.origin)
        kind.direct(state, prepared, files.directory)
        trainer = _make_trainer(state, control, files, interactive=options.interactive)
        _restore(start, trainer)
        name = options.notes.name if options.notes else ""
        report_start(files, state, kind.identity(start.config, start.command, name), prepared.defaults)
        return Run(trainer, files, kind, opened.pop_all())


def _lanes_of_rank(config: Config, rank_info: RankInfo) -> list[str]:
    """Return the lanes of this rank after checking that all devices exist. Raises ConfigError."""
    lanes = assign_lanes_to_rank(resolve_devices(config.devices), rank_info, leave_out=is_auto(config.devices))
    resolve_policy_device(config.policy_device)
    return lanes


def _read_saved(start: StartPoint) -> Manifest | None:
    """Return the manifest of the checkpoint that a run resumes from; None without one.

    Raises:
        CheckpointError: It is damaged.
        RecordingError: The directory is not at its path any more.
    """
    if start.directory:
        check_run_directory(start.directory)
    return read_manifest(start.checkpoint) if start.checkpoint else None


def _check_gpus(lanes: Sequence[str], rank_info: RankInfo, ranks: RankGroup) -> None:
    """Check that no two ranks use the same GPU. Raises ConfigError on all ranks."""
    own = [f"{rank_info.node_rank}/{cuda_uuid(torch_device(lane))}" for lane in lanes if not is_cpu_lane(lane)]
    ranks_by_gpu: dict[str, list[int]] = {}
    for rank, gpus in enumerate(ranks.all_gather_object(own)):
        for gpu in gpus:
            ranks_by_gpu.setdefault(gpu, []).append(rank)
    for sharing in ranks_by_gpu.values():
        if len(sharing) > 1:
            raise ConfigError(
                f"ranks {' and '.join(map(str, sharing))} would use the same GPU; set CUDA_VISIBLE_DEVICES to another "
                "GPU for each rank, or to all GPUs for every rank"
            )


def _begin(control: RequestQueue, pool: EnvPool, ranks: RankGroup) -> None:
    """Let a stop request wait for the engine from now on. Raises StoppedError if a stop was requested before."""
    control.has_begun = not any(ranks.all_gather_object(control.stop_requested))
    if not control.has_begun:
        raise StoppedError
    pool.supervisor.seconds_since_stop = control.seconds_since_stop


def _make_trainer(state: TrainingState, control: RequestQueue, files: RunFiles, *, interactive: bool) -> Trainer:
    ranks = state.ranks
    return Trainer(
        state,
        control=control if ranks.is_single else RankedRequestQueue(control, ranks),
        checkpointer=Checkpointer(files.path, files.directory, state.config.keep),
        interactive=interactive and ranks.is_single,
    )


def _restore(start: StartPoint, trainer: Trainer) -> None:
    """Restore the state of a run that was begun before. Raises CheckpointError."""
    if start.checkpoint:
        trainer.run_control.restore(start.checkpoint, "command line")
    elif start.directory:  # on rank 0; its events so far stay in the recording as undone events
        trainer.state.hub.rewind(Keyframe.from_state(RunState()))
