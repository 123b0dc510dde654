"""Records the end of a run that was killed, or failed, after the checkpoint of its last round."""

from __future__ import annotations

import msgspec

from esper.recordings import events as ev
from esper.recordings.events.clock import EventClock
from esper.recordings.files.recorder import Recorder, RecordingError
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.history.history import open_history
from esper.recordings.state.state import Keyframe


def record_run_end(run: RunDirectory) -> bool:
    """Record that a run is done whose rounds are all done. Does nothing if the run has recorded it.

    The caller holds the lock of the run.

    Returns:
        True if it was missing.

    Raises:
        ReadError: The recording cannot be read.
        RecordingError: The recording cannot be written.
    """
    history = open_history(run.path)
    state = history.state_at(history.length)
    if state.status == "done":
        return False
    recorder = Recorder(run)
    now, _ = EventClock().read()
    recorder.put(msgspec.structs.replace(Keyframe.from_state(state), restored=now))
    recorder.put(ev.RunEnded(seq=state.seq + 1, time=now, outcome="done"))
    recorder.close()
    if recorder.failure:
        raise RecordingError(recorder.failure)
    return True
