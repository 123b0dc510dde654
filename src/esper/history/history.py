"""History: the events of a recording in order, and the state at any position.

Two rules make one history out of several files. Every segment opens with a Keyframe, the state from which it goes on.
Where a Keyframe goes back (a resumed run, a restored checkpoint), the events that it leaves behind were undone.

Memory stays bounded: events stay in the files. What is kept is a packed RunState for every few thousand of them, and
the positions of the steps.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import msgspec

from esper.history.keyframe_index import IndexEntry, KeyframeIndex, compress_state
from esper.history.timeline import Marks, RecordedClock
from esper.recording.decoder import DecodedSegment, Notices, RecordSource, UnreadableLine, partial_line_message
from esper.recording.merged_ranks import MergedRecording, rank_directories
from esper.recording.segments import ReadError, list_segments, packed_path, plain_path, segment_path
from esper.telemetry import events as ev
from esper.telemetry.events import EnvStepped, PhaseTimed, RoundStarted
from esper.telemetry.state import Keyframe, RunState

__all__ = ["History", "ReadError", "open_history"]


def open_history(path: Path, within: float = math.inf) -> History:
    """Read a run directory, or one file of events, plain or packed.

    Args:
        path: of the directory or file.
        within: seconds after which it returns with what it has; `poll` reads on.

    Raises:
        ReadError: there is nothing there, or something else, or events that this version cannot read.
    """
    if not path.exists() and not packed_path(path).exists():
        raise ReadError(f"there is no recording at {path}")
    history = History(path)
    history.poll(within)
    return history


class History:
    """The events of a run in order, without those that were undone. Position n is the moment after the first n."""

    def __init__(self, path: Path) -> None:
        """Made by `open_history`."""
        self.path = path
        self.length = 0
        """Number of events."""
        self.duration = 0.0
        """Recorded seconds to the last event."""
        self.steps = array("Q")
        """Positions at which a step has just ended: after its PhaseTimed."""
        self.rounds = array("Q")
        """Positions at which a round is about to start: before its RoundStarted."""
        self.marks = Marks()
        """What is looked for, and whoever watches has set a bookmark at."""
        self._segment: RecordSource = DecodedSegment(plain_path(path))
        """The last that was begun."""
        self._offset = 0
        """Bytes of it that were read."""
        self._complete = False
        """It was read to its end, after it was packed."""
        self.is_fully_read = False
        """The last poll came to the end of what there was."""
        self._state = RunState()
        """At the end."""
        self._index = KeyframeIndex()
        self._clock = RecordedClock()
        self._resuming = True
        """The next event is the first after a Keyframe, or of all."""
        self._skipped = 0
        """Lines since the last event."""
        self._notices = Notices(path)
        self._index_here(starts_segment=True)

    @property
    def notices(self) -> list[str]:
        """What could not be read, or was skipped: sentences for people."""
        return self._notices.messages

    def poll(self, within: float = math.inf) -> int:
        """Read what was not read yet, for so many seconds. Returns the position up to which the history is as it was.

        That is the old length, or less where events were undone. Raises ReadError as `open_history` does.
        """
        kept, deadline = self.length, perf_counter() + within
        self.is_fully_read = True
        for path in self._paths():
            if self.is_fully_read and path > self._segment.path:
                self._begin(path)
            if path == self._segment.path:
                kept = min(kept, self._read_on(deadline))
        return kept

    def state_at(self, position: int) -> RunState:
        """The state after the first `position` events: a fresh one that the caller owns."""
        index = self._index.index_at_position(position)
        state = self._index[index].open()
        for event in self._entry_events(index, position):
            state.apply(event)
        return state

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[ev.AnyEvent]:
        """The events from position `start` to `stop`, or to what is the end now."""
        stop = self.length if stop is None else min(stop, self.length)
        for index in range(self._index.index_at_position(start), len(self._index)):
            position = self._index[index].position
            if position >= stop:
                return
            for event in self._entry_events(index, stop):
                if position >= start:
                    yield event
                position += 1

    def elapsed(self, index: int, time: float) -> float:
        """Recorded seconds to event number `index` (from 0), which carries that wall-clock time.

        While nothing was recorded, between a run and its resumption, recorded time stands still.
        """
        return time - self._clock.offset_at(index)

    def position_at(self, seconds: float) -> int:
        """The last position that is reached within so many recorded seconds."""
        index = self._index.index_at_elapsed(seconds)
        position = self._index[index].position
        for event in self._entry_events(index, self.length):
            if self.elapsed(position, event.time) > seconds:
                break
            position += 1
        return position

    @property
    def start_time(self) -> float | None:
        """Wall-clock time of the first event, seconds since the epoch; None while there is none."""
        return self._clock.offset_at(0) if self.length else None

    @property
    def end_time(self) -> float | None:
        """Wall-clock time of the last event."""
        return self._state.time if self.length else None

    def position_at_time(self, time: float) -> int:
        """The last position that is reached at a wall-clock time; where nothing was recorded then, what came next."""
        for start, end, shift in self._clock.constant_offset_ranges(self.length):
            position = self.position_at(time - shift)
            if position < end:
                return max(position, start)
        return self.length

    def contiguous_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """What lies between two positions, in stretches over which recorded time went as the wall clock did."""
        for first, end, _ in self._clock.constant_offset_ranges(self.length):
            if max(first, start) < min(end, stop):
                yield max(first, start), min(end, stop)

    def _entry_events(self, index: int, stop: int) -> Iterator[ev.AnyEvent]:
        """Yield the events from one index entry to the next, up to position `stop`."""
        entry = self._index[index]
        count = min(stop, self._index.end_of(index, self.length)) - entry.position
        if count <= 0:
            return
        for _, _, found in entry.segment.scan(entry.offset, entry.envs):
            if isinstance(found, list):
                yield from found[:count]
                count -= len(found)
                if count <= 0:
                    return

    # Loading. Positions, states and times are kept as the events come.

    def _paths(self) -> list[Path]:
        """The plain paths of the segments that are there now."""
        try:
            if not self.path.is_dir():
                return [plain_path(self.path)]
            if rank_directories(self.path):
                if isinstance(self._segment, MergedRecording) or not self.length:
                    return [segment_path(self.path, 1)]
                joined = f"{self.path} went on with more ranks: open it again to see what they record"
                self._notices.replace(("ranks", self.path), joined)
            paths = list_segments(self.path)
        except OSError as error:
            raise ReadError(f"cannot read {self.path}: {error.strerror}") from error
        if not paths and not (self.path / "run.json").exists():
            raise ReadError(f"{self.path} is not a run: it holds neither run.json nor events-00001.jsonl")
        return paths

    def _begin(self, path: Path) -> None:
        """Go on with another file."""
        if self._offset and self._segment.remainder(self._offset):
            torn = self._segment.path
            self._notices.replace(("torn", torn), partial_line_message(torn))
        ranks = not self.length and self.path.is_dir() and rank_directories(self.path)
        self._segment, self._offset, self._complete = (
            MergedRecording(self.path) if ranks else DecodedSegment(path),
            0,
            False,
        )
        self._resuming = True
        self._notices.begin_file()
        self._index_here(starts_segment=True)

    def _read_on(self, deadline: float) -> int:
        """Read the segment to its end, if there is time. Returns the position up to which the history is as it was."""
        kept = self.length
        if self._complete:
            return kept
        packed = self._segment.is_finished
        going = True
        while going:
            going = False
            for end, text, found in self._segment.scan(self._offset, len(self._state.envs)):
                if isinstance(found, UnreadableLine):
                    self._skip(end, found)
                    self._offset = end
                elif isinstance(found, Keyframe):
                    self._offset = end
                    kept = min(kept, self._apply_keyframe(end, text, found))
                    going = True  # with as many envs as the Keyframe has
                    break
                else:
                    kept = min(kept, self._append(text, found))
                    self._offset = end
                if perf_counter() > deadline:
                    self.is_fully_read = False
                    return kept
        self._complete = packed
        self._check_end()
        return kept

    def _append(self, text: bytes, events: list[ev.AnyEvent]) -> int:
        """Take events in, one a line of the text. Returns the position up to which the history is as it was."""
        kept, last = self.length, self._state.time
        if self._resuming:
            kept, last = self._resume(events[0]), events[0].time
        if self._index.is_due(self.length):
            self._index_here(starts_segment=False)
        self._notices.check_new_types(text, events)
        self._check_sequence(events)
        length, shift, apply, note = self.length, self._clock.wall_offset_s, self._state.apply, self.marks.add_for_event
        for event in events:
            time = event.time
            if time < last:
                shift += time - last
                self._clock.set_offset(length, shift)
            last = time
            apply(event)
            length += 1
            if type(event) is EnvStepped and not event.skipped:
                continue  # three events of four, and no position that is looked for
            note(event, length, last - shift)
            kind = type(event)
            if kind is RoundStarted:
                self.rounds.append(length - 1)
            elif kind is PhaseTimed:
                self.steps.append(length)
        self.length, self.duration = length, last - shift
        return kept

    def _check_sequence(self, events: Sequence[ev.AnyEvent]) -> None:
        """Tell which numbers are left out before and among events, but for those of lines that were skipped."""
        last, skipped, self._skipped = self._state.seq, self._skipped, 0
        if not last or events[-1].seq - last == len(events):
            return
        for event in events:
            if event.seq > last + 1 + skipped:
                self._notices.add_missing(self._segment.path, last + 1, event.seq - last - 1 - skipped)
            last, skipped = event.seq, 0

    def _resume(self, event: ev.AnyEvent) -> int:
        """Make ready for the first event after a Keyframe, or of all. Returns the length of what is as it was."""
        kept = self.length
        if event.seq <= self._state.seq:  # the Keyframe that should have said so was unreadable
            kept = self._rewind(event.seq - 1)
            self._state = self.state_at(kept)
            self._index_here(starts_segment=True)
        self._clock.set_offset(self.length, event.time - self.duration)
        self._resuming = False
        return kept

    def _apply_keyframe(self, end: int, text: bytes, keyframe: Keyframe) -> int:
        """Go on from a Keyframe. Returns the position up to which the history is as it was."""
        try:
            state = keyframe.decode_state()
        except msgspec.DecodeError as error:
            self._skip(end, UnreadableLine(None, str(error)))
            return self.length
        # A single file may be a later part of a run, or cut out of one; a run's directory begins with its beginning.
        if keyframe.seq > self._state.seq and (self.length or self.path.is_dir()):
            lost = f"events {self._state.seq + 1} to {keyframe.seq} are missing"
            self._notices.replace(("gap", self._segment.path), f"{lost} before {self._segment.path}")
        self._notices.check_new_types(text, [keyframe])
        kept = self._rewind(keyframe.seq)
        self._state = state
        self._resuming = True
        self._index_here(starts_segment=True)
        return kept

    def _rewind(self, seq: int) -> int:
        """Forget the events after number `seq`. Returns the length that is left."""
        index = self._index.index_at_seq(seq)
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
            self.length, self.duration = position, duration
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
        """Go on without the line that ends at an offset. Raises ReadError where it cannot be damage."""
        segment = self._segment
        self._skipped += 1
        self._notices.skip(bad, (segment.path, end), lambda: segment.describe_line(end))

    def _check_end(self) -> None:
        """Raise ReadError if the file that was read to its end is no recording."""
        segment = self._segment
        for packed in segment.damaged_paths:
            self._notices.replace(packed, f"{packed} is damaged: not all of it can be unpacked")
        beginning = b'{"type":"'
        tail = segment.remainder(self._offset)[: len(beginning)]
        is_intact = not segment.is_corrupt and beginning.startswith(tail)
        self._notices.check(has_start=self._state.started is not None, is_intact=is_intact)
