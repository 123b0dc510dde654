"""Trains a run and shows it until it has ended: printed line by line, or in the dashboard."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from esper.cli.dashboard import DisplayOptions, show_dashboard
from esper.cli.options import EXIT_FAILED, EXIT_OK, EXIT_USAGE, NarrationDetail, print_usage_error, print_warnings
from esper.cli.streams import CLOSED_ERRNOS, FROZEN_AFTER_S, discard_broken_output, is_frozen, print_text
from esper.common.control import RequestKind
from esper.common.system.process import NamedThread, RankInfo
from esper.common.system.stop_signals import replace_handlers, restore_handlers

if TYPE_CHECKING:
    from esper.recordings.state.state import Record, RunState
    from esper.training.engine.ending import EndingKind
    from esper.training.engine.thread import EngineThread

_EXIT_CODES: dict[EndingKind, int] = {"refused": EXIT_USAGE, "failed": EXIT_FAILED}
"""Exit codes of the ends of a run that are no success."""
ANNOUNCED_AFTER_S = 5.0
"""Seconds after which a run that is stopped says that it waits for the end of a step."""
SLOW_START_S = 10.0
"""Seconds after which a start without a dashboard names the line of the user's code, and between two looks."""
SIGNAL_DEBOUNCE_S = 0.5
"""Repeated signals within this time count as one: `timeout` signals both the process and its group."""


def run_silently(engine: EngineThread) -> None:
    """Train until the run has ended, on a rank whose events rank 0 shows and records."""
    with _StopSignals(lambda: engine.control.put(RequestKind.STOP, "signal")):
        engine.start()
        engine.join()


def run_headless(
    engine: EngineThread, stream: TextIO, *, narrate: NarrationDetail | None, notice: str | None = None
) -> RunState:
    """Train and print to a stream until the run has ended; return its last state.

    Args:
        notice: Sentence to print to standard error once the run is set up, which can fail.
    """
    from esper.cli.console import Narrator, RunPrinter, drain
    from esper.recordings.state.state import RunState

    def stop() -> None:
        engine.control.put(RequestKind.STOP, "signal")
        NamedThread(target=_announce_stop, args=(engine, errors), name="stop", daemon=True).start()
        NamedThread(
            target=_exit_when_terminal_frozen, args=(engine, stream), name="frozen-terminal", daemon=True
        ).start()

    state = RunState()
    errors = sys.stderr  # before the engine replaces the stream for other threads, which run the user's code
    with _StopSignals(stop):
        engine.start()
        NamedThread(target=report_slow_start, args=(engine, errors), name="slow-start", daemon=True).start()
        try:
            printer = Narrator(stream, narrate, trains_here=True) if narrate else RunPrinter(stream, trains_here=True)
            records = drain(engine.records, lambda: engine.is_engine_alive)
            state = printer.run(records if notice is None else _announced(records, notice))
        except OSError as error:  # the pipe or terminal was closed: write a checkpoint and stop
            engine.control.put(RequestKind.STOP, "signal")
            engine.join()
            if error.errno not in CLOSED_ERRNOS:
                raise
            discard_broken_output()
        engine.join()
    return state


def _announced(records: Iterable[Record], notice: str) -> Iterator[Record]:
    """Yield records, after a notice is printed when the first one comes: a run that is refused has none."""
    for index, record in enumerate(records):
        if index == 0:
            print_warnings([notice])
        yield record


def report_slow_start(engine: EngineThread, stream: TextIO) -> None:
    """Print in which line of the user's code a slow start is, and again when that changes."""
    reported: str | None = None
    time.sleep(SLOW_START_S)
    while engine.is_engine_alive and engine.is_preparing:
        if (place := engine.start_place) is not None and place != reported:
            with suppress(OSError):  # the terminal was closed
                print_text(f"still starting: {place}", stream)
            reported = place
        time.sleep(SLOW_START_S)


