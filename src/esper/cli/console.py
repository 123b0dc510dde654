"""A run without the dashboard: progress bar, log lines or sentences."""

from __future__ import annotations

import math
import queue
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from queue import SimpleQueue
from typing import TextIO

from esper.formatting import NOT_MEASURED, format_duration
from esper.telemetry import events as ev
from esper.telemetry.sentences import describe_event, to_ascii
from esper.telemetry.state import MAX_ANOMALIES, Keyframe, Record, RunState, anomaly_key

QUEUE_POLL_S = 0.2
"""Seconds between looks at whether the run is still alive."""
_UNPRINTED_EVENTS = frozenset({ev.SeedMoved, ev.PolicyUpdated})
"""Too many for a log, or told by the line of the round."""

ShowLine = Callable[[float, str, str], None]
"""Takes the time, severity and text of a line."""


def drain(records: SimpleQueue[Record], alive: Callable[[], bool]) -> Iterator[Record]:
    """What comes through a queue until nothing more does.

    `alive` tells whether more may come; once it does not, what is in the queue is still given.
    """
    while True:
        over = not alive()
        with suppress(queue.Empty):
            while True:
                yield records.get_nowait()
        if over:
            return
        time.sleep(
            QUEUE_POLL_S
        )  # `get(timeout=…)` waits for ever after a signal whose handler outlasts it (CPython 3.11)


