"""A piece of a recording as a small recording of its own: what one sends along with a bug report."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from itertools import count, islice
from pathlib import Path

import zstandard

from esper.recording.segments import LEVEL
from esper.telemetry.codec import encode, encode_lines
from esper.telemetry.reader import History
from esper.telemetry.state import Keyframe

AROUND = 120.0
"""Recorded seconds that are kept before and after the moment."""
_BATCH = 1_000


def write_excerpt(history: History, position: int, directory: Path) -> Path:
    """Write the minutes around a moment to a packed file that opens by itself: a Keyframe, and the events after it.

    It begins and ends with whole steps. Where the run was resumed within it, another Keyframe says so.

    Args:
        history: of the run.
        position: of the moment.
        directory: where the file is made; none that is there is touched.

    Returns:
        The path of the file, named after the run and the step.

    Raises:
        OSError: it cannot be written; then nothing is left of it.
        ReadError: the history cannot be read.
    """
    state = history.state_at(position)
    start, stop = _whole_steps(history, history.elapsed(position - 1, state.time) if position else 0.0)
    run = history.path.resolve().name.partition(".")[0]
    path, descriptor = _new_file(directory, f"{run}-step{state.steps_done}")
    try:
        with os.fdopen(descriptor, "wb") as file, zstandard.ZstdCompressor(level=LEVEL).stream_writer(file) as packer:
            for first, last in history.stretches(start, stop):
                packer.write(encode(Keyframe.of(history.state_at(first))) + b"\n")
                events = history.events(first, last)
                while batch := list(islice(events, _BATCH)):
                    packer.write(encode_lines(batch))
    except BaseException:
        path.unlink()
        raise
    return path


def _whole_steps(history: History, elapsed: float) -> tuple[int, int]:
    """The positions of the first and the last end of a step that hold the minutes around a moment between them."""
    steps = history.steps
    before = bisect_right(steps, history.position_at(elapsed - AROUND)) if elapsed > AROUND else 0
    after = bisect_left(steps, history.position_at(elapsed + AROUND))
    return steps[before - 1] if before else 0, steps[after] if after < len(steps) else history.length


def _new_file(directory: Path, name: str) -> tuple[Path, int]:
    """Make a file that was not there; a number goes with the name where it is taken. Raises OSError."""
    for number in count(1):
        path = directory / f"{name}{f'-{number}' if number > 1 else ''}.jsonl.zst"
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            continue
    raise AssertionError("count does not end")
