"""`--on-alert COMMAND`: runs a command for each new anomaly of a run, with the anomaly as JSON on standard input."""

from __future__ import annotations

import os
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from esper.cli.console import drain
from esper.common.configuration.config import ConfigError
from esper.common.system.process import NamedThread
from esper.recordings import events as ev
from esper.recordings.events.codec import encode_json
from esper.recordings.state.state import Record

if TYPE_CHECKING:
    from esper.training.engine.thread import EngineThread

COMMAND_LIMIT_S = 10.0
"""Seconds after which a command is ended."""
END_LIMIT_S = 5.0
"""Seconds after the end of the run in which the last commands may run."""
MAX_PENDING = 100
"""Number of alerts that wait for their command. Further ones are dropped and counted."""


class Alert(msgspec.Struct, kw_only=True):
    """One anomaly, as the command receives it."""

    run: str
    rule: str
    severity: str
    where: str
    envs: list[int]
    """Index of the env in which the anomaly began; empty if it concerns no env."""
    text: str
    value: float
    threshold: float | None
    round: int
    step: int
    time: float
    """Wall-clock time in seconds since the epoch."""


def split_alert_command(command: str) -> list[str]:
    """Return the words of a command.

    Raises:
        ConfigError: A quotation is not closed, or the program is not found.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--on-alert {command!r} cannot be split into words: {error}") from None
    if not words or shutil.which(words[0]) is None:
        program = words[0] if words else ""
        raise ConfigError(f"--on-alert: command {program!r} not found; give a program on the PATH, or its path")
    return words


class AlertCommands:
    """Context in which a command is run for each new anomaly, in a thread. Neither engine nor dashboard wait for it.

    The first failure is logged as a warning of the run. The number of failures is printed at the end.

    Args:
        words: Program and arguments.
        engine: Engine of the run, not started yet.
    """

    def __init__(self, words: list[str], engine: EngineThread) -> None:
        self._words = words
        self._engine = engine
        self._records: SimpleQueue[Record] = engine.subscribe()
        self._pending: queue.Queue[Alert | None] = queue.Queue(MAX_PENDING)
        self._found = self._failed = 0
        self._engine_ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher = NamedThread(target=self._watch, name="alerts", daemon=True)
        self._runner = NamedThread(target=self._run_commands, name="alert-commands", daemon=True)

    def __enter__(self) -> AlertCommands:
        self._watcher.start()
        self._runner.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Run the commands of the last anomalies, for `END_LIMIT_S` at most. The engine must have ended."""
        self._engine_ended.set()
        end = time.monotonic() + END_LIMIT_S
        self._watcher.join()
        self._runner.join(max(end - time.monotonic(), 0.0))
        if self._runner.is_alive():
            self._failed += 1 + max(self._pending.qsize() - 1, 0)  # without the end mark
            self._kill()
        if self._failed > 1:
            count = f"{self._failed} of {self._found} anomalies"
            self._engine.warnings.append(f"--on-alert: the command failed for {count}")

    def _watch(self) -> None:
        """Queue an alert for each anomaly."""
        at = (0, 0)
        for record in drain(self._records, lambda: not self._engine_ended.is_set()):
            match record:
                case ev.EnvStepped() | ev.GovernorRolledBack() | ev.PhaseTimed():
                    at = record.round, record.step
                case ev.RoundStarted():
                    at = record.round, 0
                case ev.AnomalyFound():
                    self._queue(record, *at)
                case _:
                    pass
        with suppress(queue.Full):
            self._pending.put(None, timeout=END_LIMIT_S)

    def _queue(self, found: ev.AnomalyFound, round_: int, step: int) -> None:
        directory = self._engine.directory or Path()
        alert = Alert(
            run=directory.name,
            rule=found.rule,
            severity=found.severity,
            where=found.where,
            envs=[] if found.env is None else [found.env],
            text=found.text,
            value=found.value,
            threshold=found.threshold,
            round=round_,
            step=step,
            time=found.time,
        )
        self._found += 1
        try:
            self._pending.put_nowait(alert)
        except queue.Full:
            self._fail(f"is too slow: {MAX_PENDING} alerts wait for it, and further ones are dropped")

    def _run_commands(self) -> None:
        while (alert := self._pending.get()) is not None:
            try:
                problem = self._run(encode_json(alert) + b"\n")
            except OSError as error:
                problem = f"cannot be started: {error.strerror}"
            if problem:
                self._fail(problem)

    def _run(self, text: bytes) -> str | None:
        """Run the command once, and return how it failed, or None."""
        process = self._process = subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl+C is for the run
        )
        try:
            process.communicate(text, timeout=COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._kill()
            process.wait()
            return f"was ended, because it ran for more than {COMMAND_LIMIT_S:.0f} s"
        return f"failed with exit code {process.returncode}" if process.returncode else None

    def _kill(self) -> None:
        """End the command and the processes that it has started."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _fail(self, problem: str) -> None:
        """Log the first failure, and count each."""
        self._failed += 1
        if self._failed == 1:
            self._engine.warnings.append(f"--on-alert {shlex.join(self._words)} {problem}")
