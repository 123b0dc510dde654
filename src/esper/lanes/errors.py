"""Exceptions for failed steps and runs. They carry text only and hold no references to the failed step's tensors."""

from __future__ import annotations

import traceback

import torch

INCONSISTENT_STATE = "a step failed partway; restore a checkpoint or end the run"
"""Reason why a run that is held by a fault ignores other requests."""
_OOM_MESSAGE = "can't allocate memory"
"""Part of the message of the plain RuntimeError that torch raises if CPU memory is exhausted."""


class RunFailedError(Exception):
    """A run ended early. The message is one sentence for users: what happened, and how to resume."""


class FaultError(Exception):
    """A step failed partway; the training state is inconsistent.

    Args:
        text: Message for users: where it failed, and why.
        traceback_text: Traceback of a bug; None if memory ran out.
    """

    def __init__(self, text: str, traceback_text: str | None) -> None:
        super().__init__(text)
        self.traceback_text = traceback_text

    @classmethod
    def from_exception(cls, error: Exception, where: str) -> FaultError:
        """Describe an error that occurred in `where`, such as `env 03 on cpu:0`.

        Raise the result after the exception handler, not in it: its context would keep the tensors of the failed step.
        """
        lines = str(error).strip().splitlines()
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or _OOM_MESSAGE in str(error):
            return cls(f"{where} ran out of memory" + (f": {lines[0]}" if lines else ""), None)
        what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        return cls(f"{where} failed: {what}", "".join(traceback.format_exception(error)))
