"""Checks of a configuration before torch is imported, which takes seconds. `Run` checks the rest."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from esper.checkpoint.catalog import find_checkpoint, is_checkpoint
from esper.config import Config, ConfigError
from esper.lanes.device_names import (
    early_lanes,
    lanes_with_worker,
    max_device_counts,
    resolve_name,
    sees_own_gpus,
)
from esper.policy.loading import PRETRAINED, check_policy_reference
from esper.process import RankInfo
from esper.recording.runs import resolve_run
from esper.tasks import check_task_reference


def check_start(config: Config, rank_info: RankInfo, *, is_new: bool) -> list[str]:
    """Check devices, ranks, policy, task, slots and, for a new run, the telemetry directory.

    Returns:
        Those lanes of this rank that are known to need a worker process.

    Raises:
        ConfigError: This machine cannot satisfy the configuration.
        TaskError: The task name is unknown.
        ReadError: The run of `--init-policy` does not exist.
        CheckpointError: It has no checkpoint.
    """
    check_task_reference(config.task)
    if not is_checkpoint(Path(config.policy)):
        check_policy_reference(config.policy, config.plan, config.steps)
    if is_new:
        _check_init_policy(config)
    lanes = early_lanes(config.devices, rank_info)
    resolve_name("--policy-device", config.policy_device, max_device_counts())
    _check_ranks(config, rank_info)
    for name in config.slots:
        if config.slots.count(name) > 1:
            raise ConfigError(f"--slots names {name!r} more than once")
    if is_new:
        _check_writable(Path(config.telemetry_dir))
    return lanes_with_worker((lanes or [])[: len(rank_info.env_range(config.envs))])


def _check_init_policy(config: Config) -> None:
    """Check `--init-policy`.

    Raises:
        ConfigError: Another policy than ppo was chosen.
        ReadError: The run does not exist.
        CheckpointError: It has no checkpoint.
    """
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


def _check_writable(directory: Path) -> None:
    """Raise ConfigError if a directory cannot be created or written."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        reason = errno.EEXIST if existing == directory else errno.ENOTDIR
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = errno.EACCES
    else:
        return
    raise ConfigError(f"cannot record to {directory}: {os.strerror(reason)}")