class RunPrinter:
    """Prints a run as it happens. On a terminal it draws with rich; else it writes lines fit for a log file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._state = RunState()
        self._finished: int | None = None
        """The round whose line is due, once what follows its episodes has come."""

    def run(self, records: Iterable[Record]) -> RunState:
        """Print what there is to say of records. Returns the state at the end."""
        with self._lines() as (show, refresh):
            for record in records:
                for time, severity, text in self._handle(record):
                    show(time, severity, text)
                if type(record) is ev.PhaseTimed:  # a step has ended
                    refresh()
            refresh()
        return self._state

    def _handle(self, record: Record) -> Iterator[tuple[float, str, str]]:
        """Fold a record in; the lines that it gives rise to."""
        if isinstance(record, Keyframe):
            self._state = record.decode_state()
            self._finished = None
            return
        state = self._state
        state.apply(record)
        if self._finished is not None and type(record) is not ev.EpisodeEnded:
            yield record.time, "info", self._round_line(self._finished)
            self._finished = None
        elif isinstance(record, ev.EpisodeEnded) and len(state.finals) == len(state.envs):
            self._finished = record.round
        line = self._line(record)
        if line is not None:
            yield record.time, *line

    def _line(self, record: ev.AnyEvent) -> tuple[str, str] | None:
        """Severity and text of what there is to say of an event that was folded in."""
        line = describe_event(record)
        if line is None or type(record) in _UNPRINTED_EVENTS:
            return None
        severity, text = line
        if isinstance(record, ev.AnomalyFound | ev.AnomalyEnded):
            known = self._state.anomalies.get(anomaly_key(record))
            count = known.count if known else 1
            if not math.log10(count).is_integer():  # the 1st, 10th, 100th tell enough, and when these are over
                return None
            text += f" (×{count})" if count > 1 and isinstance(record, ev.AnomalyFound) else ""
        return severity, text

    def _round_line(self, number: int) -> str:
        """What a round came to."""
        pace = "" if self._terminal else f", {_format_rate(self._state)}"  # the bar has it
        return format_round(self._state, number) + pace

    def _lines(self) -> AbstractContextManager[tuple[ShowLine, Callable[[], None]]]:
        """Ways to show a line, and to draw what is not a line anew."""
        return self._bar() if self._terminal else self._log()

    @contextmanager
    def _log(self) -> Iterator[tuple[ShowLine, Callable[[], None]]]:
        """Plain lines."""

        def show(time: float, severity: str, text: str) -> None:
            stamp = datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M:%S")
            print(f"{stamp} {severity.upper():7} {text}", file=self._stream, flush=True)

        yield show, lambda: None

    @contextmanager
    def _bar(self) -> Iterator[tuple[ShowLine, Callable[[], None]]]:
        """Lines above a bar."""
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text

        terminal = Terminal(file=self._stream, highlight=False, markup=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rest]}"))
        with Progress(*columns, console=terminal, transient=True) as progress:
            task = progress.add_task("starting", total=None, rest="")
            styles = {"warning": "yellow", "error": "bold red"}

            def show(time: float, severity: str, text: str) -> None:
                mark = "" if severity == "info" else f"{severity}: "
                clock = datetime.fromtimestamp(time).strftime("%H:%M:%S")
                terminal.print(Text(f"{clock} {mark}{text}", style=styles.get(severity, "")))

            def refresh() -> None:
                state = self._state
                if state.started is None:
                    return
                where = f"{state.status} · round {state.round}/{state.started.rounds} step {state.step}"
                done, total = state.steps_done, state.steps_total
                progress.update(task, description=where, completed=done, total=total, rest=_format_rate(state))

            yield show, refresh


def format_summary(state: RunState, status: str | None = None) -> str:
    """What a run came to, in a few lines for people; `status` where it is known better than by its events."""
    started = state.started
    if started is None:
        return "the run has not started: nothing was recorded"
    reason = f" ({state.reason})" if state.reason else ""
    bests = [(env.best_accuracy, env.env) for env in state.envs if env.best_accuracy is not None]
    lines = [
        f"run {started.run}: {status or state.status}{reason}",
        f"{started.policy} on {started.task}, {len(started.lanes)} envs, seed {started.seed}",
        f"{state.steps_done} of {state.steps_total} steps, at round {state.round} of {started.rounds}; "
        f"{format_duration(state.time - state.start_time)}, the last steps at {_number(state.steps_per_second, '.0f')} "
        "env-steps/s",
    ]
    if state.accuracy:
        least, median, greatest = state.accuracy[-1]
        lines.append(f"last finished round: accuracy {median:.1%} in the median, {least:.1%} to {greatest:.1%}")
    if bests:
        best, env = max(bests)
        lines.append(f"best accuracy {best:.1%}, env {env:02d}")
    if state.checkpoints:
        last = state.checkpoints[-1]
        lines.append(f"last checkpoint at round {last.round} step {last.step}: {last.path}")
    found = sum(anomaly.count for anomaly in state.anomalies.values())
    least = "at least " if len(state.anomalies) == MAX_ANOMALIES else ""
    lines.append(f"anomalies: {least}{found}; the last of each kind and place:" if found else "anomalies: none")
    lines += [f"  {anomaly.found.text} (×{anomaly.count})" for anomaly in state.anomalies.values()]
    return "\n".join(lines)


def format_round(state: RunState, number: int) -> str:
    """What a round came to."""
    total = state.started.rounds if state.started else NOT_MEASURED
    least, median, greatest = state.accuracy[-1]
    mean_return = statistics.fmean(env.returns[-1] for env in state.envs)
    text = f"round {number}/{total}: accuracy {median:.1%} ({least:.1%} to {greatest:.1%}), return {mean_return:+.3f}"
    update = state.update
    if update is not None and update.round == number:
        text += f", KL {update.kl:.4f}, entropy {update.entropy:.2f}"
    return text


def _format_rate(state: RunState) -> str:
    return f"{_number(state.steps_per_second, '.0f')} env-steps/s, {format_duration(state.seconds_left)} left"


def _number(value: float | None, form: str) -> str:
    return NOT_MEASURED if value is None else f"{value:{form}}"


_NEEDS_STEP_SUFFIX = frozenset({ev.SeedMoved, ev.AnomalyFound, ev.AnomalyEnded, ev.ControlRequested})
"""Of these the sentence need not say itself at which round and step it became true."""


class Narrator(RunPrinter):
    """Prints a run as lines of ASCII that draw nothing, on a terminal too. Each says when in the run it is true."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._moment: tuple[int, int] | None = None
        """Round and step of the last event that had both."""

    def _handle(self, record: Record) -> Iterator[tuple[float, str, str]]:
        round_, step = getattr(record, "round", None), getattr(record, "step", None)
        if round_ is not None and step is not None:
            self._moment = round_, step
        yield from super()._handle(record)

    def _line(self, record: ev.AnyEvent) -> tuple[str, str] | None:
        line = describe_event(record)
        if line is None or isinstance(record, ev.PolicyUpdated):  # the line of the round tells of the update
            return None
        severity, text = line
        if type(record) in _NEEDS_STEP_SUFFIX and self._moment is not None and f"round {self._moment[0]}" not in text:
            text += f", at round {self._moment[0]} step {self._moment[1]}"
        return severity, text

    def _round_line(self, number: int) -> str:
        return format_round(self._state, number)

    @contextmanager
    def _lines(self) -> Iterator[tuple[ShowLine, Callable[[], None]]]:
        def show(_time: float, severity: str, text: str) -> None:
            mark = "" if severity == "info" else f"{severity}: "
            print(to_ascii(mark + text), file=self._stream, flush=True)

        yield show, lambda: None
