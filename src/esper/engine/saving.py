"""What of a running trainer goes into a checkpoint, and how it comes out again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from esper.engine.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from esper.engine.env import Env
from esper.engine.manifest import CheckpointError, check_compatible, checkpoint_path, keep_newest
from esper.named_tensors import below
from esper.telemetry.codec import decoder, encode
from esper.telemetry.state import Keyframe

if TYPE_CHECKING:
    from esper.engine.trainer import Trainer


class Saver:
    """Writes and reads the checkpoints of one run.

    Args:
        run: its directory.
        keep: how many to keep.
    """

    def __init__(self, run: Path, keep: int) -> None:
        self._run = run
        self._keep = keep

    def save(self, trainer: Trainer) -> tuple[Path, int]:
        """Write everything that the run needs to go on from here; its place and its size in bytes."""
        now = _capture(trainer)
        path = checkpoint_path(self._run, now.round, now.step)
        checkpoint = Checkpoint(
            config=trainer.config,
            round=now.round,
            step=now.step,
            state=now.state,
            tensors=now.tensors,
            telemetry=encode(trainer.hub.snapshot()),
        )
        size = write_checkpoint(path, checkpoint)
        keep_newest(self._run, self._keep)
        return path, size

    def restore(self, trainer: Trainer, path: Path) -> Keyframe:
        """Put a trainer into the state that a checkpoint holds; the telemetry as of then.

        Raises:
            CheckpointError: the checkpoint is damaged, or does not fit the trainer, which is as it was then.
        """
        saved = read_checkpoint(path)
        check_compatible(saved.config, trainer.config, path)
        before = _capture(trainer)
        before = before._replace(tensors={name: value.clone() for name, value in before.tensors.items()})
        try:
            keyframe = decoder(Keyframe).decode(saved.telemetry)
            keyframe.open()
            _install(trainer, _Position(saved.round, saved.step, saved.state, saved.tensors))
        except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as error:
            _install(trainer, before)
            raise CheckpointError(f"{path} does not fit this version of the program: {error!r}") from error
        return keyframe


class _Position(NamedTuple):
    """Where a trainer stands, and all that its next step depends on."""

    round: int
    step: int
    state: dict[str, Any]
    tensors: Mapping[str, Tensor]


def _capture(trainer: Trainer) -> _Position:
    """The tensors are the live ones: the next step changes them."""
    tensors = {f"agent.{name}": value for name, value in trainer.agent.tensors().items()}
    for env in trainer.pool.envs:
        tensors |= {f"env.{env.index}.{name}": value for name, value in _env_tensors(env).items()}
    state = {
        "agent": trainer.agent.snapshot(),
        "episodes": [episode.snapshot() for episode in trainer.episodes],
        "scalers": {str(env.index): env.scaler.snapshot() for env in trainer.pool.envs if env.scaler},
    }
    return _Position(trainer.round, trainer.step, state, tensors)


def _install(trainer: Trainer, position: _Position) -> None:
    trainer.round, trainer.step = position.round, position.step
    trainer.agent.restore(position.state["agent"], below("agent.", position.tensors), trainer.noise())
    for episode, state in zip(trainer.episodes, position.state["episodes"], strict=True):
        episode.restore(state)
        _load_env(episode.env, below(f"env.{episode.env.index}.", position.tensors))
        if episode.env.scaler:
            episode.env.scaler.restore(position.state["scalers"][str(episode.env.index)])


def _env_tensors(env: Env) -> dict[str, Tensor]:
    named = {f"network.{name}": value for name, value in env.network.state_dict().items()}
    for owner, optimizer in _optimizers(env).items():
        for index, state in optimizer.state_dict()["state"].items():
            named[f"momentum.{owner}.{index}"] = state["momentum_buffer"]
    return named


def _load_env(env: Env, named: Mapping[str, Tensor]) -> None:
    """The env's slots have been restored: its modules and optimizers are those that the tensors belong to."""
    env.network.load_state_dict(below("network.", named))
    for owner, optimizer in _optimizers(env).items():
        parameters = optimizer.param_groups[0]["params"]
        for index, buffer in below(f"momentum.{owner}.", named).items():
            optimizer.state[parameters[int(index)]]["momentum_buffer"].copy_(buffer)


def _optimizers(env: Env) -> dict[str, torch.optim.SGD]:
    return {"host": env.host_optimizer} | {
        f"slot{index}": optimizer for index, optimizer in env.slot_optimizers.items()
    }
