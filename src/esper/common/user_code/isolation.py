"""Isolation of the user's code: what a call changes in this process is reset, and a child that it forks ends with it.

Envs share a process, in different combinations on different lanes, so a setting that the code of one env leaves behind
would change the results of others. `isolated` is around every call of a task or a policy.
"""

from __future__ import annotations

import faulthandler
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import FrameType
from typing import Any, NamedTuple, TextIO

import torch

from esper.common.configuration.config import TaskError
from esper.common.system.stop_signals import STOP_SIGNALS
from esper.common.user_code.code_places import frames_of_call

_STREAM_PACKAGES = ("esper", "rich", "textual")
"""Packages whose streams may replace the standard streams during a call: the dashboard starts and ends meanwhile."""


class _Setting(NamedTuple):
    """A setting of this process or thread that the user's code can change."""

    name: str
    """Name for messages."""
    get: Callable[[], Any]
    set: Callable[[Any], object]


@contextmanager
def isolated(where: str) -> Generator[None]:
    """Run code of the user. Reset the settings that it changes, and report those once.

    Reset are: current directory, standard streams, handlers of the signals that stop a run, and torch's gradient mode,
    number of threads, deterministic mode and float32 precision. Random seeds need no reset, because every use of random
    numbers is seeded. A child that the code forks exits where the code returns.

    Args:
        where: Name of the code for messages, such as `data of task digits`.

    Raises:
        TaskError: It changes the default dtype or device of torch. Both are reset; tensors that were made
            meanwhile keep theirs.
    """
    if problem := _default_problem():
        raise TaskError(f"{where} cannot run: torch has {problem}")
    settings = _THREAD_SETTINGS + (_HANDLERS if threading.current_thread() is threading.main_thread() else [])
    before = [setting.get() for setting in settings]
    _shared.begin_call()
    try:
        yield
    finally:
        changed = _reset_changed(settings, before) + _shared.end_call()
        for name in changed:
            _report(f"{where} changed the {name}; it was reset, because other envs share it")
        if problem := _default_problem():
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
            raise TaskError(f"{where} must not change torch for all code of the process: it sets {problem}")


def _default_problem() -> str | None:
    """Return the default dtype or device of torch, with advice, if it is not the usual one; else None."""
    sample = torch.empty(0)
    if sample.dtype is not torch.float32:
        return f"the default dtype {sample.dtype}; pass dtype= to the functions that create tensors instead"
    if sample.device.type != "cpu":
        return f"the default device {sample.device}; leave it out, because the run moves models and data"
    return None


def _reset_changed(settings: Sequence[_Setting], before: Sequence[object]) -> list[str]:
    """Reset settings to their values before a call, and return the names of those that were changed."""
    changed: list[str] = []
    for setting, value in zip(settings, before, strict=True):
        if setting.get() != value:
            setting.set(value)
            changed.append(setting.name)
    return changed


def _reset_streams(*before: TextIO) -> list[str]:
    changed: list[str] = []
    for name, stream in zip(("stdout", "stderr"), before, strict=True):
        now = getattr(sys, name)
        is_original = now is getattr(sys, f"__{name}__")  # which the dashboard restores at its end
        is_own = now is stream or is_original or type(now).__module__.partition(".")[0] in _STREAM_PACKAGES
        if not is_own:
            setattr(sys, name, stream)
            changed.append(f"stream sys.{name}")
    return changed


@cache
def _report(sentence: str) -> None:
    """Write a sentence for the log or the terminal, once in this process."""
    sys.stderr.write(f"{sentence}\n")


def _current_directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return None


def _change_directory(path: str | None) -> None:
    if path is not None:
        with suppress(OSError):
            os.chdir(path)


_backends: Any = torch.backends  # whose types lack the newer attributes


