"""A run in another process, for a dashboard in this one: its recording is followed, its socket is asked."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue

from esper.attach.client import RemoteRequestQueue
from esper.recording.run_lock import is_live
from esper.recording.segments import ReadError
from esper.recording.tail import RecordingFollower
from esper.telemetry.state import Keyframe, Record, RunState

RECORDING_POLL_S = 0.1
"""Seconds between looks at the recording."""


class AttachedRun:
    """Gives the present of a run as one Keyframe, and then its records as they are written.

    Args:
        directory: of the run.
        read_only: ask nothing of it.
    """

    def __init__(self, directory: Path, *, read_only: bool) -> None:
        self.directory = directory
        self.records: SimpleQueue[Record] = SimpleQueue()
        self.read_only = read_only
        self.control = RemoteRequestQueue(directory)
        self.fatal_error: str | None = None
        """Why the run can be followed no longer: one sentence."""
        self._tail = RecordingFollower(directory)
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    @property
    def notices(self) -> list[str]:
        """What could not be read, or was skipped: sentences for people."""
        return self._tail.notices

    @property
    def is_engine_alive(self) -> bool:
        """Whether more may come."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()
        if not self.read_only:
            self.control.start()

    def close(self) -> None:
        """Ask nothing more. The run goes on."""
        self.control.close()

    def _follow(self) -> None:
        try:
            self._fold_existing()
            live = True
            while live:
                time.sleep(RECORDING_POLL_S)
                live = is_live(self.directory)  # before the last look: what is written until its end is read
                for record in self._tail.poll():
                    self.records.put(record)
        except ReadError as error:
            self.fatal_error = str(error)
        except OSError as error:
            self.fatal_error = f"cannot read {self.directory}: {error.strerror}"

    def _fold_existing(self) -> None:
        """What is there already, as one state: a screen must not fold it event by event."""
        state = RunState()
        for record in self._tail.poll():
            if isinstance(record, Keyframe):
                state = record.decode_state()
            else:
                state.apply(record)
        if state.seq:
            self.records.put(Keyframe.from_state(state))
