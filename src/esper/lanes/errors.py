"""Errors of a step that failed; they hold no tensors of it."""

from __future__ import annotations

import traceback

import torch

INCONSISTENT_STATE = (
    "the step that failed is half done: only going back to a checkpoint, or ending the run, is possible"
)
"""Why a run that is held by a fault does nothing else."""
_OOM_MESSAGE = "can't allocate memory"
"""In what torch says when it is a CPU whose memory does not suffice: a RuntimeError as others."""


class RunFailedError(Exception):
    """A run that ended before its time. One sentence for people: what happened, and how to go on."""


class FaultError(Exception):
    """Work of a step that broke off: the state is half of one step and half of the next.

    Args:
        text: for people: where, and what.
        trace: the traceback, where the program is to blame; None where memory ran out.
    """

    def __init__(self, text: str, trace: str | None) -> None:
        super().__init__(text)
        self.traceback_text = trace

    @classmethod
    def from_exception(cls, error: Exception, where: str) -> FaultError:
        """What happened at a place, such as `env 03 on cpu:0`. Raise it after the handler, not in it: a fault that has
        a context would keep what the failed work had allocated."""
        told = str(error).strip().splitlines()
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or _OOM_MESSAGE in str(error):
            return cls(f"{where} ran out of memory" + (f": {told[0]}" if told else ""), None)
        what = f"{type(error).__name__}: {told[0]}" if told else type(error).__name__
        return cls(f"{where} failed: {what}", "".join(traceback.format_exception(error)))
