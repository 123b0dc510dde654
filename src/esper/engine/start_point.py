"""Where a run starts: new, again, or from a checkpoint. Importing this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from esper.config import Config


class RunCompleteError(Exception):
    """The run that `--resume` names has done all of its rounds. The message is one sentence for the user."""


@dataclass(frozen=True)
class StartPoint:
    """Start of a run.

    Attributes:
        config: Configuration of the run.
        checkpoint: Checkpoint to resume from, in the directory of its run; None: the run starts with its first round.
        directory: Directory of a run without a checkpoint that was killed and starts again; None: a new one.
        command: Digest of the command that begins the run, see `command_digest`; None: that of `config`.
    """

    config: Config
    checkpoint: Path | None = None
    directory: Path | None = None
    command: str | None = None

    @property
    def is_new(self) -> bool:
        """True unless the run resumes from a checkpoint."""
        return self.checkpoint is None
