"""Properties of the unread part of a recording."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from esper.history.history import History
from esper.recording.segments import Segment

_KEYFRAME_SEQ = re.compile(rb'\{"type":"Keyframe","seq":(\d+)')


def is_undone(history: History, position: int) -> bool:
    """Return True if later segments of a run undo events before a position, because the run restored a checkpoint.

    Args:
        history: History that is not read completely.
        position: Position in the part that was read.

    Raises:
        ReadError: A file cannot be read.
    """
    segments = history.unread_segments()
    return bool(segments) and min(map(first_seq, segments)) < history.state_at(position).seq


@lru_cache(maxsize=4096)
def first_seq(path: Path) -> int:
    """Return the event number of the Keyframe that a segment opens with; 0 if there is none."""
    match = _KEYFRAME_SEQ.match(Segment(path).remainder(0))
    return int(match[1]) if match else 0
