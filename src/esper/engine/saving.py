"""What of a running trainer goes into a checkpoint, and how it comes out again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from esper.engine.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from esper.engine.env import Env
from esper.engine.manifest import CheckpointError, check_compatible, checkpoint_path, keep_newest
from esper.named_tensors import below
from esper.telemetry.codec import decoder, encode
from esper.telemetry.state import Keyframe, Record

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
        tensors = {f"agent.{name}": value for name, value in trainer.agent.tensors().items()}
        for env in trainer.pool.envs:
            tensors |= {f"env.{env.index}.{name}": value for name, value in _env_tensors(env).items()}
        state = {
            "agent": trainer.agent.snapshot(),
            "episodes": [episode.snapshot() for episode in trainer.episodes],
        }
        path = checkpoint_path(self._run, trainer.round, trainer.step)
        config = msgspec.to_builtins(trainer.config)
        telemetry = encode(trainer.hub.snapshot())
        size = write_checkpoint(path, Checkpoint(config, trainer.round, trainer.step, state, tensors, telemetry))
        keep_newest(self._run, self._keep)
        return path, size

    def restore(self, trainer: Trainer, path: Path) -> Keyframe:
        """Put a trainer into the state that a checkpoint holds; the telemetry as of then.

        Raises:
            CheckpointError: the checkpoint is damaged, or does not fit the trainer's configuration.
        """
        saved = read_checkpoint(path)
        check_compatible(saved.config, trainer.config, path)
        keyframe = decoder(Record).decode(saved.telemetry)
        try:
            trainer.round, trainer.step = saved.round, saved.step
            trainer.agent.restore(saved.state["agent"], below("agent.", saved.tensors), trainer.noise())
            for episode, state in zip(trainer.episodes, saved.state["episodes"], strict=True):
                episode.restore(state)
                _load_env(episode.env, below(f"env.{episode.env.index}.", saved.tensors))
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not fit this version of the program: {error!r}") from error
        if not isinstance(keyframe, Keyframe):
            raise CheckpointError(f"{path} does not fit this version of the program: its telemetry is no keyframe")
        return keyframe


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
        optimizer.state.clear()
        parameters = optimizer.param_groups[0]["params"]
        for index, buffer in below(f"momentum.{owner}.", named).items():
            parameter = parameters[int(index)]
            optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)


def _optimizers(env: Env) -> dict[str, torch.optim.SGD]:
    return {"host": env.host_optimizer} | {
        f"slot{index}": optimizer for index, optimizer in env.slot_optimizers.items()
    }