def _precision() -> tuple[str, str, str]:
    """Return the precision of float32 products on GPUs, in cuDNN, and on CPUs."""
    return (
        _backends.cuda.matmul.fp32_precision,
        _backends.cudnn.conv.fp32_precision,  # that of recurrent layers takes longer to read, and hardly differs
        _backends.mkldnn.matmul.fp32_precision,
    )


def _set_precision(values: tuple[str, str, str]) -> None:
    products, cudnn, on_cpu = values
    # torch refuses to read the older flags if they differ from the newer ones.
    torch.set_float32_matmul_precision("high" if products == "tf32" else "highest")
    _backends.cuda.matmul.allow_tf32, _backends.cudnn.allow_tf32 = products == "tf32", cudnn == "tf32"
    _backends.cuda.matmul.fp32_precision = products
    _backends.cudnn.conv.fp32_precision = _backends.cudnn.rnn.fp32_precision = cudnn
    _backends.mkldnn.matmul.fp32_precision = on_cpu


def _cudnn_flags() -> tuple[bool, ...]:
    cudnn = _backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic


def _set_cudnn_flags(values: tuple[bool, ...]) -> None:
    cudnn = _backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = values


_THREAD_SETTINGS = [
    _Setting("gradient mode of torch", torch.is_grad_enabled, torch.set_grad_enabled),
    _Setting("number of threads of torch", torch.get_num_threads, torch.set_num_threads),
]
_SHARED_SETTINGS = [
    _Setting("current directory", _current_directory, _change_directory),
    _Setting("deterministic mode of torch", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    _Setting("float32 precision of torch", _precision, _set_precision),
    _Setting("flags of cuDNN", _cudnn_flags, _set_cudnn_flags),
]
_HANDLERS = [
    _Setting(f"handler of {number.name}", partial(signal.getsignal, number), partial(signal.signal, number))
    for number in STOP_SIGNALS
]


class _SharedSettings:
    """The settings and streams that all threads share, reset to their values before the calls in progress.

    Calls of several lanes overlap. A call that begins after another one has changed a setting must not restore that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        """Number of calls in progress."""
        self._before: list[object] = []
        self._streams = sys.stdout, sys.stderr

    def begin_call(self) -> None:
        """Note the current values, unless another call is in progress."""
        with self._lock:
            if self._calls == 0:
                self._before = [setting.get() for setting in _SHARED_SETTINGS]
                self._streams = sys.stdout, sys.stderr
            self._calls += 1

    def end_call(self) -> list[str]:
        """Reset the changed settings and streams, and return their names."""
        with self._lock:
            self._calls -= 1
            # A handler of faulthandler is unknown to `signal`, and would hide those of the run.
            handled = [f"handler of {number.name}" for number in STOP_SIGNALS if faulthandler.unregister(number)]
            return handled + _reset_changed(_SHARED_SETTINGS, self._before) + _reset_streams(*self._streams)


_shared = _SharedSettings()


# A child that the user's code forks


def _end_with_call() -> None:
    """Make a forked child exit where the call of the user's code ends: it has no threads of the run, but its files.

    A child of multiprocessing exits by itself.
    """
    frames = frames_of_call(inspect.currentframe())
    if not frames or any(frame.f_globals.get("__name__") == "multiprocessing.popen_fork" for frame in frames):
        return
    code = 0

    def exit_at_end(_: FrameType, event: str, argument: Any) -> Any:
        nonlocal code
        if event == "return":
            os._exit(code)
        # An exception that the code catches is followed by another line of it.
        code = _exit_code(argument[1]) if event == "exception" else 0
        return exit_at_end

    frames[-1].f_trace = exit_at_end
    sys.settrace(_trace_no_other)


def _trace_no_other(*_: object) -> None:
    """Trace the frames only that have a trace function."""


def _exit_code(error: BaseException) -> int:
    """Return the exit code of a process that an exception ends."""
    code = error.code if isinstance(error, SystemExit) else 1
    return code if isinstance(code, int) else int(code is not None)


os.register_at_fork(after_in_child=_end_with_call)
