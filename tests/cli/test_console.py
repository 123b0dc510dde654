"""Console output of a run: log lines, progress bar and summary."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest

from esper.cli.console import QUEUE_POLL_S, SUMMARY_COLS, Narrator, RunPrinter, drain, format_summary
from esper.common.domain import Rule
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import checkpoint_path
from esper.recordings.health.incidents import group_incidents
from esper.recordings.state.state import Keyframe, Record, RunState
from esper.training.checkpoint.files import write_checkpoint
from esper.training.lanes.printed_lines import PrintedLines
from tests.factory import example_run, growth_run, run_started, stamp
from tests.faults.programs import example_checkpoint
from tests.recordings.files.recordings import fold

RUN = example_run()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def print_run(records: list[Record], stream: io.StringIO) -> RunState:
    return RunPrinter(stream).run(records)


def printed(records: list[Record]) -> list[str]:
    stream = io.StringIO()
    print_run(records, stream)
    return stream.getvalue().splitlines()


def test_log_has_dated_lines_for_rounds_and_notable_events() -> None:
    log = printed([*RUN])

    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO|WARNING|ERROR) +\S", line) for line in log)
    assert [re.sub(r"\d+\.\d.*", "…", line[20:]) for line in log] == [
        "INFO    run digits_impaired-20261121-015300: ppo on digits_impaired, 4 envs on cpu:0 ×2, cpu:1 ×2",
        "ERROR   env 01: the gradient of the host is NaN at round 1 step 3",
        "INFO    env 01: non-finite gradient ended",
        "INFO    round 1/2: median accuracy …",
        "WARNING head tempo received no gradient in round 1, although it had choices",
        "INFO    checkpoint at round 1 step 5 (schedule), …",
        "INFO    round 2/2: median accuracy …",
        "INFO    checkpoint at round 2 step 5 (schedule), …",
        "INFO    run done",
    ]


def test_round_line_has_accuracy_update_and_pace() -> None:
    state = fold(RUN)
    minimum, _, median, _, maximum = state.scores_by_round[-1]

    [line] = [line for line in printed([*RUN]) if "round 2/2: " in line]

    score = f"median accuracy {median:.1%} ({minimum:.1%} to {maximum:.1%})"
    assert f"{score}, mean return +0.600, KL 0.0120, entropy 0.90" in line
    assert line.endswith("20 env-steps/s, 0s left")


def test_round_without_update_has_a_line() -> None:
    run = [event for event in RUN if not isinstance(event, ev.PolicyUpdated)]

    [first, second] = [line for line in printed([*run]) if "/2: median accuracy" in line]

    assert "KL" not in first + second


class FullDisk(io.StringIO):
    """A file whose disk is full from the fifth to the eighth write."""

    def __init__(self) -> None:
        super().__init__()
        self._writes = 0

    def write(self, text: str, /) -> int:
        self._writes += 1
        if 5 <= self._writes <= 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


@pytest.mark.parametrize("printer", [RunPrinter, partial(Narrator, detail="all")])
def test_full_disk_does_not_end_the_log_of_a_run_that_trains_here(printer: Callable[..., RunPrinter]) -> None:
    stream = FullDisk()
    assert printer(stream, trains_here=True).run([*RUN]).status == "done"
    assert "run digits_impaired" in stream.getvalue()
    assert "run done" in stream.getvalue()
    with pytest.raises(OSError, match="No space left"):
        printer(FullDisk()).run([*RUN])


def test_log_contains_no_control_characters() -> None:
    stream = io.StringIO()
    print_run([*RUN], stream)

    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_repeated_anomaly_is_printed_ever_more_rarely() -> None:
    anomaly = ev.AnomalyFound(rule="r", severity="warning", where="w", value=1.0, text="it happened")
    log = printed([*stamp([run_started(), *[anomaly] * 250])])

    assert [line[20:] for line in log[1:]] == [
        "WARNING it happened",
        "WARNING it happened (×10)",
        "WARNING it happened (×100)",
    ]


def test_anomaly_end_is_printed_if_its_start_was() -> None:
    begins = ev.AnomalyFound(rule="r", severity="warning", where="w", value=1.0, text="it happened")
    log = printed([*stamp([run_started(), *[begins, ev.AnomalyEnded(rule="r", where="w")] * 25])])

    printed_texts = [line[20:] for line in log[1:]]
    end = "INFO    w: r ended"
    assert printed_texts == ["WARNING it happened", end, "WARNING it happened (×10)", end]


def test_terminal_shows_a_progress_bar_and_the_same_lines() -> None:
    stream = Terminal()
    print_run([*RUN], stream)

    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "error: env 01: the gradient of the host is NaN" in text
    assert "done · round 2/2 step 5" in text
    assert "━" in text
    assert stream.getvalue().rstrip().endswith("\x1b[2K")  # the bar is gone at the end


def test_progress_bar_leaves_the_prints_of_a_run_to_its_log() -> None:
    def records() -> Iterator[Record]:
        thread = threading.Thread(target=print, args=("from the user's code",))
        thread.start()
        thread.join()
        yield from RUN

    stream = Terminal()
    with PrintedLines() as lines:
        RunPrinter(stream).run(records())
        thread = threading.Thread(target=sys.stderr.write, args=("an error\n",))
        thread.start()
        thread.join()
        assert lines.take() == (["from the user's code", "an error"], 0)
    assert "from the user's code" not in stream.getvalue()


def test_console_continues_from_a_keyframe() -> None:
    keyframe = Keyframe.from_state(fold(RUN[:36]))

    log = printed([keyframe, *RUN[36:]])

    assert "round 1/2" in log[0]
    assert print_run([keyframe, *RUN[36:]], io.StringIO()).seq == len(RUN)


def test_console_ends_when_run_has_ended_and_queue_is_empty() -> None:
    waiting: SimpleQueue[Record] = SimpleQueue()
    polls = 0

    def is_alive() -> bool:
        nonlocal polls
        polls += 1
        if polls == 2:  # the first poll has found an empty queue; now all events arrive at once
            for event in RUN:
                waiting.put(event)
        return polls < 3

    assert list(drain(waiting, is_alive)) == RUN


def test_console_ends_despite_a_slow_signal_handler() -> None:
    waiting: SimpleQueue[Record] = SimpleQueue()
    rescue = threading.Timer(20 * QUEUE_POLL_S, waiting.put, [RUN[0]])
    ending = time.monotonic() + 2 * QUEUE_POLL_S
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(2 * QUEUE_POLL_S))
    try:
        rescue.start()
        signal.setitimer(signal.ITIMER_REAL, QUEUE_POLL_S / 2)
        assert not list(drain(waiting, lambda: time.monotonic() < ending))
    finally:
        rescue.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_console_prints_a_summary() -> None:
    state = fold(RUN)

    lines = format_summary(state).splitlines()

    assert lines[0] == "run digits_impaired-20261121-015300: done"
    assert lines[1] == "ppo on digits_impaired, 4 envs, random seed 0"
    assert lines[2] == "10 of 10 steps, round 2 of 2; 1s, last steps at 20 env-steps/s"
    assert "last checkpoint at round 2 step 5: checkpoints/00002-005" in lines
    assert "first round and last round: never acts (4 episodes)" in lines
    assert "2 incidents, 1 active; anomalies: non-finite gradient ×1, dead head ×1" in lines
    assert not [line for line in lines if "--resume" in line]


def test_summary_has_at_most_14_lines_with_many_anomalies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("telemetry") / ("x" * 67)
    anomalies = [
        ev.AnomalyFound(
            rule=rule.value, severity="warning", where=f"env {env}", env=env, value=1.0, text=f"env {env}: " + "x" * 100
        )
        for rule in Rule
        for env in range(4)
    ]
    checkpoint = checkpoint_path(run, 2, 5)
    run.mkdir(parents=True)
    write_checkpoint(checkpoint, example_checkpoint(2))
    saved = ev.CheckpointSaved(round=2, step=5, path=str(checkpoint), bytes=1, origin="user")
    ended = ev.RunEnded(outcome="stopped", reason="a reason of several lines\n" * 20)

    state = fold(stamp([*RUN[:-1], *anomalies, saved, ended]))
    text, count = format_summary(state), len(group_incidents([*state.anomalies.values()]))

    assert sum(-(-len(line) // SUMMARY_COLS) for line in text.splitlines()) <= 14
    assert re.search(rf"\n{count} incidents, \d+ active; anomalies: ", text)
    assert text.endswith(f"resume with: esper-sanctum --resume {run}")
    shutil.rmtree(run)
    assert "resume with" not in format_summary(fold(stamp([*RUN[:-1], saved, ended])))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (RunState(), "the run has not started; no events were recorded"),
        (fold(RUN[:1]), "– env-steps/s"),
        (fold([*RUN[:5], ev.RunEnded(outcome="failed", reason="out of memory")]), "failed (out of memory)"),
    ],
)
def test_console_summary_marks_unknown_values(state: RunState, expected: str) -> None:
    assert expected in format_summary(state)


def test_growth_prints_its_trials_its_rounds_and_its_answer() -> None:
    run = growth_run()
    lines = [line[20:] for line in printed([*run])]
    assert "INFO    conv_small in mid at step 4, norm in late at step 4: pruned, score 42.7%" in lines
    assert "WARNING norm in mid at step 2, norm in late at step 6 failed: RuntimeError: out of memory" in lines
    best = "best so far: conv_small in mid at step 2, 86.0 %, ×1.53 parameters; your network 78.0 %"
    assert f"INFO    round 2: 8 of 12 trials; {best}" in lines
    assert sum(" round " in line for line in lines) == 5
    state = fold(run)
    assert state.search is not None
    assert f"INFO    {state.search.answer}" in lines
    summary = format_summary(state)
    assert "12 candidates: 8 done, 2 pruned, 1 broke down, 1 failed; 6 rounds" in summary
    assert str(state.search.answer) in summary
    stream = Terminal()
    print_run([*growth_run(stop=2)], stream)
    assert "running · 6 of 12 trials, round 2 step 2" in stream.getvalue()
