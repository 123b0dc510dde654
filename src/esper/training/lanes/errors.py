"""Exceptions for failed steps and runs. They carry text only and hold no references to the failed step's tensors."""

from __future__ import annotations

import traceback

import torch

from esper.common.configuration.config import TaskError
from esper.common.user_code.references import describe_origin, exception_text

INCONSISTENT_STATE = "a step failed partway; restore a checkpoint or end the run"
"""Reason why a run that is held by a fault ignores other requests."""
_OUT_OF_MEMORY = (
    "can't allocate memory",  # of a CPU
    "CUDA error: out of memory",  # outside torch's allocator, for example of a stream or a kernel's stack
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Parts of the messages of the plain RuntimeErrors that torch raises if memory is exhausted."""
_DEVICE_LOST = ("CUDA error:", "CUDNN_STATUS_EXECUTION_FAILED")
"""Parts of the messages of errors after which every use of the GPU in this process fails, or may give wrong results."""


class RunFailedError(Exception):
    """A run failed or was stopped before it started, or a simulation failed.

    The message is one sentence: what happened, and how to resume if there is a checkpoint.
    """


class StoppedError(Exception):
    """A run was stopped before it had anything to save."""


class FaultError(Exception):
    """A step failed partway; the training state is inconsistent.

    Args:
        text: Message for users: where it failed, and why.
        traceback_text: Traceback of a bug; None if memory ran out.
        is_device_lost: True if this process cannot use its GPU any more, so that no checkpoint can be restored.
        env: Index of the env whose work failed; None if the fault does not belong to one env, or its device is lost.
    """

    def __init__(
        self, text: str, traceback_text: str | None = None, *, is_device_lost: bool = False, env: int | None = None
    ) -> None:
        super().__init__(text)
        self.traceback_text = traceback_text
        self.is_device_lost = is_device_lost
        self.env = env

    @classmethod
    def from_exception(cls, error: BaseException, where: str) -> FaultError:
        """Describe an error that occurred in `where`, such as `env 03 on cpu:0`.

        Raise the result after the exception handler, not in it: its context would keep the tensors of the failed step.
        """
        text = exception_text(error)
        lines = text.splitlines()
        if is_out_of_memory(error):
            return cls(f"{where} ran out of memory" + (f": {lines[0]}" if lines else ""))
        if isinstance(error, TaskError):  # it says what the user's code did wrong
            return cls(f"{where} failed: {text}")
        what = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        what += describe_origin(error)
        is_device_lost = any(part in text for part in _DEVICE_LOST)
        return cls(f"{where} failed: {what}", "".join(traceback.format_exception(error)), is_device_lost=is_device_lost)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error of a CPU or GPU whose memory is exhausted."""
    text = exception_text(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(part in text for part in _OUT_OF_MEMORY)
