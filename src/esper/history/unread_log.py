"""Log lines of the part of a recording that a history has not read yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from esper.history.log_database import MAX_SEQ, LogDatabase
from esper.process import NamedThread
from esper.recording.segments import ReadError, Segment, first_seq
from esper.telemetry import events as ev
from esper.telemetry.codec import DECODE_ERRORS, make_decoder
from esper.telemetry.log_lines import LogLine, make_log_line
from esper.telemetry.sentences import UNLOGGED_EVENTS

_END_OF_STEP = b'{"type":"PhaseTimed"'
_SKIPPED_TYPES = sorted({kind.__name__ for kind in UNLOGGED_EVENTS} - {ev.PhaseTimed.__name__} | {"Keyframe"})
_RELEVANT_LINE = re.compile(rf'\n(?!{{"type":"(?:{"|".join(_SKIPPED_TYPES)})")([^\n]+)'.encode())
"""A line end, and a line of an event that has a log line or ends a step."""


class UnreadLog:
    """Reader of the log lines of segments, in a thread, from the newest segment backwards.

    Most events have no log line. They are skipped without being decoded or folded, which is several times as fast as a
    `History`.

    Args:
        segments: Plain paths of all segments that were not read, in order.
        log: Database that receives the lines.
    """

    def __init__(self, segments: Sequence[Path], log: LogDatabase) -> None:
        self.ranges: list[tuple[int, int]] = []
        """Range of event numbers of each segment that was read completely, the newest segment first."""
        self.num_segments = len(segments)
        self._segments = segments
        self._log = log
        self._is_stopped = False
        self._thread = NamedThread(target=self._read, name="log-search", daemon=True)
        self._thread.start()

    @property
    def is_reading(self) -> bool:
        """True until all segments were read, or one could not be read."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Read no further segment."""
        self._is_stopped = True

    def _read(self) -> None:
        until_seq = MAX_SEQ
        for path in reversed(self._segments):
            try:
                first = last = first_seq(path)
                for lines in read_log_lines(path, until_seq):
                    self._log.add_unread(lines)
                    last = lines[-1].seq
            except ReadError:
                return  # the history reads the segment too, and reports the error
            self.ranges.append((first, last))
            until_seq = min(until_seq, first)
            if self._is_stopped:
                return


def read_log_lines(path: Path, until_seq: int) -> Iterator[list[LogLine]]:
    """Yield the log lines of a segment in blocks. The steps of different segments have different numbers.

    Args:
        path: Plain path.
        until_seq: Number of the last event that was not undone later.

    Raises:
        ReadError: The file cannot be read.
    """
    step = first_seq(path)  # not the number in the run, but higher than in the segment before
    for _, text in Segment(path).line_blocks(0):
        lines: list[LogLine] = []
        for match in _RELEVANT_LINE.finditer(b"\n" + text):
            line: bytes = match[1]
            if line.startswith(_END_OF_STEP):
                step += 1
                continue
            try:
                event = _decode(line)
            except DECODE_ERRORS:
                continue  # the history reports the damage
            if event.seq <= until_seq and (log_line := make_log_line(event, step)) is not None:
                lines.append(log_line)
        if lines:
            yield lines


_decoder: msgspec.json.Decoder[ev.AnyEvent] = make_decoder(ev.AnyEvent)
_decode = _decoder.decode
