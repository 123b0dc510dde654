"""Output of a run without the dashboard: progress bar, log lines or sentences."""

from __future__ import annotations

import math
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from textwrap import shorten
from typing import TextIO

from esper.cli.growth_lines import format_growth_round
from esper.cli.options import NarrationDetail
from esper.cli.streams import DISK_FULL_ERRNOS, print_text
from esper.common.formatting import NOT_MEASURED, format_duration, format_number, pluralise, strip_control
from esper.common.score_scale import ScoreScale
from esper.recordings import events as ev
from esper.recordings.checkpoints.manifest import CheckpointError, read_manifest
from esper.recordings.events.sentences import describe_event, to_ascii
from esper.recordings.health.incidents import group_incidents
from esper.recordings.history.measures import BEST, LAST_RETURN
from esper.recordings.state.anomalies import anomaly_key
from esper.recordings.state.series import FiveNumbers
from esper.recordings.state.state import MAX_ANOMALIES, Keyframe, Record, RunState, fold
from esper.training.engine.resume_options import resume_options

QUEUE_POLL_S = 0.2
"""Seconds between checks of the queue and of whether the run is still alive."""
_UNPRINTED_EVENTS = frozenset({ev.SeedMoved, ev.PolicyUpdated, ev.AnomalyJoined})
"""Event types without a log line: too frequent, or part of the line of the round."""
_NEEDS_STEP_SUFFIX = frozenset({ev.SeedMoved, ev.AnomalyFound, ev.AnomalyJoined, ev.AnomalyEnded, ev.ControlRequested})
"""Event types whose sentence may not name round and step, so that the narrator appends them."""

_NARRATED_IN_FULL_ONLY = frozenset({ev.SeedMoved, ev.AnomalyJoined, ev.AnomalyEnded, ev.ControlRequested, ev.Logged})
"""Event types that the summary narration leaves out unless they are warnings or errors."""
MAX_SENTENCES_PER_SECOND = 2
"""Maximum number of sentences of the summary narration in a second of the run: as many as can be listened to."""
SUMMARY_COLS = 80
"""Width for which the summary is made, columns."""

ShowLine = Callable[[float, str, str], None]
"""Prints a line, given its time, severity and text."""


def drain(records: SimpleQueue[Record], is_alive: Callable[[], bool]) -> Iterator[Record]:
    """Yield the records of a queue until the run has ended and the queue is empty.

    Args:
        records: Queue that the run fills from another thread.
        is_alive: Returns False once the run adds no more records.
    """
    while True:
        has_ended = not is_alive()  # before the queue is emptied, or the last records would be lost
        with suppress(queue.Empty):
            while True:
                yield records.get_nowait()
        if has_ended:
            return
        # `get(timeout=…)` would wait for ever after a signal whose handler outlasts the timeout (CPython 3.11).
        time.sleep(QUEUE_POLL_S)


