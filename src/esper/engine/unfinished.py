"""Finds the run that a command has begun, by its name or its settings. Importing this module does not import torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from esper.config import Config
from esper.engine.growth import is_growth, kept_settings, read_run_manifest
from esper.recording.notes import RunNotes, read_notes
from esper.recording.runs import last_write_time, list_runs
from esper.recording.segments import ReadError
from esper.telemetry.codec import encode_json


def command_digest(config: Config, name: str) -> str:
    """Return the digest of a command, which `run.json` stores: a command finds its run with it.

    Args:
        config: Configuration as the user gave it, before the task and the policy are loaded.
        name: Value of `--name`; empty without one.
    """
    return hashlib.blake2b(encode_json([kept_settings(config), name]), digest_size=16).hexdigest()


def find_begun_run(config: Config, name: str, since: float | None = None) -> Path | None:
    """Return the run that a command has begun and that it is to continue; None if there is none.

    With a name, it is the run of that name, even if it is done. Without one, it is the newest run of the same settings
    that is not done. Growths and archived runs do not count.

    Args:
        config: Configuration as the user gave it.
        name: Value of `--name`; empty without one.
        since: Time in seconds since the epoch from which on a run that is done counts too; None: it never does.

    Raises:
        OSError: The directory cannot be read.
    """
    command = command_digest(config, name)
    for run, notes in _candidates(Path(config.telemetry_dir)):
        is_same = read_run_manifest(run).command == command
        if name and (is_same or notes.name == name):
            return run
        if not name and is_same and (not is_done(run) or _is_written_since(run, since)):
            return run
    return None


def is_done(run: Path) -> bool:
    """Return True if a run has recorded that all of its rounds are done."""
    from esper.history.run_info import RunEnd  # few commands need it

    try:
        return RunEnd(run).read().status == "done"
    except (ReadError, OSError):  # its checkpoints may be intact
        return False


def _candidates(telemetry_dir: Path) -> Iterator[tuple[Path, RunNotes]]:
    """Yield the runs that are neither growths nor archived, the one written to last first, with their notes."""
    for run in list_runs(telemetry_dir):
        try:
            notes = read_notes(run)
        except ReadError:  # damaged notes must not hide a run that is found by its settings
            notes = RunNotes()
        if not notes.archived and not is_growth(run):
            yield run, notes


def _is_written_since(run: Path, since: float | None) -> bool:
    return since is not None and (last_write_time(run) or 0.0) >= since
