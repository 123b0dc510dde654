"""Harvest of a network from a checkpoint. The run, if it is still training, is not touched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from esper.common.configuration.config import ConfigError
from esper.common.domain import VERSION
from esper.common.score_scale import ScoreScale
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.network import GrowingNetwork
from esper.networks.seeds.tensors import named_tensors
from esper.networks.tasks.prepare import SavedTask, prepare_task
from esper.recordings.checkpoints.catalog import run_directory_of
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.studies.harvest.grown import Grown
from esper.studies.harvest.model import check_is_one_structure, grown_seeds
from esper.studies.harvest.structure import Provenance
from esper.training.checkpoint.files import Checkpoint, read_checkpoint
from esper.training.envs.env_state import load_tensors
from esper.training.envs.hosts import HostFactory
from esper.training.policy.agent import strip_prefix


def harvest_checkpoint(
    path: Path, *, env: int | None = None, task_reference: str | None = None, accept_changed_task: bool = False
) -> Grown:
    """Return the grown network of an env of a checkpoint, with its scores.

    Args:
        env: Index of the env; None: the one with the best validation score.
        task_reference: Reference of the task, needed if it is the user's own code.
        accept_changed_task: Harvest although the code of the user's task has changed since the checkpoint.

    Raises:
        CheckpointError: The checkpoint is damaged or of another version.
        ConfigError: The checkpoint has no such env.
        TaskError: The task cannot be loaded, is not that of the checkpoint, or its data set is missing.
        HarvestError: The weights do not fit the task.
    """
    checkpoint = read_checkpoint(path)
    trained = checkpoint.config
    episodes: list[dict[str, Any]] = checkpoint.state["episodes"]
    prepared = prepare_task(
        msgspec.structs.replace(trained, task=task_reference or trained.task),
        None,
        SavedTask(trained.task, checkpoint.origin),
        accept_changed=accept_changed_task,
    )
    task = prepared.task
    if env is None:
        env = _best_env(episodes, task.score_scale)
    if env is None:
        raise ConfigError(f"{path} has only wide hosts, which have no seeds; harvest another checkpoint")
    if not 0 <= env < len(episodes):
        raise ConfigError(f"--env {env} does not exist: {path} has the envs 0 to {len(episodes) - 1}")
    if _is_wide(episodes[env]):
        raise ConfigError(f"--env {env} of {path} is a wide host, which has no seeds; harvest another env")
    check_is_one_structure(task)
    hosts = HostFactory(task, prepared.profile, torch.device("cpu"), trained.seed)
    network = hosts.build_network(env // trained.envs_per_host, GateConfig())
    _load_network(network, env, checkpoint, path)
    at = checkpoint.step_number
    return Grown.build(
        task,
        prepared.data[0],
        grown_seeds(network.slots),
        named_tensors(network),
        Provenance(
            run=run_directory_of(path).name,
            env=env,
            round=at.round,
            step=at.step,
            policy=trained.policy,
            seed=trained.seed,
            version=VERSION,
        ),
    )


def _is_wide(episode: Mapping[str, Any]) -> bool:
    """Return True if an episode has a wide host, which a growth compares with its answer."""
    return episode["host_width"] != 1.0


def _best_env(episodes: Sequence[Mapping[str, Any]], scale: ScoreScale) -> int | None:
    """Return the index of the env with the best last validation score, the first of several; None if all are wide."""

    def last_quality(env: int) -> float:
        scores = cast("list[float]", episodes[env]["view"]["scores"])
        return scale.gain(scores[-1]) if scores and math.isfinite(scores[-1]) else -math.inf

    return max((env for env, episode in enumerate(episodes) if not _is_wide(episode)), key=last_quality, default=None)


def _load_network(network: GrowingNetwork, env: int, checkpoint: Checkpoint, path: Path) -> None:
    """Restore the seeds and weights of an env. Raises CheckpointError."""
    try:
        for slot, state in zip(network.slots, checkpoint.state["episodes"][env]["slots"], strict=True):
            slot.load_lifecycle_state(state)
        load_tensors(network.state_tensors(), strip_prefix(f"env.{env}.network.", checkpoint.tensors))
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit this version of esper-sanctum: {error!r}") from error
