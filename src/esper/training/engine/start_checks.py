"""Checks of a configuration before torch is imported, which takes seconds. `Run` checks the rest."""

from __future__ import annotations

from pathlib import Path

import msgspec

from esper.common.configuration.config import Config, ConfigError
from esper.common.system.disk import check_writable
from esper.common.system.process import RankInfo
from esper.networks.tasks import TaskError, check_task_reference
from esper.recordings.checkpoints.catalog import find_checkpoint, is_checkpoint
from esper.recordings.checkpoints.manifest import CheckpointError, config_from_manifest, read_manifest
from esper.recordings.files.recorder import RecordingError
from esper.recordings.files.runs import last_write_time, resolve_run
from esper.recordings.files.segments import ReadError
from esper.training.lanes.device_names import (
    early_lanes,
    lanes_with_worker,
    max_device_counts,
    resolve_name,
    sees_own_gpus,
)
from esper.training.policy.loading import POLICY_NAMES, PRETRAINED, check_policy_reference, is_own_policy

SETUP_ERRORS = (ConfigError, TaskError, CheckpointError, ReadError, RecordingError)
"""Errors of a run that cannot be set up, each with one sentence for the user."""


def resolve_policy(config: Config) -> Config:
    """Return the configuration of a new run after checking its policy, without importing code of the user.

    A run or checkpoint whose trained policy acts becomes the absolute path of the checkpoint, and its `[ppo]` table
    that of the run. A checkpoint of the new run then has all that the policy needs.

    Raises:
        ConfigError: The policy is unknown, or the plan is missing, wrong, or not used.
        ReadError: The run does not exist.
        CheckpointError: It has no checkpoint, or a damaged one.
    """
    if (path := _find_trained_policy(config)) is not None:
        trained = config_from_manifest(read_manifest(path), path)
        config = msgspec.structs.replace(config, policy=str(path.absolute()), ppo=trained.ppo)
    check_policy_reference(config.policy, config.plan, config.steps)
    return config


def _find_trained_policy(config: Config) -> Path | None:
    """Return the checkpoint that `--policy` names by itself or by its run; None if it names no run."""
    if config.policy in POLICY_NAMES:
        return None
    try:
        path = resolve_run(config.policy, Path(config.telemetry_dir))
    except ReadError:
        if is_own_policy(config.policy):
            return None
        raise
    is_run = path.is_dir() and (is_checkpoint(path) or last_write_time(path) is not None)
    return find_checkpoint(path) if is_run or not is_own_policy(config.policy) else None


def check_start(config: Config, rank_info: RankInfo, *, is_new: bool) -> list[str]:
    """Check devices, ranks, task, slots and, for a new run on rank 0, the telemetry directory.

    Returns:
        Those lanes of this rank that are known to need a worker process.

    Raises:
        ConfigError: This machine cannot satisfy the configuration.
        TaskError: The task name is unknown.
        ReadError: The run of `--init-policy` does not exist.
        CheckpointError: It has no checkpoint.
    """
    check_task_reference(config.task)
    if is_new:
        _check_init_policy(config)
    lanes = early_lanes(config.devices, rank_info)
    resolve_name("--policy-device", config.policy_device, max_device_counts())
    _check_ranks(config, rank_info)
    for name in config.slots:
        if config.slots.count(name) > 1:
            raise ConfigError(f"--slots names {name!r} more than once")
    if is_new and rank_info.rank == 0:  # the others do not write to it, and may be on another machine
        directory = config.telemetry_dir
        try:
            check_writable(Path(directory))
        except OSError as error:
            raise ConfigError(f"cannot record to {directory}: {error.strerror}; give another --telemetry-dir") from None
    return lanes_with_worker((lanes or [])[: len(rank_info.env_range(config.envs))])


def _check_init_policy(config: Config) -> None:
    """Check `--init-policy`. Raises ConfigError, ReadError or CheckpointError."""
    if not config.init_policy:
        return
    if config.policy != "ppo":
        raise ConfigError(f"--init-policy is for --policy ppo, not --policy {config.policy}")
    if config.init_policy != PRETRAINED:
        find_checkpoint(resolve_run(config.init_policy, Path(config.telemetry_dir)))


def _check_ranks(config: Config, rank_info: RankInfo) -> None:
    """Raise ConfigError if the configuration does not suit the number of ranks."""
    if config.envs < rank_info.world_size:
        raise ConfigError(
            f"--envs {config.envs} is too few for {rank_info.world_size} ranks; each rank needs at least one env"
        )
    gpus = [f"cuda:{index}" for index in range(max_device_counts()["cuda"] or 0)]
    share_gpus = rank_info.local_world_size > 1 and not sees_own_gpus(gpus, rank_info)
    if share_gpus and config.policy_device.startswith("cuda"):
        raise ConfigError(
            f"--policy-device {config.policy_device} cannot serve {rank_info.local_world_size} ranks on one machine; "
            "use --policy-device cpu, or start torchrun with --nproc-per-node 1"
        )
