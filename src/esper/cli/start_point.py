"""Resolves `--resume`: where a run starts, and whether there is anything left to do."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from esper.cli.options import check_own_code_is_named, print_warnings
from esper.common.configuration.config import ConfigError
from esper.common.configuration.files import read_config_file, resolve_config
from esper.common.system.process import RankInfo, parent_start_time
from esper.networks.tasks import is_built_in
from esper.recordings.checkpoints.catalog import (
    CHECKPOINTS_DIR,
    find_checkpoint,
    list_checkpoints,
    run_directory_of,
    size_and_time,
)
from esper.recordings.checkpoints.manifest import (
    CheckpointError,
    check_compatible,
    config_from_manifest,
    read_manifest,
    read_verified_files,
)
from esper.recordings.files.notes import RunNotes, update_notes
from esper.recordings.files.recorder import open_run_directory
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.files.run_manifest import read_run_manifest
from esper.recordings.files.runs import resolve_run
from esper.training.engine.start_checks import SETUP_ERRORS, check_start, resolve_policy
from esper.training.engine.start_point import RunCompleteError, StartPoint
from esper.training.engine.unfinished import command_digest, find_begun_run, is_done
from esper.training.policy.loading import is_own_policy

AUTO = "auto"
"""Value of `--resume` that stands for the run that the command has begun, or a new one."""
NEW_RUN_ADVICE = "without --resume, a new run starts"


def decide_start(
    decide: Callable[..., StartPoint], rank_info: RankInfo, *, is_resuming: bool
) -> tuple[StartPoint | Exception | None, list[str]]:
    """Return where the run starts, and its lanes that need a worker process.

    Where a run of several ranks resumes, rank 0 decides for all: other ranks get None. If rank 0 refuses, it returns
    the exception, because the other ranks wait for its answer.

    Args:
        decide: Function that returns the start; its argument `restarted` is True if torchrun has restarted the ranks.
        is_resuming: The run may resume from a checkpoint.
    """
    restarted = rank_info.restarts > 0
    is_shared = rank_info.world_size > 1 and (is_resuming or restarted)
    if is_shared and rank_info.rank > 0:
        return None, []
    try:
        start = decide(restarted=restarted)
        return start, check_start(start.config, rank_info, is_new=start.is_new)
    except RunCompleteError as complete:
        return complete, []
    except SETUP_ERRORS as error:
        if is_shared:
            return error, []
        raise


def resolve_start(
    file: Path | None,
    resume: str | None,
    options: dict[str, Any],
    notes: RunNotes | None,
    *,
    restarted: bool,
    inherited_lock: int | None = None,
) -> StartPoint:
    """Return where the run starts. A run that was begun before is locked before anything of it is read.

    Args:
        file: File of `--config`.
        resume: Value of `--resume`; None without one. Ranks that torchrun has restarted then have `auto`.
        options: Other options of the configuration, by field name.
        notes: Notes that the user gave.
        restarted: torchrun has restarted the ranks.
        inherited_lock: File descriptor of the lock of that run, if the parent process holds it; None: it does not.

    Raises:
        RunCompleteError: The run has done all of its rounds.
        ConfigError: The configuration is invalid, or asks for no more rounds than an unfinished run has done.
        CheckpointError: The checkpoint is damaged, or does not fit the configuration.
        ReadError: The run does not exist.
        RecordingError: A process trains the run, or its directory is not at its path any more.
    """
    table = read_config_file(file)
    given = resolve_config(file, options, table=table)
    name = notes.name if notes else ""
    command = command_digest(given, name)
    if resume is None and not restarted:
        return StartPoint(resolve_policy(given), command=command)
    if resume not in (None, AUTO):
        checkpoint = _find_checkpoint(resume, Path(given.telemetry_dir), restarted=restarted)
        try:
            with _locked(open_run_directory(run_directory_of(checkpoint)), inherited_lock) as lock:
                return _resume_run(file, checkpoint, lock, resume, options, table, notes)
        except _EndedError as ended:
            if restarted:
                raise RunCompleteError(str(ended)) from None
            raise
    directory = find_begun_run(given, name, 0.0 if resume else parent_start_time())
    if directory is None:
        print_warnings([f"{given.telemetry_dir} has no run of this command; a new run starts"])
        return StartPoint(resolve_policy(given), command=command)
    run = directory.path
    with _locked(directory, inherited_lock) as lock:
        checkpoints = list_checkpoints(run)
        if not checkpoints and is_done(run):
            raise RunCompleteError(f"{run} is done and has no checkpoint; {NEW_RUN_ADVICE}")
        if not checkpoints:
            print_warnings([f"{run} has no checkpoint; it starts again with its first round"])
            return StartPoint(resolve_policy(given), None, lock, command)
        try:
            start = _resume_run(file, checkpoints[-1], lock, str(run), options, table, notes, command)
        except _EndedError as ended:  # an error would make a scheduler start the command again and again
            raise RunCompleteError(f"{ended}; {NEW_RUN_ADVICE}") from None
        print_warnings([f"continues {run}"])
        return start


@contextmanager
def _locked(directory: RunDirectory, inherited: int | None) -> Generator[RunLock]:
    """Lock a run, and release it if an exception leaves the context. Raises RecordingError."""
    lock = RunLock(directory, inherited)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


def _find_checkpoint(resume: str, telemetry_dir: Path, *, restarted: bool) -> Path:
    """Return the checkpoint that `--resume` names.

    After a restart it is the newest one of the run instead, if torchrun has written it: the one that is named may be
    removed by now.

    Raises:
        CheckpointError: The run has no checkpoint.
        ReadError: There is no such run.
    """
    path = Path(resume)
    if restarted and path.parent.name == CHECKPOINTS_DIR:
        run = resolve_run(str(path.parents[1]), telemetry_dir)
        newest = list_checkpoints(run)[-1:]
        if newest and size_and_time(newest[0])[1] >= parent_start_time():
            return newest[0]
    return find_checkpoint(resolve_run(resume, telemetry_dir))


class _EndedError(ConfigError):
    """The run has recorded that it is done."""


def _resume_run(
    file: Path | None,
    checkpoint: Path,
    lock: RunLock,
    resume: str,
    options: dict[str, Any],
    table: dict[str, Any],
    notes: RunNotes | None,
    command: str | None = None,
) -> StartPoint:
    """Return the start from a checkpoint.

    Args:
        resume: Run or checkpoint of `--resume`, for messages.
        command: Digest of a command that continues the run that it began; None: another command.
    """
    run = lock.directory.path
    begun = read_run_manifest(run)
    # The directory is used for the lookup only: a run resumes in its own.
    options = {name: value for name, value in options.items() if name != "telemetry_dir"}
    if begun.growth is not None:
        raise ConfigError(f"{resume} is a growth; continue it with the grow command that began it")
    try:
        manifest = read_manifest(checkpoint)
        saved = config_from_manifest(manifest, checkpoint)
        read_verified_files(checkpoint, manifest)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; list intact checkpoints with `esper-sanctum checkpoints {run}`") from None
    if command is not None and begun.command == command and not is_own_policy(saved.policy):
        # The policy is that of the checkpoint. Its name may stand for another one now: `last` for this run itself.
        options, table = ({key: value for key, value in each.items() if key != "policy"} for each in (options, table))
    config = resolve_config(file, options, base=msgspec.to_builtins(saved), table=table)
    if config.policy != saved.policy:
        config = resolve_policy(config)
    check_own_code_is_named(manifest.origin, saved, resume, {*options, *table})
    # The name of a task that is the user's code is known only once it is imported; the engine compares it then.
    compared = config if is_built_in(config.task) else msgspec.structs.replace(config, task=saved.task)
    check_compatible(saved, compared, checkpoint)
    if config.rounds <= manifest.round < saved.rounds:
        raise ConfigError(
            f"{resume} has done {manifest.round} of its {saved.rounds} rounds; --rounds must be above {manifest.round}"
        )
    if manifest.round >= config.rounds:
        _end_complete_run(resume, lock.directory, manifest.round, notes)
    return StartPoint(config, checkpoint, lock, begun.command or command)


def _end_complete_run(resume: str, run: RunDirectory, rounds: int, notes: RunNotes | None) -> None:
    """Record the end of a locked run that was killed, or failed, after its last round.

    Raises:
        RunCompleteError: The end is recorded now.
        ConfigError: The run had recorded that it is done, so there is nothing to resume.
        ReadError: The recording or the notes cannot be read.
        RecordingError: The recording cannot be written.
    """
    from esper.recordings.history.run_end import record_run_end  # few runs need it

    more = f"train more with --resume {resume} --rounds N, N > {rounds}"
    if not record_run_end(run):
        raise _EndedError(f"{resume} has finished all of its rounds ({rounds}); {more}")
    if notes is not None:
        update_notes(run, notes)
    raise RunCompleteError(
        f"{run.path.name} is complete: all of its rounds were done before it ended. Its end is recorded now; {more}."
    )
