"""What a run does when it is told to end, loses its screen, or is left: with an engine that trains nothing."""

from __future__ import annotations

import errno
import io
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import pytest

from esper.cli import run_display
from esper.cli.dashboard import DisplayOptions
from esper.cli.run_display import run_headless, run_in_dashboard, run_silently
from esper.common.configuration.files import resolve_config
from esper.common.control import Request, RequestKind
from esper.common.system.stop_signals import STOP_SIGNALS
from esper.training.engine.start_point import StartPoint
from esper.training.engine.thread import EngineThread
from tests.factory import example_run
from tests.runs import tiny

SCREEN = DisplayOptions("", "", bell=False)


class Engine(EngineThread):
    """Engine that trains nothing, and calls a function while it is waited for."""

    waited_for = is_starting = False
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    @property
    def is_engine_alive(self) -> bool:
        return not self.waited_for

    @property
    def is_preparing(self) -> bool:
        return self.is_starting

    def start(self) -> None:
        for event in example_run():
            self.records.put(event)

    def join(self) -> None:
        self.waited_for = True
        self.meanwhile()


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(StartPoint(resolve_config(None, tiny(tmp_path))))


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes of the process, which does not exit."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


# Signals


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signal_requests_one_checkpoint_and_the_end(
    number: signal.Signals, engine: Engine, exits: list[int]
) -> None:
    """`timeout` signals the process, then its group, so a signal that comes twice at once counts once."""

    def interrupt() -> None:
        signal.raise_signal(number)
        signal.raise_signal(number)

    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    engine.meanwhile = interrupt
    run_silently(engine)
    assert engine.control.get() == Request(RequestKind.STOP, "signal")
    assert not engine.control.has_request()
    assert exits == []
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGINT, [130]), (signal.SIGTERM, [143]), (signal.SIGHUP, [])])
def test_second_signal_exits_at_once_unless_it_is_a_hangup(
    number: signal.Signals, codes: list[int], engine: Engine, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a terminal is closed, its shell forwards SIGHUP, and the kernel sends it again when the shell has ended."""

    def interrupt() -> None:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(number)

    monkeypatch.setattr(run_display, "SIGNAL_DEBOUNCE_S", -1.0)
    engine.meanwhile = interrupt
    with pytest.raises(SystemExit) if codes else nullcontext():
        run_silently(engine)
    assert exits == codes


# Output that is closed


class ClosedStream(io.StringIO):
    """A stream that was closed at its other end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str, /) -> int:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO], ids=["pipe", "terminal"])
def test_closed_output_checkpoints_the_run(number: int, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    discarded: list[bool] = []
    monkeypatch.setattr(run_display, "discard_broken_output", lambda: discarded.append(True))
    run_headless(engine, ClosedStream(number), narrate=None)
    assert engine.control.get() == Request(RequestKind.STOP, "signal")
    assert engine.waited_for
    assert discarded


# The dashboard ends


@pytest.mark.parametrize("code", [0, 1])
def test_dashboard_crash_checkpoints_the_run(
    code: int, engine: Engine, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_display, "show_dashboard", lambda *_: code)
    with pytest.raises(SystemExit) if code else nullcontext():
        run_in_dashboard(engine, SCREEN, "digits")
    assert engine.control.get() == Request(RequestKind.STOP, "dashboard")
    assert engine.waited_for
    assert exits == [code] * bool(code)


def test_quitting_a_start_does_not_wait_for_the_engine(
    engine: Engine, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.is_starting = True
    monkeypatch.setattr(run_display, "show_dashboard", lambda *_: 0)
    with pytest.raises(SystemExit):
        run_in_dashboard(engine, SCREEN, "digits")
    assert (exits, engine.waited_for) == ([0], False)


def test_dashboard_crash_without_output_checkpoints_the_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(run_display, "show_dashboard", fail)
    with pytest.raises(OSError, match="Input/output error"):
        run_in_dashboard(engine, SCREEN, "digits")
    assert engine.control.get() == Request(RequestKind.STOP, "dashboard")
    assert engine.waited_for
