"""`run.json` of a run directory, as a reader needs it: the version of its events, and what identifies the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from esper.common.domain import VERSION
from esper.common.system.disk import read_regular
from esper.recordings.events.codec import DECODE_ERRORS

MANIFEST_FILE = "run.json"
MAX_MANIFEST_BYTES = 1 << 20
"""Maximum size of a manifest that is read."""


class RunManifest(msgspec.Struct, frozen=True):
    """Fields of `run.json` that a reader needs."""

    schema: int | None = None
    """Version of the events; None if it is not known."""
    versions: dict[str, str] = {}
    """Versions of the program that wrote it, and of its libraries."""
    growth: dict[str, Any] | None = None
    """Settings that a growth keeps; None if the run is not a growth."""
    command: str | None = None
    """Digest of the command that began a run, see `unfinished.command_digest`; None if the run is a growth."""

    @property
    def advice(self) -> str:
        """Advice for a file of another format: the version to install; empty if the writer is not known."""
        writer = self.versions.get("esper-sanctum")
        if writer is None:
            return ""
        if writer == VERSION:
            return f"; an earlier development state of {writer} wrote it: use it with that state, or train again"
        return f"; version {writer} wrote it: install that version to use it"


def read_run_manifest(run: Path) -> RunManifest:
    """Return the manifest of a run; an empty one if the directory has none, or it is damaged."""
    try:
        return msgspec.json.decode(read_regular(run / MANIFEST_FILE, limit=MAX_MANIFEST_BYTES), type=RunManifest)
    except (OSError, *DECODE_ERRORS):
        return RunManifest()