def _announce_stop(engine: EngineThread, stream: TextIO) -> None:
    """Print what a signal does and what a second one does, unless the run ends soon.

    Not called in the handler of the signal, which may have interrupted another output.
    """
    if engine.stop_effect is None:
        time.sleep(ANNOUNCED_AFTER_S)
    effect = engine.stop_effect or "the run ends after this step, with a checkpoint"
    if engine.is_engine_alive:
        with suppress(OSError):  # the terminal was closed
            print_text(f"stopping: {effect}; a second signal ends it at once", stream)


def _exit_when_terminal_frozen(engine: EngineThread, stream: TextIO) -> None:
    """Wait until the engine has ended, then exit the process once its terminal is frozen, which blocks the printer."""
    engine.join()
    while not is_frozen(stream):
        time.sleep(FROZEN_AFTER_S)
    os._exit(_exit_code(engine))


def run_in_dashboard(engine: EngineThread, display: DisplayOptions, task: str) -> RunState:
    """Train and show the dashboard until the run has ended; return its last state.

    Args:
        task: Reference of the task.
    """
    from esper.sanctum.source import LiveSource

    source = LiveSource(engine, task)
    requests = source.requests

    def save_and_stop() -> None:
        """Stop the engine with a checkpoint and wait for it, whatever ended the dashboard."""
        signals.stop_requested = requests.stop_requested
        if not requests.stop_requested:
            requests.ask(RequestKind.STOP, origin="dashboard")
        engine.join()

    with _StopSignals(lambda: requests.ask(RequestKind.STOP, origin="signal")) as signals:
        try:
            code = show_dashboard(source, display)
        except OSError:
            save_and_stop()
            raise
        is_preparing = engine.is_engine_alive and engine.is_preparing
        if code == EXIT_OK and is_preparing:  # an import of torch cannot be interrupted
            print_text("the run had not started; nothing was recorded")
            is_single = RankInfo.from_environment().world_size == 1
            raise SystemExit(EXIT_OK if is_single else EXIT_FAILED)  # torchrun then ends the other ranks
        if code in {EXIT_OK, EXIT_FAILED}:
            save_and_stop()
        if code:
            raise SystemExit(code)
    source.tick(0.0)
    return source.live_state


def print_ending(engine: EngineThread) -> int:
    """Print the error that ended a run, if there is one, and return the exit code.

    Exit at once if code of the user still runs, which would keep the process alive.
    """
    code = _exit_code(engine)
    if engine.ending and code == EXIT_USAGE:
        print_usage_error(engine.ending.text)
    elif engine.ending and code == EXIT_FAILED:
        print_text(engine.ending.text, sys.stderr)
    if engine.must_exit:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)
    return code


def _exit_code(engine: EngineThread) -> int:
    return _EXIT_CODES.get(engine.ending.kind, EXIT_OK) if engine.ending else EXIT_OK


class _StopSignals:
    """Context in which the first SIGINT, SIGTERM or SIGHUP stops the run with a checkpoint, and a second exits.

    The second signal raises SystemExit, so that the dashboard can restore the terminal; leaving the context then exits
    the process without waiting for the engine's threads. SIGHUP never counts as second: closing a terminal sends it,
    often twice, because the shell forwards it. Neither does a signal within `SIGNAL_DEBOUNCE_S` of the first.

    Args:
        request_stop: Requests a checkpoint and the end of the run.
    """

    def __init__(self, request_stop: Callable[[], None]) -> None:
        self._request_stop = request_stop
        self._first_signal_at = -math.inf
        """Time of the first signal, in seconds of the monotonic clock."""
        self.stop_requested = False
        """True if a stop was requested, by a signal or otherwise, so that the next signal counts as second."""

    def __enter__(self) -> _StopSignals:
        self._previous = replace_handlers(self._handle)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            os._exit(error.code)
        restore_handlers(self._previous)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if not self.stop_requested:
            self.stop_requested, self._first_signal_at = True, time.monotonic()
            self._request_stop()
        elif number != signal.SIGHUP and time.monotonic() > self._first_signal_at + SIGNAL_DEBOUNCE_S:
            raise SystemExit(128 + number)
