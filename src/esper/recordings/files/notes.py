"""The user's notes on a run: name, tags, text. They are stored beside the recording, and are no part of it."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec

from esper.common.system.disk import read_regular, write_replaced
from esper.recordings.events.codec import DECODE_ERRORS, encode_json
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.segments import ReadError

NOTES_FILE = "notes.json"
"""Name of the file in the directory of a run."""
MAX_NOTES_BYTES = 1 << 16
BASELINE_TAG = "baseline"
"""Tag of the run that others are compared with. Of several, the one written to last is the baseline."""


class RunNotes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Notes on a run. The user can change them at any time."""

    name: str = ""
    """Name that lists show instead of that of the directory; empty for none."""
    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False
    """True to hide the run in lists."""
    study: str = ""
    """Study of a sweep to which the run belongs; empty for none."""
    trial: int | None = None
    """Number of its trial in the study; None without a study."""


def read_notes(run: Path) -> RunNotes:
    """Return the notes on a run; empty notes if there are none.

    Raises:
        ReadError: The file cannot be read.
    """
    path = run / NOTES_FILE
    try:
        return msgspec.json.decode(read_regular(path, limit=MAX_NOTES_BYTES), type=RunNotes)
    except FileNotFoundError:
        return RunNotes()
    except OSError as error:
        raise ReadError(f"cannot read {path}: {error.strerror}") from None
    except DECODE_ERRORS as error:
        raise ReadError(f"{path} is damaged ({error}); delete it to use the run without its notes") from None


def write_notes(run: Path, notes: RunNotes) -> None:
    """Replace the notes on a run. Raises OSError, also if they are too long."""
    write_replaced(run / NOTES_FILE, encode_notes(notes))


def update_notes(run: RunDirectory, given: RunNotes) -> None:
    """Replace those notes on a run that are given, which means not empty.

    Raises:
        ReadError: The notes on the run cannot be read.
        OSError: They cannot be written, or the directory is not at its path.
    """
    empty = RunNotes()
    changes = {
        field: value for field in given.__struct_fields__ if (value := getattr(given, field)) != getattr(empty, field)
    }
    if changes:
        write_notes(run.check(), msgspec.structs.replace(read_notes(run.path), **changes))


def encode_notes(notes: RunNotes) -> bytes:
    """Return the content of the file. Raises OSError if it would be too long to be read again."""
    content = msgspec.json.format(encode_json(notes)) + b"\n"
    if len(content) > MAX_NOTES_BYTES:
        raise OSError(errno.EFBIG, f"the notes have {len(content):,} bytes; the limit is {MAX_NOTES_BYTES:,}")
    return content
