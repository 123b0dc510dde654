"""RunKind: what a run is for. The engine trains every kind alike, and asks it where kinds differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from esper.common.configuration.config import Config
from esper.common.control import RequestQueue
from esper.common.system.ranks import RankGroup
from esper.networks.tasks.prepare import PreparedTask
from esper.recordings.checkpoints.manifest import Manifest
from esper.recordings.files.run_directory import RunDirectory
from esper.training.engine.agent_factory import build_agent
from esper.training.engine.training_state import TrainingState
from esper.training.engine.unfinished import command_digest
from esper.training.policy.agent import Agent


class RunKind:
    """An ordinary run: its policy acts in all envs for a number of rounds. Other kinds derive from this one."""

    stage: str | None = None
    """Work before the run begins, in words; None without it."""
    deals_envs = False
    """True to deal the envs to the ranks one after another, for rounds in which only the first envs play."""
    continuation: str | None = None
    """How to continue a run of this kind that failed, in words; None: resume it from its newest checkpoint."""

    def identity(self, config: Config, command: str | None, name: str) -> dict[str, Any]:
        """Return fields for `run.json`, which a later command compares to find the run.

        Args:
            config: Configuration as the user gave it.
            command: Digest of the command that began a resumed run; None for a new one.
            name: Name of the run; empty without one.
        """
        return {"command": command or command_digest(config, name)}

    def configure(
        self,
        prepared: PreparedTask,
        saved: Manifest | None,  # noqa: ARG002 (other kinds use it, and the next two)
        lanes: Sequence[str],  # noqa: ARG002
        control: RequestQueue,  # noqa: ARG002
        ranks: RankGroup,  # noqa: ARG002
    ) -> Config:
        """Return the configuration of the run, for its task. All ranks call it together.

        Args:
            saved: The checkpoint from which the run resumes; None for a new one.
            lanes: Lanes of this rank.

        Raises:
            TaskError: The task does not suit the kind.
            ConfigError: A setting does not.
            StoppedError: A stop was requested meanwhile.
        """
        return prepared.config

    def build_agent(self, config: Config, prepared: PreparedTask, ranks: RankGroup, *, resumes: bool) -> Agent:
        """Return the agent that acts in the envs. Raises ConfigError, CheckpointError or ReadError."""
        profile = prepared.profile
        return build_agent(config, profile.sites, profile.blueprints, ranks, resumes=resumes)

    def direct(self, state: TrainingState, prepared: PreparedTask, run: RunDirectory | None) -> None:
        """Give a run another director than the ordinary one.

        Args:
            run: The run directory; None on a rank that does not have it.
        """

    def finish(self) -> None:
        """Compute the results of a run that has ended. All ranks call it together. Raises FaultError."""
