"""A piece of a recording as a small recording of its own: what one sends along with a bug report."""

from __future__ import annotations

import os
from itertools import count, islice
from pathlib import Path

import zstandard

from esper.telemetry.codec import encode, encode_lines
from esper.telemetry.reader import History
from esper.telemetry.segment_writer import LEVEL
from esper.telemetry.state import Keyframe

AROUND = 120.0
"""Recorded seconds that are kept before and after the moment."""
_BATCH = 1_000


def write_excerpt(history: History, elapsed: float, directory: Path) -> Path:
    """Write the minutes around a moment to a packed file that opens by itself: a Keyframe, and the events after it.

    Args:
        history: of the run.
        elapsed: recorded seconds to the moment.
        directory: where the file is made; none that is there is touched.

    Returns:
        The path of the file, named after the run and the step.

    Raises:
        OSError: it cannot be written; then nothing is left of it.
        ReadError: the history cannot be read.
    """
    start, stop = history.position_at(elapsed - AROUND), history.position_at(elapsed + AROUND)
    if elapsed <= AROUND:
        start = 0
    run = history.path.resolve().name.partition(".")[0]
    steps = history.state_at(history.position_at(elapsed)).steps_done
    path, descriptor = _new_file(directory, f"{run}-step{steps}")
    try:
        with os.fdopen(descriptor, "wb") as file, zstandard.ZstdCompressor(level=LEVEL).stream_writer(file) as packer:
            packer.write(encode(Keyframe.of(history.state_at(start))) + b"\n")
            events = history.events(start, stop)
            while batch := list(islice(events, _BATCH)):
                packer.write(encode_lines(batch))
    except BaseException:
        path.unlink()
        raise
    return path


def _new_file(directory: Path, name: str) -> tuple[Path, int]:
    """Make a file that was not there; a number goes with the name where it is taken. Raises OSError."""
    for number in count(1):
        path = directory / f"{name}{f'-{number}' if number > 1 else ''}.jsonl.zst"
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            continue
    raise AssertionError("count does not end")
