"""Hand-made recordings for tests of the readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from esper.recordings.events import AnyEvent
from esper.recordings.events.codec import encode_json
from esper.recordings.state.state import Keyframe, Record, RunState


def fold(events: Iterable[AnyEvent], state: RunState | None = None) -> RunState:
    state = state or RunState()
    for event in events:
        state.apply(event)
    return state


def lines(records: Iterable[Record]) -> bytes:
    return b"".join(encode_json(record) + b"\n" for record in records)


def recording(events: Sequence[AnyEvent], state: RunState | None = None) -> bytes:
    """Return a segment: the Keyframe of a state, by default an empty one, and the events after it."""
    return lines([Keyframe.from_state(state or RunState()), *events])


def write_segment(directory: Path, number: int, content: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / f"events-{number:05d}.jsonl"
    path.write_bytes(content)
    return path
