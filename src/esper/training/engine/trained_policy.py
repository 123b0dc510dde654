"""Trained policies: those of checkpoints, and the one that ships in the package."""

# safetensors does not declare its types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import safetensors
import safetensors.torch
from torch import Tensor

from esper.common.configuration.config import Config, PPOConfig
from esper.common.system.disk import write_replaced
from esper.recordings.checkpoints.catalog import CHECKPOINTS_DIR, find_checkpoint
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.files.runs import resolve_run
from esper.training.checkpoint.files import Checkpoint, read_checkpoint
from esper.training.policy.agent import strip_prefix
from esper.training.policy.loading import PRETRAINED

SHIPPED = Path(__file__).parents[1] / "policy" / "generalist-v2" / "policy.safetensors"
"""The policy that `pretrained` names. Its model card is beside it."""
_PARTS = ("network.", "observations.", "returns.")
"""Beginnings of the names of the tensors that a policy needs to act."""


@dataclass(frozen=True)
class TrainedPolicy:
    """A trained PPO policy, which can act on any task.

    Attributes:
        name: Its checkpoint, or `pretrained`, for messages.
        ppo: Hyperparameters of its training.
        tensors: Its network and normalisers, keyed by the names of `PPOAgent.state_tensors`.
    """

    name: str
    ppo: PPOConfig
    tensors: Mapping[str, Tensor]


def read_trained_policy(reference: str, telemetry_dir: Path) -> TrainedPolicy:
    """Read a policy.

    Args:
        reference: `pretrained`, a checkpoint, or a run, whose newest checkpoint is read.

    Raises:
        CheckpointError: There is no checkpoint, it is damaged or of another version, or it has no PPO policy.
        ReadError: The run does not exist.
    """
    if reference == PRETRAINED:
        return read_policy_file(SHIPPED, PRETRAINED)
    path = find_checkpoint(resolve_run(reference, telemetry_dir))
    return policy_of(read_checkpoint(path), path)


def read_policy_file(path: Path, name: str) -> TrainedPolicy:
    """Read a policy from a file of `write_policy_file`.

    Args:
        name: Its name, for messages.
    """
    with safetensors.safe_open(path, framework="pt") as file:
        ppo = msgspec.json.decode(file.metadata()["ppo"], type=PPOConfig)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    return TrainedPolicy(name, ppo, tensors)


def write_policy_file(policy: TrainedPolicy, path: Path) -> None:
    """Write a policy to a file, such as the one that ships in the package. Raises OSError."""
    metadata = {"ppo": msgspec.json.encode(policy.ppo).decode()}
    tensors = {name: value.contiguous() for name, value in policy.tensors.items()}
    write_replaced(path, safetensors.torch.save(tensors, metadata))


def policy_of(checkpoint: Checkpoint, path: Path) -> TrainedPolicy:
    """Return the policy of a checkpoint.

    Args:
        path: Its path, for messages.

    Raises:
        CheckpointError: The checkpoint has no PPO policy.
    """
    trained = checkpoint.config
    if trained.policy != "ppo":
        raise CheckpointError(
            f"{path} was made with --policy {trained.policy} and has no PPO policy; give a checkpoint made with "
            "--policy ppo"
        )
    tensors = strip_prefix("agent.", checkpoint.tensors)
    needed = {name: value for name, value in tensors.items() if name.startswith(_PARTS)}
    return TrainedPolicy(str(path), trained.ppo, needed)


def policy_label(reference: str) -> str:
    """Return the name of a policy for display: the name of a file, or `RUN/round-00003-step-0006` for a checkpoint."""
    path = Path(reference)
    is_of_run = path.parent.name == CHECKPOINTS_DIR and path.parent.parent.name
    return f"{path.parent.parent.name}/{path.name}" if is_of_run else path.name


def initial_policy(config: Config) -> TrainedPolicy | None:
    """Return the policy that `--init-policy` names; None without one.

    Raises:
        CheckpointError: See `read_trained_policy`; or its network has another width than that of the run.
    """
    if not config.init_policy:
        return None
    policy = read_trained_policy(config.init_policy, Path(config.telemetry_dir))
    if policy.ppo.hidden != config.ppo.hidden:
        raise CheckpointError(
            f"--init-policy {config.init_policy} has a network of width {policy.ppo.hidden}; add --ppo.hidden "
            f"{policy.ppo.hidden}"
        )
    return policy
