"""Finds the run of a trial by its notes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.files.notes import NOTES_FILE, read_notes
from esper.recordings.files.run_lock import is_live
from esper.recordings.files.runs import last_write_time
from esper.recordings.files.segments import ReadError

ABANDONED_S = 600.0
"""Seconds after which a trial of another machine counts as abandoned if nothing writes to its run."""


def find_run(telemetry_dir: Path, study: str, trial: int) -> Path | None:
    """Return the run whose notes name a trial; None if there is none. Archived runs do not count.

    Of several runs, one that is live is preferred, then one with a checkpoint, then the one written to last.
    """
    found: list[tuple[bool, bool, float, Path]] = []
    for notes_file in telemetry_dir.glob(f"*/{NOTES_FILE}"):
        run = notes_file.parent
        with suppress(ReadError, OSError):
            notes = read_notes(run)
            if (notes.study, notes.trial) == (study, trial) and not notes.archived:
                found.append((is_live(run), bool(list_checkpoints(run)), last_write_time(run) or 0.0, run))
    return max(found)[-1] if found else None


def is_left_alone(run: Path) -> bool:
    """True if no process trains a run, and nothing was written to it for a while."""
    written = last_write_time(run)
    return written is not None and not is_live(run) and time.time() - written > ABANDONED_S
