"""Excerpt of a recording: the events around a moment, in one file."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from esper.common.system.disk import numbered_paths
from esper.recordings.events.codec import encode_json, encode_lines
from esper.recordings.files.runs import stem_of
from esper.recordings.files.segments import write_frames
from esper.recordings.history.history import History
from esper.recordings.state.state import Keyframe

EXCERPT_MARGIN_S = 120.0
"""Recorded seconds in an excerpt before and after its moment."""
_BATCH_EVENTS = 1_000


def write_excerpt(history: History, position: int, directory: Path) -> Path:
    """Write the events around a moment to a packed recording that can be opened alone.

    It starts with a Keyframe, contains only complete steps, and has another Keyframe at each resumption of the run.

    Args:
        position: Position of the moment.
        directory: Existing directory for the file; no existing file is overwritten.

    Returns:
        Path of the file, named after the run and the step.

    Raises:
        OSError: The file cannot be written; then it does not exist.
        ReadError: The history cannot be read.
    """
    state = history.state_at(position)
    start, stop = _whole_steps(history, history.elapsed(position - 1, state.time) if position else 0.0)
    path, descriptor = create_unique_file(directory, f"{stem_of(history.path)}-step{state.steps_done}", ".jsonl.zst")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write_frames(_texts(history, start, stop), file)
    except BaseException:
        path.unlink()
        raise
    return path


def _texts(history: History, start: int, stop: int) -> Iterator[bytes]:
    for first, last in history.contiguous_ranges(start, stop):
        yield encode_json(Keyframe.from_state(history.state_at(first), history.start_time)) + b"\n"
        events = history.events(first, last)
        while batch := list(islice(events, _BATCH_EVENTS)):
            yield encode_lines(batch)


def _whole_steps(history: History, elapsed: float) -> tuple[int, int]:
    """Return the ends of steps that enclose EXCERPT_MARGIN_S before and after a moment in recorded seconds."""
    steps = history.steps
    before = bisect_right(steps, history.position_at(elapsed - EXCERPT_MARGIN_S)) if elapsed > EXCERPT_MARGIN_S else 0
    after = bisect_left(steps, history.position_at(elapsed + EXCERPT_MARGIN_S))
    return steps[before - 1] if before else 0, steps[after] if after < len(steps) else history.length


def create_unique_file(directory: Path, stem: str, suffix: str) -> tuple[Path, int]:
    """Create a file, with a number in its name if the name is taken; return path and descriptor. Raises OSError."""
    for path in numbered_paths(directory, stem, suffix):
        with suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    raise AssertionError("the numbers do not end")
