"""The checkpoints of a run: list, find, keep the newest, set aside. Needs no torch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from esper.common.system.disk import make_subdirectory, sync_directory
from esper.recordings.checkpoints.manifest import MANIFEST_FILE, CheckpointError

CHECKPOINTS_DIR = "checkpoints"
"""Subdirectory of a run directory that holds its checkpoints."""
UNDONE_DIR = "undone"
"""Subdirectory for checkpoints later than one that was restored; kept in case the restore was a mistake."""

PARTIAL_SUFFIX, REMOVED_SUFFIX, REPLACED_SUFFIX = ".partial", ".removed", ".replaced"
"""Suffixes of the name of a checkpoint that is being written, removed, or replaced. A replaced one stays intact until
the new checkpoint has its name."""
_CHECKPOINT_NAME = re.compile(r"round-(\d+)-step-(\d+)")


def checkpoint_path(run: Path, round_number: int, step: int) -> Path:
    """Return the path of a checkpoint of a run, by the 1-based round and step of the last completed step."""
    return run / CHECKPOINTS_DIR / f"round-{round_number:05d}-step-{step:04d}"


def step_number_of(checkpoint: Path) -> tuple[int, int]:
    """Return the 1-based round and step from the name of a checkpoint, as `checkpoint_path` wrote them."""
    match = _CHECKPOINT_NAME.match(checkpoint.name)
    assert match  # every path of a checkpoint comes from checkpoint_path
    round_number, step = match.groups()
    return int(round_number), int(step)


def run_directory_of(checkpoint: Path) -> Path:
    """Return the directory of the run that a checkpoint belongs to.

    Raises:
        CheckpointError: The checkpoint was moved out of the directory of its run.
    """
    folder = checkpoint.resolve().parent
    if folder.name != CHECKPOINTS_DIR:
        raise CheckpointError(
            f"{checkpoint} is not in the {CHECKPOINTS_DIR}/ directory of a run; move it back there to resume from it"
        )
    return folder.parent


def size_and_time(checkpoint: Path) -> tuple[int, float]:
    """Return the size in bytes and the time of writing in seconds since the epoch. Raises OSError."""
    return sum(file.stat().st_size for file in checkpoint.iterdir()), (checkpoint / MANIFEST_FILE).stat().st_mtime


def list_checkpoints(run: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first."""
    return [path for path in _in_order(run / CHECKPOINTS_DIR) if (path / MANIFEST_FILE).exists()]


def _in_order(folder: Path) -> list[Path]:
    paths = folder.iterdir() if folder.is_dir() else ()  # not glob, which treats an unreadable directory as empty
    return sorted(
        (path for path in paths if _CHECKPOINT_NAME.fullmatch(path.name) or _is_interrupted_replacement(path)),
        key=step_number_of,
    )


def _is_interrupted_replacement(path: Path) -> bool:
    """True for a checkpoint that was renamed to be replaced, if a kill came before the new one got its name."""
    return (
        path.suffix == REPLACED_SUFFIX
        and _CHECKPOINT_NAME.fullmatch(path.stem) is not None
        and not path.with_suffix("").exists()
    )


def is_checkpoint(path: Path) -> bool:
    """Return True if a directory is a checkpoint, intact or not."""
    return (path / MANIFEST_FILE).exists()


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that `--resume PATH` names: the path itself, or the newest checkpoint of a run.

    Raises:
        CheckpointError: No checkpoint was found.
    """
    if is_checkpoint(path):
        return path
    checkpoints = list_checkpoints(path)
    if not checkpoints:
        raise CheckpointError(f"{path} has no checkpoint; give a run directory or one of its checkpoints")
    return checkpoints[-1]


def prune_checkpoints(run: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints of a run, and no other file. Raises OSError."""
    for path in list_checkpoints(run)[:-count]:
        shutil.rmtree(rename_for_removal(path, REMOVED_SUFFIX))


def remove_incomplete(run: Path) -> None:
    """Remove the remains of interrupted writes and removals, and ignore those that cannot be removed.

    A checkpoint whose replacement was interrupted gets its name back. Raises OSError.
    """
    folder = run / CHECKPOINTS_DIR
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if _is_interrupted_replacement(path):
            path.rename(path.with_suffix(""))
        elif path.suffix in {PARTIAL_SUFFIX, REMOVED_SUFFIX, REPLACED_SUFFIX} and _CHECKPOINT_NAME.fullmatch(path.stem):
            shutil.rmtree(path, ignore_errors=True)


def set_aside_later(run: Path, step_number: tuple[int, int], count: int) -> None:
    """Move the checkpoints later than a 1-based round and step to `undone/`, and keep the newest `count` there.

    To resume from one of them, move it back to `checkpoints/`. Raises OSError.
    """
    aside = run / UNDONE_DIR
    for path in list_checkpoints(run):
        if step_number_of(path) > step_number:
            make_subdirectory(aside)
            shutil.rmtree(aside / path.name, ignore_errors=True)
            path.rename(aside / path.name)
            sync_directory(path.parent)  # else a later checkpoint could reappear, and `--resume` would choose it
    for path in _in_order(aside)[:-count]:
        shutil.rmtree(path)


def rename_for_removal(checkpoint: Path, suffix: str) -> Path:
    """Rename a checkpoint before deleting it, so that an interrupted deletion leaves no incomplete checkpoint."""
    aside = checkpoint.with_name(checkpoint.name + suffix)
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)
