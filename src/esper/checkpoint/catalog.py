"""The checkpoints of a run: list, find, keep the newest, set aside. Needs no torch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from esper.checkpoint.manifest import MANIFEST_FILE, CheckpointError

CHECKPOINTS_DIR = "checkpoints"
"""Where a run keeps its checkpoints, below its directory."""
UNDONE_DIR = "undone"
"""Where it keeps those that were later than one it went back to: as many, in case that was a mistake."""

PARTIAL_SUFFIX, REMOVED_SUFFIX, REPLACED_SUFFIX = ".partial", ".removed", ".replaced"
"""After the name of a checkpoint: one that is being written, or removed; and one that gives its name to another, whole
until that has it."""
_CHECKPOINT_NAME = re.compile(r"round-(\d+)-step-(\d+)")


def checkpoint_path(run: Path, round_number: int, step: int) -> Path:
    """Where a run keeps the checkpoint of a moment: the last step completed, and its round, both counted from 1."""
    return run / CHECKPOINTS_DIR / f"round-{round_number:05d}-step-{step:04d}"


def step_number_of(checkpoint: Path) -> tuple[int, int]:
    """Round and step of a checkpoint by its name, as `checkpoint_path` has them."""
    named = _CHECKPOINT_NAME.match(checkpoint.name)
    assert named  # by checkpoint_path
    round_number, step = named.groups()
    return int(round_number), int(step)


def run_directory_of(checkpoint: Path) -> Path:
    """The directory of the run that a checkpoint belongs to.

    Raises:
        CheckpointError: it was taken out of its run.
    """
    folder = checkpoint.resolve().parent
    if folder.name != CHECKPOINTS_DIR:
        raise CheckpointError(f"{checkpoint} is not in the {CHECKPOINTS_DIR}/ of a run; put it there to go on from it")
    return folder.parent


def size_and_time(checkpoint: Path) -> tuple[int, float]:
    """Bytes of its files, and when it was written, seconds since the epoch. Raises OSError."""
    return sum(file.stat().st_size for file in checkpoint.iterdir()), (checkpoint / MANIFEST_FILE).stat().st_mtime


def list_checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, the oldest first. Interrupted ones are not among them."""
    return [path for path in _in_order(run / CHECKPOINTS_DIR) if (path / MANIFEST_FILE).exists()]


def _in_order(folder: Path) -> list[Path]:
    there = folder.iterdir() if folder.is_dir() else ()  # not glob, for which what may not be read is empty
    return sorted(
        (path for path in there if _CHECKPOINT_NAME.fullmatch(path.name) or _is_interrupted_replacement(path)),
        key=step_number_of,
    )


def _is_interrupted_replacement(path: Path) -> bool:
    """Whether this is a checkpoint that gave its name to another, which did not come to have it: a kill was between."""
    return (
        path.suffix == REPLACED_SUFFIX
        and _CHECKPOINT_NAME.fullmatch(path.stem) is not None
        and not path.with_suffix("").exists()
    )


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that `--resume PATH` means: that directory, or the newest of a run's.

    Raises:
        CheckpointError: there is none.
    """
    if (path / MANIFEST_FILE).exists():
        return path
    found = list_checkpoints(path)
    if not found:
        raise CheckpointError(f"{path} holds no checkpoint; give a run, or a directory below its checkpoints/")
    return found[-1]


def prune_checkpoints(run: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints of a run; what else people have put there stays. Raises OSError."""
    for path in list_checkpoints(run)[:-count]:
        shutil.rmtree(rename_for_removal(path, REMOVED_SUFFIX))


def remove_incomplete(run: Path) -> None:
    """Remove what interrupted writes and removals have left; what cannot be removed takes room, and does no more.

    A checkpoint that was to be replaced, and was not, gets its name back. Raises OSError.
    """
    folder = run / CHECKPOINTS_DIR
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if _is_interrupted_replacement(path):
            path.rename(path.with_suffix(""))
        elif path.suffix in {PARTIAL_SUFFIX, REMOVED_SUFFIX, REPLACED_SUFFIX} and _CHECKPOINT_NAME.fullmatch(path.stem):
            shutil.rmtree(path, ignore_errors=True)


def set_aside_later(run: Path, now: tuple[int, int], count: int) -> None:
    """Take the checkpoints that are later than a moment out of a run's history; the newest are kept aside.

    Moved back into `checkpoints/`, one of them can be gone on from. Raises OSError.
    """
    aside = run / UNDONE_DIR
    for path in list_checkpoints(run):
        if step_number_of(path) > now:
            aside.mkdir(exist_ok=True)
            shutil.rmtree(aside / path.name, ignore_errors=True)
            path.rename(aside / path.name)
    for path in _in_order(aside)[:-count]:
        shutil.rmtree(path)


def rename_for_removal(checkpoint: Path, suffix: str) -> Path:
    """Take its name from a checkpoint that is to go: a removal that is interrupted leaves none that is torn."""
    aside = checkpoint.with_name(checkpoint.name + suffix)
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)