class RunPrinter:
    """Prints a run as it happens: log lines above a progress bar on a terminal, plain log lines elsewhere.

    Args:
        stream: Text stream to print to.
        trains_here: True if this process trains the run. A full disk then does not end it: lines without room are left
            out, as the recording has them.
    """

    def __init__(self, stream: TextIO, *, trains_here: bool = False) -> None:
        self._stream = stream
        self._trains_here = trains_here
        self._terminal = stream.isatty()
        self._state = RunState()
        self._finished: int | None = None
        """Round that has ended but is not printed yet: the policy update of its line follows its episodes."""

    def run(self, records: Iterable[Record]) -> RunState:
        """Print a stream of records and return the state at its end."""
        with self._lines() as (show, refresh):
            for record in records:
                for time, severity, text in self._handle(record):
                    show(time, severity, text)
                if type(record) is ev.PhaseTimed:  # a step has ended
                    refresh()
            refresh()
        return self._state

    def _handle(self, record: Record) -> Iterator[tuple[float, str, str]]:
        """Apply a record to the state, and yield time, severity and text of each line to print."""
        self._state = state = fold(self._state, [record])
        if isinstance(record, Keyframe):
            self._finished = None
            return
        if state.search is not None:
            if isinstance(record, ev.RoundStarted) and record.round > 1:
                yield record.time, "info", format_growth_round(state, record.round - 1)
        elif self._finished is not None and type(record) is not ev.EpisodeEnded:
            yield record.time, "info", self._round_line(self._finished)
            self._finished = None
        elif isinstance(record, ev.EpisodeEnded) and state.has_round_ended:
            self._finished = record.round
        line = self._line(record)
        if line is not None:
            yield record.time, *line

    def _line(self, record: ev.AnyEvent) -> tuple[str, str] | None:
        """Return severity and text of the line of an applied event; None if it has no line."""
        line = describe_event(record, self._state.score_scale)
        if line is None or type(record) in _UNPRINTED_EVENTS:
            return None
        severity, text = line
        if isinstance(record, ev.AnomalyFound | ev.AnomalyEnded):
            known = self._state.anomalies.get(anomaly_key(record))
            count = known.count if known else 1
            if not math.log10(count).is_integer():  # print only the 1st, 10th, 100th … occurrence, and their ends
                return None
            text += f" (×{count})" if count > 1 and isinstance(record, ev.AnomalyFound) else ""
        return severity, text

    def _round_line(self, number: int) -> str:
        """Return the line of a finished round."""
        pace = "" if self._terminal else f", {_format_rate(self._state)}"  # the bar shows the rate
        return format_round(self._state, number) + pace

    def _lines(self) -> AbstractContextManager[tuple[ShowLine, Callable[[], None]]]:
        """Return a context that yields two functions: print a line, and redraw the progress bar."""
        return self._bar() if self._terminal else self._log()

    @contextmanager
    def _log(self) -> Generator[tuple[ShowLine, Callable[[], None]]]:
        """Print plain log lines, without a progress bar."""

        def show(time: float, severity: str, text: str) -> None:
            stamp = datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M:%S")
            self._print(f"{stamp} {severity.upper():7} {strip_control(text)}")

        yield show, lambda: None

    def _print(self, line: str) -> None:
        try:
            print_text(line, self._stream)
        except OSError as error:
            if not self._trains_here or error.errno not in DISK_FULL_ERRNOS:
                raise

    @contextmanager
    def _bar(self) -> Generator[tuple[ShowLine, Callable[[], None]]]:
        """Print lines above a progress bar."""
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.text import Text

        terminal = Terminal(file=self._stream, highlight=False, markup=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rest]}"),
            TimeElapsedColumn(),
        )
        # The standard streams stay as they are: the run logs the lines that the user's code prints to them.
        with Progress(
            *columns, console=terminal, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as progress:
            task = progress.add_task("starting: loading torch", total=None, rest="")
            styles = {"warning": "yellow", "error": "bold red"}

            def show(time: float, severity: str, text: str) -> None:
                mark = "" if severity == "info" else f"{severity}: "
                clock = datetime.fromtimestamp(time).strftime("%H:%M:%S")
                terminal.print(Text(f"{clock} {mark}{strip_control(text)}", style=styles.get(severity, "")))

            def refresh() -> None:
                state = self._state
                if state.started is None:
                    return
                where = f"{state.status} · {_format_progress(state)} step {state.step}"
                rate = _format_rate(state)
                progress.update(task, description=where, completed=state.fraction_done, total=1.0, rest=rate)

            yield show, refresh


def _format_progress(state: RunState) -> str:
    """Return the round, or the used budget of a growth."""
    if state.search is not None:
        return f"{state.search.describe_progress(state.seconds_trained)}, round {state.round}"
    return f"round {state.round}/{state.started.rounds}" if state.started else NOT_MEASURED


def format_summary(state: RunState, status: str | None = None) -> str:
    """Return the result of a run as text, at most 14 lines on a terminal of 80 columns.

    Args:
        status: Status to show instead of the state's, e.g. `crashed`, which no event reports.
    """
    started = state.started
    if started is None:
        return "the run has not started; no events were recorded"
    status = status or state.status
    reason = f" ({state.reason})" if state.reason else ""
    pace = format_number(state.steps_per_second, ".0f")
    length = f"{state.steps_done} of {state.steps_total} steps, round {state.round} of {started.rounds}"
    if state.search is not None:
        length = f"{state.search.describe_counts()}; {pluralise(state.round, 'round')}"
    lines = [
        shorten(f"run {started.run}: {status}{reason}", 2 * SUMMARY_COLS, placeholder=" …"),
        f"{started.policy} on {started.task}, {pluralise(len(started.lanes), 'env')}, random seed {started.seed}",
        f"{length}; {format_duration(state.elapsed)}, last steps at {pace} env-steps/s",
    ]
    results: list[str] = []
    if state.search is not None:
        results.append(state.search.answer or state.search.describe_best())
    elif state.scores_by_round:
        last = state.scores_by_round[-1]
        scores = _describe_spread(last, state.score_scale)
        final_return = f"{LAST_RETURN.name} {LAST_RETURN.text(state.last_return)}"
        results.append(f"last round: median {state.score_name} {scores}, {final_return}")
    if state.search is None and (best := state.best_env):
        score = BEST.text(best.best_score, state.score_scale)
        results.append(f"{BEST.heading(state.score_name)} {score}, env {best.env:02d}")
    lines += ["; ".join(results)] if results else []
    lines += [shorten(habits, 2 * SUMMARY_COLS, placeholder=" …") for habits in state.habits]
    lines.append(_summarise_anomalies(state))
    if state.checkpoints:
        last = state.checkpoints[-1]
        at = f"last checkpoint at round {last.round} step {last.step}"
        if status not in {"stopped", "failed", "crashed"}:
            lines.append(f"{at}: {last.path}")
        else:
            lines.append(at)
            lines += _advise_resume(Path(last.path))
    return "\n".join(map(strip_control, lines))


def _advise_resume(checkpoint: Path) -> list[str]:
    """Return the line with the command that resumes from a checkpoint; none if it is not on this machine."""
    try:
        saved = read_manifest(checkpoint)
    except CheckpointError:
        return []
    options = resume_options(checkpoint.parent.parent, saved.origin, str(saved.config["policy"]))
    return [f"resume with: esper-sanctum {options}"]


def _summarise_anomalies(state: RunState) -> str:
    """Return the number of anomalies, of active ones, and how often each rule found one, in at most two lines.

    The anomalies of one incident count as one, as in the dashboard. Rules with errors come first, then the most
    frequent ones.
    """
    anomalies = list(state.anomalies.values())
    if not anomalies:
        return "no anomalies"
    counts = Counter[str]()
    for anomaly in anomalies:
        counts[anomaly.found.rule] += anomaly.count
    errors = {anomaly.found.rule for anomaly in anomalies if anomaly.found.severity == "error"}
    bound = "at least " if len(anomalies) == MAX_ANOMALIES else ""
    ordered = sorted(counts, key=lambda rule: (rule not in errors, -counts[rule], rule))
    kinds = ", ".join(f"{rule} ×{counts[rule]}" for rule in ordered)
    incidents = group_incidents(anomalies)
    total = pluralise(len(incidents), "incident")
    text = f"{bound}{total}, {sum(bool(incident.active) for incident in incidents)} active; anomalies: {kinds}"
    return shorten(text, 2 * SUMMARY_COLS, placeholder=" …")


def format_round(state: RunState, number: int) -> str:
    """Return the results of the last finished round as one line: score, return and policy update.

    Args:
        state: State in which that round is the last finished one.
        number: Number of that round, from 1.
    """
    total = state.started.rounds if state.started else NOT_MEASURED
    last = state.scores_by_round[-1]
    score = f"median {state.score_name} {_describe_spread(last, state.score_scale)}"
    text = f"round {number}/{total}: {score}, {LAST_RETURN.name} {LAST_RETURN.text(state.last_return)}"
    update = state.update
    if update is not None and update.round == number:
        text += f", KL {update.kl:.4f}, entropy {update.entropy:.2f}"
    return text


def _describe_spread(score: FiveNumbers, scale: ScoreScale) -> str:
    """Return median, minimum and maximum of a score over the envs."""
    return f"{scale.text(score.median)} ({scale.text(score.minimum)} to {scale.text(score.maximum)})"


def _format_rate(state: RunState) -> str:
    return f"{format_number(state.steps_per_second, '.0f')} env-steps/s, {format_duration(state.seconds_left)} left"


class Narrator(RunPrinter):
    """Prints a run as ASCII sentences, on a terminal too. Each names the round and step to which it refers.

    Args:
        stream: Text stream to print to.
        detail: `summary` for a sentence per round, anomalies, checkpoints and faults, at most
            `MAX_SENTENCES_PER_SECOND` in a second of the run unless they are errors; `all` for a sentence per notable
            event.
        trains_here: As for `RunPrinter`.
    """

    def __init__(self, stream: TextIO, detail: NarrationDetail, *, trains_here: bool = False) -> None:
        super().__init__(stream, trains_here=trains_here)
        self._is_summary = detail == "summary"
        self._last_step: tuple[int, int] | None = None
        """Round and step of the last event that had both."""
        self._waiting = deque[str]()
        """Sentences that are not printed yet, because too many were printed within the last second."""
        self._printed_at = deque[float](maxlen=MAX_SENTENCES_PER_SECOND)
        """Recorded times of the last printed sentences."""

    def _handle(self, record: Record) -> Iterator[tuple[float, str, str]]:
        round_, step = getattr(record, "round", None), getattr(record, "step", None)
        if round_ is not None and step is not None:
            self._last_step = round_, step
        yield from super()._handle(record)
        no_record_follows = isinstance(record, ev.Paused | ev.RunEnded)
        self._print_waiting(math.inf if no_record_follows else record.time)

    def _line(self, record: ev.AnyEvent) -> tuple[str, str] | None:
        line = describe_event(record, self._state.score_scale)
        if line is None or isinstance(record, ev.PolicyUpdated):  # the line of the round includes the update
            return None
        severity, text = line
        if self._is_summary and type(record) in _NARRATED_IN_FULL_ONLY and severity == "info":
            return None
        if self._is_summary and isinstance(record, ev.GovernorRolledBack):  # its anomaly has the same text
            return None
        if type(record) in _NEEDS_STEP_SUFFIX and self._last_step is not None:
            round_, step = self._last_step
            text += "" if f"round {round_}" in text else f", at round {round_} step {step}"
        return severity, text

    def _round_line(self, number: int) -> str:
        return format_round(self._state, number)

    @contextmanager
    def _lines(self) -> Generator[tuple[ShowLine, Callable[[], None]]]:
        def show(_time: float, severity: str, text: str) -> None:
            mark = "" if severity == "info" else f"{severity}: "
            self._waiting.append(to_ascii(mark + text))
            if severity == "error":
                self._print_waiting(math.inf)

        try:
            yield show, lambda: None
        finally:
            self._print_waiting(math.inf)

    def _print_waiting(self, now: float) -> None:
        """Print the waiting sentences that are allowed at a recorded time; all of them if the time is infinite."""
        while self._waiting and (not self._is_summary or self._is_quiet(now)):
            self._print(self._waiting.popleft())
            self._printed_at.append(now)

    def _is_quiet(self, now: float) -> bool:
        """Return True if fewer than `MAX_SENTENCES_PER_SECOND` sentences were printed within the last second."""
        times = self._printed_at
        return now == math.inf or len(times) < MAX_SENTENCES_PER_SECOND or not 0 <= now - times[0] < 1
