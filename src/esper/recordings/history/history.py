"""History: the events of a recording in order, and the state at any position.

Two rules make one history of several files. Every segment opens with a Keyframe, the state before its first event.
Where a Keyframe has an earlier state (a resumed run, a restored checkpoint), the events after that state were undone.

Memory is bounded: events stay in the files. Only a compressed RunState per few thousand events and the positions of
steps and rounds are kept.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from esper.recordings import events as ev
from esper.recordings.events import ClockChanged, EnvStepped, PhaseTimed, RoundStarted
from esper.recordings.files.decoder import DecodedSegment
from esper.recordings.files.reader import Block, RecordingReader
from esper.recordings.files.segments import ReadError, first_seq, packed_path
from esper.recordings.history.keyframe_index import IndexEntry, KeyframeIndex, compress_state
from esper.recordings.history.log_database import LogDatabase
from esper.recordings.history.timeline import Marks, RecordedClock
from esper.recordings.state.log_lines import LogLine
from esper.recordings.state.state import RunState

__all__ = ["History", "HistoryReader", "ReadError", "open_history"]


def open_history(path: Path, within: float = math.inf) -> History:
    """Open a recording and read it.

    Args:
        path: Run directory, or one file of events, plain or packed.
        within: Seconds after which the function returns with what it has read; `poll` continues.

    Raises:
        ReadError: The path does not exist, is not a recording, or holds events that this version cannot read.
    """
    if not path.exists() and not packed_path(path).exists():
        raise ReadError(f"no recording found at {path}")
    history = History(path)
    history.poll(within)
    return history


class HistoryReader(Protocol):
    """Object that follows what a history reads."""

    def read(self, position: int, events: Sequence[ev.AnyEvent]) -> None:
        """Receive events that were added after a position."""
        ...

    def rewind(self, position: int) -> None:
        """Learn that the events after a position were undone."""
        ...


class History:
    """Events of a run in order, without those that were undone, and the state at any position.

    Position n is the moment after the first n events. Created by `open_history`.

    Args:
        path: Run directory, or one file of events, plain or packed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = 0
        """Number of events."""
        self.duration = 0.0
        """Recorded seconds from the first event to the last."""
        self.steps = array("Q")
        """Positions at which a step has just ended: after its PhaseTimed event."""
        self.rounds = array("Q")
        """Positions at which a round is about to start: before its RoundStarted event."""
        self.marks = Marks()
        """Marks of notable events, and bookmarks of the user."""
        self.log = LogDatabase()
        """Log lines of all events, and those that the first Keyframe holds."""
        self.readers: list[HistoryReader] = []
        """Objects that receive the events as they are read, and learn of rewinds."""
        self._reader = RecordingReader(path)
        self._state = RunState()
        """State at the end of the history."""
        self._index = KeyframeIndex()
        self._clock = RecordedClock()
        self._keyframe_positions: set[int] = set()
        self._segment = self._reader.segment
        """Segment of the last block of records."""
        self._resuming = True
        """The next event is the first one of the history, of a segment, or after a Keyframe."""
        self._index_here(self._segment, 0, starts_segment=True)

    @property
    def notices(self) -> list[str]:
        """Sentences for the user about what is damaged, missing or was skipped."""
        return self._reader.notices.messages

    @property
    def is_fully_read(self) -> bool:
        """True if the last poll has read everything that was recorded."""
        return self._reader.is_fully_read

    @property
    def fraction_read(self) -> float:
        """Fraction of the recording that was read, by the bytes of its files; 1 after the first complete poll."""
        return self._reader.fraction_read

    def poll(self, within: float = math.inf) -> int:
        """Read further events.

        Args:
            within: Seconds after which the method returns.

        Returns:
            Position up to which the history is unchanged: the previous length, or less if events were undone.

        Raises:
            ReadError: A file cannot be read, is not a recording, or holds events that this version cannot read.
        """
        kept = self.length
        for block in self._reader.blocks(within):
            kept = min(kept, self._append(block) if block.state is None else self._apply_keyframe(block, block.state))
        return kept

    def state_at(self, position: int) -> RunState:
        """Return the state after the first `position` events, as a new object that the caller owns."""
        index = self._index.last_index("position", position)
        state = self._index[index].open()
        for event in self._entry_events(index, position):
            state.apply(event)
        return state

    def has_keyframe(self, position: int) -> bool:
        """Return True if a Keyframe replaces the state after the first `position` events."""
        return position in self._keyframe_positions

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[ev.AnyEvent]:
        """Yield the events from position `start` to `stop`, by default the current end."""
        stop = self.length if stop is None else min(stop, self.length)
        while start < stop:
            index = self._index.last_index("position", start)  # looked up again: meanwhile, entries may be dropped
            position = self._index[index].position
            for event in self._entry_events(index, stop):
                if position >= start:
                    yield event
                position += 1
            if position <= start:  # the file has lost events that were read before
                return
            start = position

    def elapsed(self, index: int, time: float) -> float:
        """Return the recorded seconds from the first event to an event.

        Recorded time stands still between the end of a run and its resumption.

        Args:
            index: Index of the event, from 0.
            time: Wall-clock time of the event, in seconds since the epoch.
        """
        return time - self._clock.offset_at(index)

    def position_at(self, seconds: float) -> int:
        """Return the position after the last event within that many recorded seconds from the first event."""
        index = self._index.last_index("elapsed", seconds)
        position = self._index[index].position
        for event in self._entry_events(index, self.length):
            if self.elapsed(position, event.time) > seconds:
                break
            position += 1
        return position

    @property
    def start_time(self) -> float | None:
        """Wall-clock time of the first event, in seconds since the epoch; None if there are no events."""
        return self._clock.offset_at(0) if self.length else None

    @property
    def end_time(self) -> float | None:
        """Wall-clock time of the last event, in seconds since the epoch; None if there are no events."""
        return self._state.time if self.length else None

    def position_at_time(self, time: float) -> int:
        """Return the position after the last event up to a wall-clock time; in a gap, the position at its end."""
        for start, end, offset in self._clock.constant_offset_ranges(self.length):
            position = self.position_at(time - offset)
            if position < end:
                return max(position, start)
        return self.length

    def step_end(self, position: int) -> int:
        """Return the step boundary at or after a position, so that rounds, steps and values belong to one step.

        Between two steps, that is the position itself; within a step, its end. A step that the recording does not
        finish has no end: then the position is returned.
        """
        if not self.state_at(position).working:
            return position
        end = self.next_step_end(position)
        return position if end is None else end

    def next_step_end(self, position: int) -> int | None:
        """Return the first end of a step at or after a position; None if there is none in the same round."""
        step, after = bisect_left(self.steps, position), bisect_left(self.rounds, position)
        end_of_round = self.rounds[after] if after < len(self.rounds) else self.length
        return self.steps[step] if step < len(self.steps) and self.steps[step] <= end_of_round else None

    def position_of_event(self, seq: int) -> int:
        """Return the position after the event with a number; if its line is missing, after the last event before it."""
        if not self.length:
            return 0

        def seq_at(position: int) -> int:
            return self.state_at(position).seq

        # Without damaged lines, the numbers have no gaps. Every missing line moves the event to an earlier position.
        latest = min(max(seq - seq_at(1) + 1, 0), self.length)
        if seq_at(latest) == seq:
            return latest
        return max(bisect_right(range(latest + 1), seq, key=seq_at) - 1, 0)

    def contiguous_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Split the range between two positions at the gaps of recorded time; yields start and end of each part."""
        for first, end, _ in self._clock.constant_offset_ranges(self.length):
            if max(first, start) < min(end, stop):
                yield max(first, start), min(end, stop)

    def _entry_events(self, index: int, stop: int) -> Iterator[ev.AnyEvent]:
        """Yield the events from one index entry to the next, up to position `stop`."""
        entry = self._index[index]
        count = min(stop, self._index.end_of(index, self.length)) - entry.position
        if count <= 0:
            return
        for _, _, content in entry.segment.scan(entry.offset, entry.envs):
            if isinstance(content, list):
                yield from content[:count]
                count -= len(content)
                if count <= 0:
                    return

    # Loading: the methods below add events to the end of the history.

    def is_undone(self, position: int) -> bool:
        """Return True if unread segments undo events before a position, because the run restored a checkpoint.

        Raises ReadError.
        """
        segments = self._reader.paths_after()
        return bool(segments) and min(map(first_seq, segments)) < self.state_at(position).seq

    def _append(self, block: Block) -> int:
        """Add events. Returns the position up to which the history is unchanged."""
        events, kept, last = block.events, self.length, self._state.time
        if block.segment is not self._segment:  # it does not open with a readable Keyframe
            self._segment, self._resuming = block.segment, True
            self._index_here(block.segment, block.start, starts_segment=True)
        if self._resuming:
            last = _time_before_change(events[0])
            kept = self._resume(block, last)
        if self._index.is_due(self.length):
            self._index_here(block.segment, block.start, starts_segment=False)
        self._check_sequence(block)
        length, offset = self.length, self._clock.wall_offset_s
        apply, add_mark = self._state.apply, self.marks.add_for_event  # looked up once, for speed
        recent, new_lines = self._state.log, list[LogLine]()
        for event in events:
            time = event.time
            if type(event) is ClockChanged:
                last += event.seconds
                offset += event.seconds
                self._clock.set_offset(length, offset)
            if time < last:
                offset += time - last
                self._clock.set_offset(length, offset)
            last = time
            apply(event)
            length += 1
            if type(event) is EnvStepped and not event.skipped_batches:
                continue  # three of four events, and none of them has a mark
            add_mark(event, length, last - offset)
            if recent and recent[-1].seq == event.seq:
                new_lines.append(recent[-1])
            kind = type(event)
            if kind is RoundStarted:
                self.rounds.append(length - 1)
            elif kind is PhaseTimed:
                self.steps.append(length)
        start, self.length, self.duration = self.length, length, last - offset
        self.log.extend(new_lines)
        for reader in self.readers:
            reader.read(start, events)
        return kept

    def _check_sequence(self, block: Block) -> None:
        """Report gaps in the numbers of events, except those left by unreadable lines."""
        events, last, skipped = block.events, self._state.seq, block.num_skipped
        if not last or events[-1].seq - last == len(events):
            return
        notices = self._reader.notices
        for event in events:
            if event.seq > last + 1 + skipped:
                notices.add_missing(block.segment.path, last + 1, event.seq - last - 1 - skipped)
            last, skipped = event.seq, 0

    def _resume(self, block: Block, time: float) -> int:
        """Prepare for the first event of all, or after a Keyframe. Returns the position up to which nothing changed."""
        kept, seq = self.length, block.events[0].seq
        if seq <= self._state.seq:  # the Keyframe of a restore was unreadable
            kept = self._rewind(seq - 1)
            self._state = self.state_at(kept)
            self._index_here(block.segment, block.start, starts_segment=True)
        self._clock.set_offset(self.length, time - self.duration)
        self._resuming = False
        return kept

    def _apply_keyframe(self, block: Block, state: RunState) -> int:
        """Continue from the state of a Keyframe. Returns the position up to which the history is unchanged."""
        # A single file may be an excerpt or a later part of a run, but a run directory holds the start of the run.
        if state.seq > self._state.seq and (self.length or self.path.is_dir()):
            missing = f"events {self._state.seq + 1} to {state.seq} are missing"
            path = block.segment.path
            self._reader.notices.replace(("gap", path), f"{missing} before {path}")
        kept = self._rewind(state.seq)
        self._segment, self._state = block.segment, state
        self._keyframe_positions.add(self.length)
        self.log.extend(
            line for line in state.log if line.seq > self.log.last_seq
        )  # those before the start of an excerpt, or in a gap
        self._resuming = True
        self._index_here(block.segment, block.end, starts_segment=True)
        return kept

    def _rewind(self, seq: int) -> int:
        """Drop the events with numbers above `seq`. Returns the length that is left."""
        index = self._index.last_index("seq", seq)
        position, duration = self._index[index].position, self._index[index].elapsed
        for event in self._entry_events(index, self.length):
            if event.seq > seq:
                break
            duration = self.elapsed(position, event.time)
            position += 1
        if position < self.length:
            self._index.truncate_after(index)
            del self.steps[bisect_right(self.steps, position) :]
            del self.rounds[bisect_left(self.rounds, position) :]
            self._keyframe_positions = {kept for kept in self._keyframe_positions if kept <= position}
            self.marks.truncate_after(position)
            self._clock.truncate_after(position)
            self.log.truncate_after(seq)
            self.length, self.duration = position, duration
            for reader in self.readers:
                reader.rewind(position)
        return position

    def _index_here(self, segment: DecodedSegment, offset: int, *, starts_segment: bool) -> None:
        """Add the state at the end of the history, which the segment has at an offset, to the index."""
        self._index.append(
            IndexEntry(
                position=self.length,
                seq=self._state.seq,
                elapsed=self.duration,
                segment=segment,
                offset=offset,
                envs=len(self._state.envs),
                starts_segment=starts_segment,
                state=compress_state(self._state),
            )
        )


def _time_before_change(event: ev.AnyEvent) -> float:
    """Return the time of an event by the clock before the change that the event may report."""
    return event.time - event.seconds if type(event) is ClockChanged else event.time
