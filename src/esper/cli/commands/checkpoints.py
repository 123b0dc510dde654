"""`checkpoints RUN`: the checkpoints of a run, each verified."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from esper.checkpoint.catalog import CHECKPOINTS_DIR, list_checkpoints, size_and_time
from esper.checkpoint.manifest import CheckpointError, read_manifest, read_saved_config, read_verified_files
from esper.cli.options import EXIT_OK, Parser, add_run_argument
from esper.formatting import format_age, format_bytes
from esper.recording.runs import resolve_run


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint, as `--json` prints it."""

    path: str
    round: int | None
    """Rounds completed; None where the manifest cannot be read."""
    step: int | None
    """Steps completed of the round that was in progress."""
    time: float
    """When it was written: seconds since the epoch."""
    bytes: int
    problem: str | None
    """Why no run can go on from it; None once every file was found to be what the manifest says."""


def run(arguments: Sequence[str]) -> int:
    """Print them, the oldest first."""
    parser = Parser(
        prog="esper-sanctum checkpoints",
        description="Print the checkpoints of a run, the oldest first, and whether each is whole.",
    )
    add_run_argument(parser, "RUN")
    parser.add_argument("--json", action="store_true", help="print JSON: a list of checkpoints")
    chosen = parser.parse_args(arguments)
    directory = resolve_run(chosen.run, chosen.telemetry_dir)
    if not any((directory / name).exists() for name in ("run.json", CHECKPOINTS_DIR)):
        raise CheckpointError(f"{directory} is not a run: it holds neither run.json nor {CHECKPOINTS_DIR}/")
    found = [listed for path in list_checkpoints(directory) if (listed := _inspect(path))]
    if chosen.json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(map(_format_row, found)) or f"{directory} holds no checkpoint")
    return EXIT_OK


def _inspect(checkpoint: Path) -> CheckpointInfo | None:
    """Read a checkpoint; None if its run, which keeps only the newest, has removed it meanwhile."""
    try:
        total, written = size_and_time(checkpoint)
    except FileNotFoundError:
        return None
    manifest, problem = None, None
    try:
        manifest = read_manifest(checkpoint)
        read_saved_config(checkpoint)
        read_verified_files(checkpoint, manifest)
    except CheckpointError as error:
        problem = str(error)
    if not checkpoint.exists():
        return None
    return CheckpointInfo(
        path=str(checkpoint),
        round=manifest.round if manifest else None,
        step=manifest.step if manifest else None,
        time=written,
        bytes=total,
        problem=problem,
    )


def _format_row(listed: CheckpointInfo) -> str:
    written = datetime.fromtimestamp(listed.time)
    facts = [
        f"{written:%Y-%m-%d %H:%M:%S} ({format_age(time.time() - listed.time)})",
        format_bytes(listed.bytes),
        "verified" if listed.problem is None else listed.problem,
    ]
    return f"{listed.path}: {', '.join(facts)}"
