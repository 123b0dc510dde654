"""`checkpoints RUN`: lists and verifies the checkpoints of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from esper.cli.options import EXIT_OK, Parser, add_run_argument
from esper.cli.streams import print_json, print_text
from esper.common.formatting import format_age, format_bytes
from esper.recordings.checkpoints.catalog import CHECKPOINTS_DIR, list_checkpoints, size_and_time
from esper.recordings.checkpoints.manifest import (
    CheckpointError,
    config_from_manifest,
    read_manifest,
    read_verified_files,
)
from esper.recordings.files.runs import resolve_run


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint; an element of the JSON output."""

    path: str
    round: int | None
    """Completed rounds; None if the manifest cannot be read."""
    step: int | None
    """Completed steps of the round that was in progress; None if the manifest cannot be read."""
    time: float
    """Time of writing, in seconds since the epoch."""
    bytes: int
    problem: str | None
    """Why no run can resume from it; None if every file matches the manifest."""


def run(arguments: Sequence[str]) -> int:
    """Print the checkpoints of a run."""
    parser = Parser(
        prog="esper-sanctum checkpoints",
        description="List the checkpoints of a run, oldest first, and verify each",
    )
    add_run_argument(parser, "RUN")
    parser.add_argument("--json", action="store_true", help="print a JSON list of checkpoints")
    options = parser.parse_args(arguments)
    directory = resolve_run(options.run, options.telemetry_dir)
    if not any((directory / name).exists() for name in ("run.json", CHECKPOINTS_DIR)):
        raise CheckpointError(
            f"{directory} is not a run directory: it contains neither run.json nor {CHECKPOINTS_DIR}/"
        )
    checkpoints = [info for path in list_checkpoints(directory) if (info := _inspect(path))]
    if options.json:
        print_json(msgspec.json.encode(checkpoints))
    else:
        print_text("\n".join(map(_format_row, checkpoints)) or f"{directory} has no checkpoints")
    return EXIT_OK


def _inspect(checkpoint: Path) -> CheckpointInfo | None:
    """Read and verify a checkpoint; None if its run, which keeps only the newest ones, has removed it meanwhile."""
    try:
        total, written = size_and_time(checkpoint)
    except FileNotFoundError:
        return None
    manifest, problem = None, None
    try:
        manifest = read_manifest(checkpoint)
        config_from_manifest(manifest, checkpoint)
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


def _format_row(info: CheckpointInfo) -> str:
    written = datetime.fromtimestamp(info.time)
    facts = [
        f"{written:%Y-%m-%d %H:%M:%S} ({format_age(time.time() - info.time)})",
        format_bytes(info.bytes),
        "verified" if info.problem is None else info.problem,
    ]
    return f"{info.path}: {', '.join(facts)}"
