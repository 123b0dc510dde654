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
from time import perf_counter
from typing import Protocol

from esper.history.keyframe_index import IndexEntry, KeyframeIndex, compress_state
from esper.history.log_database import LogDatabase
from esper.history.timeline import Marks, RecordedClock
from esper.recording.decoder import DecodedSegment, Notices, UnreadableLine, partial_line_message
from esper.recording.segments import ReadError, first_seq, fraction_read, list_segments, packed_path, plain_path
from esper.telemetry import events as ev
from esper.telemetry.codec import DECODE_ERRORS
from esper.telemetry.events import ClockChanged, EnvStepped, PhaseTimed, RoundStarted
from esper.telemetry.log_lines import LogLine
from esper.telemetry.state import Keyframe, RunState

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
        self._segment = DecodedSegment(plain_path(path))
        """Segment that is being read."""
        self._offset = 0
        """Bytes of the segment that were read."""
        self._complete = False
        """The segment was read to its end after it was finished."""
        self.is_fully_read = False
        """The last poll read everything that was recorded."""
        self.fraction_read = 0.0
        """Fraction of the recording that was read, by the bytes of its files; 1 after the first complete poll."""
        self.readers: list[HistoryReader] = []
        """Objects that receive the events as they are read, and learn of rewinds."""
        self.is_paused = False
        """While True, `poll` reads nothing, because a search of the unread part needs the CPU."""
        self._state = RunState()
        """State at the end of the history."""
        self._index = KeyframeIndex()
        self._clock = RecordedClock()
        self._resuming = True
        """The next event is the first one of the history, or the first one after a Keyframe."""
        self._is_damaged = False
        """A segment could not be unpacked completely, or does not end as a recording does."""
        self._skipped = 0
        """Number of unreadable lines since the last event."""
        self._notices = Notices(path)
        self._index_here(starts_segment=True)

    @property
    def notices(self) -> list[str]:
        """Sentences for the user about what is damaged, missing or was skipped."""
        return self._notices.messages

    def poll(self, within: float = math.inf) -> int:
        """Read further events.

        Args:
            within: Seconds after which the method returns.

        Returns:
            Position up to which the history is unchanged: the previous length, or less if events were undone.

        Raises:
            ReadError: A file cannot be read, is not a recording, or holds events that this version cannot read.
        """
        if self.is_paused:
            return self.length
        kept, deadline, paths = self.length, perf_counter() + within, self._paths()
        self.is_fully_read = True
        for path in paths:
            if self.is_fully_read and path > self._segment.path:
                self._begin_segment(path)
            if path == self._segment.path:
                kept = min(kept, self._read_segment(deadline))
        self._update_fraction_read(paths)
        if self.is_fully_read:
            self._notices.check(has_start=self._state.started is not None, is_intact=not self._is_damaged)
        return kept

    def state_at(self, position: int) -> RunState:
        """Return the state after the first `position` events, as a new object that the caller owns."""
        index = self._index.last_index("position", position)
        state = self._index[index].open()
        for event in self._entry_events(index, position):
            state.apply(event)
        return state

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

    def _paths(self) -> list[Path]:
        """Return the plain paths of the existing segments."""
        try:
            if not self.path.is_dir():
                return [plain_path(self.path)]
            paths = list_segments(self.path)
        except OSError as error:
            raise ReadError(f"cannot read {self.path}: {error.strerror}") from error
        if not paths and not (self.path / "run.json").exists():
            raise ReadError(f"{self.path} is not a run: it contains neither run.json nor events-00001.jsonl")
        return paths

    def unread_segments(self) -> list[Path]:
        """Return the plain paths of the segments that come after the one being read. Raises ReadError."""
        return [path for path in self._paths() if path > self._segment.path]

    def is_undone(self, position: int) -> bool:
        """Return True if unread segments undo events before a position, because the run restored a checkpoint.

        Raises ReadError.
        """
        segments = self.unread_segments()
        return bool(segments) and min(map(first_seq, segments)) < self.state_at(position).seq

    def _update_fraction_read(self, paths: list[Path]) -> None:
        if self.is_fully_read:
            self.fraction_read = 1.0
        elif self.fraction_read < 1:  # what a run writes later is read at once
            try:
                fraction = fraction_read(paths, self._segment, self._offset)
            except OSError as error:
                raise ReadError(f"cannot read {self.path}: {error.strerror}") from error
            self.fraction_read = max(self.fraction_read, min(fraction, 0.99))

    def _begin_segment(self, path: Path) -> None:
        """Begin to read another segment."""
        if self._offset and self._segment.remainder(self._offset):
            path_before = self._segment.path
            self._notices.replace(("partial line", path_before), partial_line_message(path_before))
        self._segment = DecodedSegment(path)
        self._offset, self._complete, self._resuming = 0, False, True
        self._notices.begin_file()
        self._index_here(starts_segment=True)

    def _read_segment(self, deadline: float) -> int:
        """Read the segment until its end or the deadline. Returns the position up to which the history is unchanged."""
        kept = self.length
        if self._complete:
            return kept
        is_finished = self._segment.is_finished  # checked before reading, because more may be appended until then
        found_keyframe = True
        while found_keyframe:
            found_keyframe = False
            for end, text, content in self._segment.scan(self._offset, len(self._state.envs)):
                if isinstance(content, UnreadableLine):
                    self._skip(end, content)
                    self._offset = end
                elif isinstance(content, Keyframe):
                    self._offset = end
                    kept = min(kept, self._apply_keyframe(end, text, content))
                    found_keyframe = True  # scan again, with the number of envs in the Keyframe
                    break
                else:
                    kept = min(kept, self._append(text, content))
                    self._offset = end
                if perf_counter() > deadline:
                    self.is_fully_read = False
                    return kept
        self._complete = is_finished
        self._report_damage()
        return kept

    def _append(self, text: bytes, events: list[ev.AnyEvent]) -> int:
        """Add events, one per line of the text. Returns the position up to which the history is unchanged."""
        kept, last = self.length, self._state.time
        if self._resuming:
            last = _time_before_change(events[0])
            kept = self._resume(events[0].seq, last)
        if self._index.is_due(self.length):
            self._index_here(starts_segment=False)
        self._notices.check_new_types(text, events)
        self._check_sequence(events)
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

    def _check_sequence(self, events: Sequence[ev.AnyEvent]) -> None:
        """Report gaps in the numbers of events, except those left by unreadable lines."""
        last, skipped, self._skipped = self._state.seq, self._skipped, 0
        if not last or events[-1].seq - last == len(events):
            return
        for event in events:
            if event.seq > last + 1 + skipped:
                self._notices.add_missing(self._segment.path, last + 1, event.seq - last - 1 - skipped)
            last, skipped = event.seq, 0

    def _resume(self, seq: int, time: float) -> int:
        """Prepare for the first event of all, or after a Keyframe. Returns the position up to which nothing changed."""
        kept = self.length
        if seq <= self._state.seq:  # the Keyframe of a restore was unreadable
            kept = self._rewind(seq - 1)
            self._state = self.state_at(kept)
            self._index_here(starts_segment=True)
        self._clock.set_offset(self.length, time - self.duration)
        self._resuming = False
        return kept

    def _apply_keyframe(self, end: int, text: bytes, keyframe: Keyframe) -> int:
        """Continue from the state of a Keyframe. Returns the position up to which the history is unchanged."""
        try:
            state = keyframe.decode_state()
        except DECODE_ERRORS as error:
            self._skip(end, UnreadableLine(None, str(error)))
            return self.length
        # A single file may be an excerpt or a later part of a run, but a run directory holds the start of the run.
        if keyframe.seq > self._state.seq and (self.length or self.path.is_dir()):
            missing = f"events {self._state.seq + 1} to {keyframe.seq} are missing"
            self._notices.replace(("gap", self._segment.path), f"{missing} before {self._segment.path}")
        self._notices.check_new_types(text, [keyframe])
        kept = self._rewind(keyframe.seq)
        self._state = state
        self.log.extend(
            line for line in state.log if line.seq > self.log.last_seq
        )  # those before the start of an excerpt, or in a gap
        self._resuming = True
        self._index_here(starts_segment=True)
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
            self.marks.truncate_after(position)
            self._clock.truncate_after(position)
            self.log.truncate_after(seq)
            self.length, self.duration = position, duration
            for reader in self.readers:
                reader.rewind(position)
        return position

    def _index_here(self, starts_segment: bool) -> None:
        """Add the state at the end of the history to the index."""
        self._index.append(
            IndexEntry(
                position=self.length,
                seq=self._state.seq,
                elapsed=self.duration,
                segment=self._segment,
                offset=self._offset,
                envs=len(self._state.envs),
                starts_segment=starts_segment,
                state=compress_state(self._state),
            )
        )

    def _skip(self, end: int, bad: UnreadableLine) -> None:
        """Report the line that ends at an offset as skipped. Raises ReadError if the file is not a recording."""
        segment = self._segment
        self._skipped += 1
        self._notices.skip(bad, (segment.path, end), lambda: segment.describe_line(end))

    def _report_damage(self) -> None:
        """Report damage of the segment, now read to its end."""
        segment = self._segment
        for packed in segment.damaged_paths:
            self._notices.replace(packed, f"{packed} is damaged and could not be unpacked completely")
        beginning = b'{"type":"'
        remainder = segment.remainder(self._offset)[: len(beginning)]
        self._is_damaged |= bool(segment.damaged_paths) or not beginning.startswith(remainder)


def _time_before_change(event: ev.AnyEvent) -> float:
    """Return the time of an event by the clock before the change that the event may report."""
    return event.time - event.seconds if type(event) is ClockChanged else event.time
