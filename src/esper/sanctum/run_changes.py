"""Changes of recorded and live runs in the workspace: notes, deletion, and requests to their engines."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from esper.common.control import RequestKind
from esper.common.formatting import strip_control
from esper.common.system.process import spawn_program
from esper.recordings.attach.client import RemoteRequestQueue
from esper.recordings.files.notes import RunNotes, read_notes, write_notes
from esper.recordings.files.runs import is_shipped
from esper.recordings.files.segments import ReadError
from esper.recordings.history.run_info import RunInfo
from esper.recordings.history.run_status import LIVE_STATES, is_being_written


class RunChangeError(Exception):
    """A change of a run is refused, or has failed. The message is for the user."""


def change_notes(run: RunInfo, change: Callable[[RunNotes], RunNotes]) -> None:
    """Replace the notes on a run by the result of a function of the stored ones.

    Raises:
        RunChangeError: The run ships with the package, or the notes cannot be read or written.
    """
    directory = changeable_directory(run)
    try:
        write_notes(directory, change(read_notes(directory)))
    except ReadError as error:
        raise RunChangeError(str(error)) from None
    except OSError as error:
        raise RunChangeError(f"cannot write the notes of {directory}: {error.strerror}") from None


def delete_run(run: RunInfo) -> None:
    """Delete the directory of a run that no process writes to.

    Raises:
        RunChangeError: The run is live or ships with the package, or the directory cannot be deleted.
    """
    directory = changeable_directory(run)
    try:
        if is_being_written(directory, run.written, time.time()):
            raise RunChangeError(f"{directory} is not deleted: a process writes to it; stop the run first")
        shutil.rmtree(directory)
    except OSError as error:
        raise RunChangeError(f"cannot delete {directory}: {error.strerror}") from None


def changeable_directory(run: RunInfo) -> Path:
    """Return the directory of a run. Raises RunChangeError if it ships with the package."""
    directory = Path(run.path)
    if is_shipped(directory):
        raise RunChangeError(
            f"{run.title} ships with the package and is not changed; copy {directory} to change the copy"
        )
    return directory


class Resumption:
    """A command that resumes a run in a background process, which outlives the dashboard. It ends once the run trains.

    Args:
        run: Run directory.
        task: Reference of the task, if the user named it; None: the task is built in.

    Raises:
        OSError: The command cannot be started.
    """

    def __init__(self, run: Path, task: str | None) -> None:
        self.run = run
        self.output = ""
        """Last line that the command has printed; empty before it has ended."""
        words = ["--resume", str(run), "--detach", "--no-tui", *(["--task", task] if task else [])]
        with tempfile.TemporaryDirectory(prefix="esper-resume-") as folder:  # both processes keep the file open
            path = Path(folder) / "output.log"
            self._process = spawn_program(words, path)
            self._file = path.open(errors="replace")

    def poll(self) -> int | None:
        """Return the exit code of the command; None while the run is starting."""
        code = self._process.poll()
        if code is not None:
            with self._file:
                lines = self._file.read().splitlines()
            self.output = strip_control(lines[-1].removeprefix("esper-sanctum: ")) if lines else f"exit code {code}"
        return code


class LiveRunRequests:
    """Requests to live runs in other processes, with a queue and a thread for each run that gets one."""

    def __init__(self) -> None:
        self._queues: dict[str, RemoteRequestQueue] = {}
        """Keyed by run."""

    def send(self, run: RunInfo, kind: RequestKind) -> None:
        """Send a request; a pause of a paused run resumes it.

        Raises:
            RunChangeError: The run has ended.
        """
        if run.state not in LIVE_STATES:
            raise RunChangeError(f"{run.title} has ended: only a live run can be controlled")
        if run.run not in self._queues:
            self._queues[run.run] = RemoteRequestQueue(Path(run.path))
            self._queues[run.run].start()
        is_resumed = kind is RequestKind.PAUSE and run.state in {"paused", "held"}
        self._queues[run.run].put(RequestKind.RESUME if is_resumed else kind, "keyboard")

    def pending(self, run: str) -> list[str]:
        """Return the names of the requests that a run has not received yet."""
        return sorted(kind.value for kind in self._queues[run].unacknowledged) if run in self._queues else []

    def poll(self, runs: Mapping[str, RunInfo]) -> list[str]:
        """Close the queues of runs that have ended, and return the messages about refused requests.

        Args:
            runs: All runs, keyed by name.
        """
        messages: list[str] = []
        for name, queue in list(self._queues.items()):
            run = runs.get(name)
            messages += [f"{run.title if run else name}: {sentence}" for _, sentence in queue.pop_refusals()]
            if run is None or run.state not in LIVE_STATES:
                queue.close()
                del self._queues[name]
        return messages
