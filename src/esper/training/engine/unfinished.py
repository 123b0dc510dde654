"""Finds the run that a command has begun, by its name or its settings. Importing this module does not import torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from esper.common.configuration.config import Config
from esper.recordings.events.codec import encode_json
from esper.recordings.files.notes import RunNotes, read_notes
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_manifest import read_run_manifest
from esper.recordings.files.runs import last_write_time, list_runs
from esper.recordings.files.segments import ReadError
from esper.recordings.history.run_groups import PLACE_KEYS

_CHANGEABLE_KEYS = PLACE_KEYS | {"anomalies"}
"""Keys of the configuration that may differ when the same command continues a growth or a run."""


def kept_settings(config: Config) -> dict[str, Any]:
    """Return the settings that a command keeps when it continues a growth or a run: all but devices, directories and
    the like.
    """
    settings: dict[str, Any] = msgspec.to_builtins(config)
    return {name: value for name, value in settings.items() if name not in _CHANGEABLE_KEYS}


def command_digest(config: Config, name: str) -> str:
    """Return the digest of a command, which `run.json` stores: a command finds its run with it.

    Args:
        config: Configuration as the user gave it, before the task and the policy are loaded.
        name: Value of `--name`; empty without one.
    """
    return hashlib.blake2b(encode_json([kept_settings(config), name]), digest_size=16).hexdigest()


def find_begun_run(config: Config, name: str, since: float = 0.0) -> RunDirectory | None:
    """Return the directory of the newest run that a command has begun; None if there is none.

    It is a run of the given name, or one of the same settings and the same name. Growths and archived runs do not
    count.

    Args:
        config: Configuration as the user gave it.
        name: Value of `--name`; empty without one.
        since: Time of the last write, in seconds since the epoch, from which on a run that is done counts too.

    Raises:
        OSError: The directory cannot be read.
    """
    command = command_digest(config, name)
    for run in list_runs(Path(config.telemetry_dir)):
        try:
            directory = RunDirectory(run)  # before its files are read: another directory may replace it
        except OSError:  # it was moved or deleted since it was listed
            continue
        notes, manifest = _read_notes(run), read_run_manifest(run)
        is_own = manifest.command == command or (name and notes.name == name)
        if not is_own or notes.archived or manifest.growth is not None:
            continue
        if (last_write_time(run) or 0.0) >= since or not is_done(run):
            return directory
    return None


def is_done(run: Path) -> bool:
    """Return True if a run has recorded that all of its rounds are done."""
    from esper.recordings.history.run_info import RunEnd  # few commands need it

    try:
        return RunEnd(run).read().status == "done"
    except (ReadError, OSError):  # its checkpoints may be intact
        return False


def _read_notes(run: Path) -> RunNotes:
    try:
        return read_notes(run)
    except ReadError:  # damaged notes must not hide a run that is found by its settings
        return RunNotes()
