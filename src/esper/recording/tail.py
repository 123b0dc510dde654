"""Follows a recording while it is written.

However long a run is, its present is near: every segment opens with a Keyframe, so the last one is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from esper.recording.decoder import (
    MAX_DAMAGE_NOTICES,
    RECORD_TYPES,
    DecodedSegment,
    RecordSource,
    UnreadableLine,
    damaged_line_message,
    partial_line_message,
    unknown_type_message,
)
from esper.recording.merged_ranks import MergedRecording, rank_directories
from esper.recording.segments import ReadError, list_segments
from esper.telemetry import events as ev
from esper.telemetry.state import Keyframe, Record


class RecordingFollower:
    """The records of a run from the last Keyframe on; those of several ranks from the first on.

    Args:
        run: its directory.
    """

    def __init__(self, run: Path) -> None:
        self.notices: list[str] = []
        """What could not be read, or was skipped: sentences for people."""
        self._run = run
        self._source: RecordSource | None = None
        self._offset = 0
        """Bytes of it that were read."""
        self._envs = 0
        self._seq = -1
        """Of the last record."""
        self._damaged = 0
        self._strange: set[str] = set()
        """Unknown types that were told of."""

    def poll(self) -> Iterator[Record]:
        """What was written since the last poll: first a Keyframe, later those only that the run went back to.

        Raises ReadError if it cannot be read, or is of a version that this one cannot read.
        """
        try:
            ranks = rank_directories(self._run)
            paths = list_segments(self._run)
        except OSError as error:
            raise ReadError(f"cannot read {self._run}: {error.strerror}") from error
        if not paths:
            return
        if self._source is None:
            self._source = MergedRecording(self._run) if ranks else DecodedSegment(paths[-1])
        gone = isinstance(self._source, DecodedSegment) and self._source.path not in paths
        if not gone:
            yield from self._read_on(self._source)
        if isinstance(self._source, DecodedSegment):
            for path in [later for later in paths if later > self._source.path]:
                if gone:
                    self.notices.append(f"{self._source.path} has vanished: what was not read of it is lost")
                    gone = False
                elif self._source.remainder(self._offset):
                    self.notices.append(partial_line_message(self._source.path))
                self._source, self._offset = DecodedSegment(path), 0
                yield from self._read_on(self._source)

    def _read_on(self, source: RecordSource) -> Iterator[Record]:
        """Read a source to its end."""
        going = True
        while going:
            going = False
            for end, _, found in source.scan(self._offset, self._envs):
                self._offset = end
                if isinstance(found, Keyframe):
                    yield from self._apply_keyframe(found)
                    going = True  # with as many envs as the Keyframe has
                    break
                if isinstance(found, UnreadableLine):
                    self._skip(source, end, found)
                    continue
                if isinstance(found[0], ev.RunStarted):
                    self._envs = len(found[0].lanes)
                self._seq = found[-1].seq
                yield from found

    def _apply_keyframe(self, keyframe: Keyframe) -> Iterator[Keyframe]:
        """A Keyframe that says nothing new, as that of a next segment, is kept back."""
        try:
            self._envs = len(keyframe.decode_state().envs)
        except msgspec.DecodeError as error:
            raise ReadError(f"{self._run}: this version cannot read its state: {error}") from error
        if keyframe.seq != self._seq:
            self._seq = keyframe.seq
            yield keyframe

    def _skip(self, source: RecordSource, end: int, bad: UnreadableLine) -> None:
        if bad.type_name is None or bad.type_name in RECORD_TYPES:
            self._damaged += 1
            if self._damaged <= MAX_DAMAGE_NOTICES:
                self.notices.append(damaged_line_message(source.describe_line(end), bad.reason))
            elif self._damaged == MAX_DAMAGE_NOTICES + 1:
                self.notices.append("more lines are damaged and are skipped: replay tells of them")
        elif bad.type_name not in self._strange:
            self._strange.add(bad.type_name)
            self.notices.append(unknown_type_message(bad.type_name))
