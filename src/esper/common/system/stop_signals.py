"""Signals that stop a run, and their handlers in this process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TypeAlias

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SignalHandler: TypeAlias = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


def replace_handlers(handler: SignalHandler) -> dict[signal.Signals, SignalHandler]:
    """Handle the signals with another handler, and return the previous ones, keyed by signal.

    Ignored signals stay ignored: a run started by nohup ignores SIGHUP, and must outlive its terminal.
    """
    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in handled}


def restore_handlers(handlers: Mapping[signal.Signals, SignalHandler]) -> None:
    """Restore the result of `replace_handlers`."""
    for number, handler in handlers.items():
        signal.signal(number, handler)
