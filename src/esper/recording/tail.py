"""Follows a recording while it is written.

However long a run is, its current state is near: every segment opens with a Keyframe, so the last segment is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from esper.recording.decoder import (
    MAX_DAMAGE_NOTICES,
    RECORD_TYPES,
    DecodedSegment,
    UnreadableLine,
    damaged_line_message,
    partial_line_message,
    unknown_type_message,
)
from esper.recording.segments import ReadError, list_segments
from esper.telemetry import events as ev
from esper.telemetry.codec import DECODE_ERRORS
from esper.telemetry.state import Keyframe, Record


class RecordingFollower:
    """Reader of the records of a run from its last Keyframe on.

    Args:
        run: Directory of the run.
    """

    def __init__(self, run: Path) -> None:
        self.notices: list[str] = []
        """Sentences for the user about what was damaged, missing or skipped; only appended to."""
        self._run = run
        self._source: DecodedSegment | None = None
        self._offset = 0
        """Bytes of the source that were read."""
        self._envs = 0
        """Number of envs; 0 if not known yet."""
        self._seq = -1
        """Number of the last record."""
        self._num_damaged = 0
        self._unknown_types: set[str] = set()
        """Unknown types that were reported."""

    def poll(self) -> Iterator[Record]:
        """Yield the records written since the last poll.

        The first record is a Keyframe. Later Keyframes are yielded only if they restore an earlier state.

        Raises:
            ReadError: The recording cannot be read, or another version wrote it.
        """
        try:
            paths = list_segments(self._run)
        except OSError as error:
            raise ReadError(f"cannot read {self._run}: {error.strerror}") from error
        if not paths:
            return
        if self._source is None:
            self._source = DecodedSegment(paths[-1])
        is_deleted = self._source.path not in paths
        if not is_deleted:
            yield from self._read_to_end(self._source)
        for path in [later for later in paths if later > self._source.path]:
            if is_deleted:
                self.notices.append(f"{self._source.path} was deleted; its unread events are lost")
                is_deleted = False
            elif self._source.remainder(self._offset):
                self.notices.append(partial_line_message(self._source.path))
            self._source, self._offset = DecodedSegment(path), 0
            yield from self._read_to_end(self._source)

    def _read_to_end(self, source: DecodedSegment) -> Iterator[Record]:
        found_keyframe = True
        while found_keyframe:
            found_keyframe = False
            for end, _, content in source.scan(self._offset, self._envs):
                self._offset = end
                if isinstance(content, Keyframe):
                    yield from self._apply_keyframe(content)
                    found_keyframe = True  # scan again, with the number of envs in the Keyframe
                    break
                if isinstance(content, UnreadableLine):
                    self._skip(source, end, content)
                    continue
                if isinstance(content[0], ev.RunStarted):
                    self._envs = len(content[0].lanes)
                self._seq = content[-1].seq
                yield from content

    def _apply_keyframe(self, keyframe: Keyframe) -> Iterator[Keyframe]:
        """Yield a Keyframe, unless it only repeats the current state, as at the start of the next segment."""
        try:
            self._envs = len(keyframe.decode_state().envs)
        except DECODE_ERRORS as error:
            raise ReadError(f"{self._run}: this version cannot read its state: {error}") from error
        if keyframe.seq != self._seq:
            self._seq = keyframe.seq
            yield keyframe

    def _skip(self, source: DecodedSegment, end: int, bad: UnreadableLine) -> None:
        if bad.type_name is None or bad.type_name in RECORD_TYPES:
            self._num_damaged += 1
            # Beyond the limit no line is located, because that reads the file from its start.
            if self._num_damaged <= MAX_DAMAGE_NOTICES:
                self.notices.append(damaged_line_message(source.describe_line(end), bad.reason))
            elif self._num_damaged == MAX_DAMAGE_NOTICES + 1:
                self.notices.append("more lines are damaged and were skipped; replay the run to count them")
        elif bad.type_name not in self._unknown_types:
            self._unknown_types.add(bad.type_name)
            self.notices.append(unknown_type_message(bad.type_name))
