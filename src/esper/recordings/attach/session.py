"""Connection of a viewer to a run in another process: follows its recording, sends requests over its socket."""

from __future__ import annotations

import time
from pathlib import Path
from queue import SimpleQueue

from esper.common.system.process import NamedThread
from esper.recordings.attach.client import RemoteRequestQueue
from esper.recordings.files.reader import RecordingReader
from esper.recordings.files.run_directory import RunDirectory, RunDirectoryError
from esper.recordings.files.run_lock import is_live
from esper.recordings.files.segments import ReadError
from esper.recordings.state.state import Keyframe, Record, RunState

RECORDING_POLL_S = 0.1
"""Seconds between polls of the recording."""


class AttachedRun:
    """A live run: first its current state as one Keyframe, then its records as they are written.

    Args:
        directory: Run directory.
        read_only: Do not connect to the socket, and send no requests.
    """

    def __init__(self, directory: Path, *, read_only: bool) -> None:
        self.directory = directory
        self.records: SimpleQueue[Record] = SimpleQueue()
        self.read_only = read_only
        self.control = RemoteRequestQueue(directory)
        self.start_stage = ""
        """Empty: the start of the run is not known here."""
        self.fatal_error: str | None = None
        """Reason, as one sentence, why the run can no longer be followed; None while it can."""
        self.run_directory: RunDirectory | None = None
        """Run directory, held open; None before the run is followed."""
        self._reader = RecordingReader(directory, from_last_segment=True)
        self._is_closed = False
        self._is_live = True
        """A process trained the run when its records were read last."""
        self._thread = NamedThread(target=self._follow, name="follower", daemon=True)

    @property
    def notices(self) -> list[str]:
        """Sentences about parts of the recording that could not be read, or were skipped."""
        return self._reader.notices.messages

    @property
    def is_engine_alive(self) -> bool:
        """True while a process trains the run, and until its last records were read.

        It is true again after another process has resumed the run, which this session follows, too.
        """
        return self._thread.is_alive() and self._is_live

    def start(self) -> None:
        """Start to follow the recording and, unless the viewer is read-only, connect to the socket."""
        self._thread.start()
        if not self.read_only:
            self.control.start()

    def close(self) -> None:
        """Stop following the run, and sending requests. The run continues."""
        self._is_closed = True
        self.control.close()

    def _follow(self) -> None:
        try:
            self.run_directory = directory = RunDirectory(self.directory)
            self._fold_existing()
            is_there = True
            while not self._is_closed:
                time.sleep(RECORDING_POLL_S)
                live = is_live(directory.held)  # before the poll, so that the last poll reads everything
                was_there, is_there = is_there, self._is_there(directory, live=live)
                if not is_there:
                    if was_there and live:
                        text = f"{self.directory} was moved or replaced; the run waits until it is back"
                        self._reader.notices.replace(("moved", time.monotonic()), text)
                    continue
                for record in self._reader.records():
                    self.records.put(record)
                self._is_live = live
        except ReadError as error:
            self.fatal_error = str(error)
        except OSError as error:
            self.fatal_error = f"cannot read {self.directory}: {error.strerror}"

    def _is_there(self, directory: RunDirectory, *, live: bool) -> bool:
        """Return True if the directory is at its path. Raises OSError if it is not, and the run has ended just now."""
        try:
            directory.check()
        except RunDirectoryError:
            if self._is_live and not live:
                raise
            return False
        return True

    def _fold_existing(self) -> None:
        """Fold the existing recording into one Keyframe, because a screen would take too long to apply every event."""
        state = self._reader.fold_into(RunState())
        if state.seq:
            self.records.put(Keyframe.from_state(state))
