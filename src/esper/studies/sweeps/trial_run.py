"""The run of a trial: found by its notes, followed, resumed, or started in a child process.

A run of a trial is never trained twice. Its notes name the trial from the moment its directory exists, and until then
the child process holds a lock that it inherited. So a sweep that is started after a kill finds it in any case.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from esper.common.configuration.config import Config, ConfigError
from esper.common.formatting import format_config_value
from esper.common.system.process import spawn_program
from esper.networks.tasks import is_built_in
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.files.notes import NOTES_FILE, read_notes, write_notes
from esper.recordings.files.run_lock import is_live, read_holder
from esper.recordings.files.runs import last_write_time, move_output
from esper.recordings.files.segments import ReadError
from esper.recordings.history.run_groups import PLACE_KEYS
from esper.recordings.history.run_info import RunEnd, RunInfo, read_run_info
from esper.recordings.history.summary import RoundSummary, flat_config
from esper.studies.sweeps.finished_rounds import FinishedRounds
from esper.studies.sweeps.memory import reserved_gpu_memory, tree_memory
from esper.studies.sweeps.paths import FileLock
from esper.studies.sweeps.run_lookup import find_run
from esper.studies.sweeps.study import ClaimedTrial
from esper.training.policy.loading import is_own_policy

POLL_S = 1.0
"""Seconds between two checks of a run."""
MAX_STARTS = 4
"""Number of times that a run is started without a new checkpoint in between, after its process was killed."""
RESTART_DELAY_S = 2.0
"""Seconds before a run whose process was killed is started again."""


class RunProcess(Protocol):
    """A child process, or what a test has in its place."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...


StartProcess = Callable[[Sequence[str], Path, int], RunProcess]
"""Function that starts a child process: its arguments, its output, and the file descriptor that it inherits."""


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """The end of the work on a trial in this process."""

    kind: Literal["done", "pruned", "failed", "refused", "stopped", "interrupted"]
    """stopped: by the user, in the dashboard for example. interrupted: this process ends. refused: exit code 2."""
    run: Path | None = None
    rounds: Sequence[RoundSummary] = ()
    reason: str = ""
    memory: int | None = None
    """Maximum resident bytes of its processes; None if they were not seen."""
    gpu_memory: int | None = None
    """Maximum bytes that it reserved on a GPU; None without one."""
    is_left_running: bool = False
    """True if the run goes on, because another process had started it."""


def start_process(arguments: Sequence[str], output: Path, inherited: int) -> RunProcess:
    """Start a run in the background."""
    output.unlink(missing_ok=True)  # of a process that was killed before its run had a directory
    return spawn_program(arguments, output, inherited)


class TrialRun:
    """Work on the run of one trial.

    Args:
        trial: The trial, which this process owns.
        devices: Devices of its job.
        stopping: Set if this process shall end.
        print_progress: Function that receives a sentence about the progress.
        start: Function that starts a process.
        poll_s: Seconds between two checks.
    """

    _config: Config
    """Configuration of the run, set by `work`."""

    def __init__(
        self,
        trial: ClaimedTrial,
        devices: Sequence[str],
        stopping: threading.Event,
        print_progress: Callable[[str], None],
        start: StartProcess = start_process,
        poll_s: float = POLL_S,
    ) -> None:
        self._trial = trial
        self._plan = trial.plan
        self._paths = trial.paths
        self._devices = devices
        self._stopping = stopping
        self._print_progress = print_progress
        self._start = start
        self._poll_s = poll_s
        self._is_pruned = False
        self._reported = trial.last_report
        """Last round that was reported to the pruner."""
        self._rounds: FinishedRounds | None = None
        self._memory: int | None = None
        self.process: RunProcess | None = None
        """Child process that trains the run; None while there is none."""

    def work(self) -> TrialOutcome:
        """Bring the run to its end, and return how it ended.

        Raises:
            ConfigError: The notes of a run name this trial, but the run has another configuration.
        """
        try:
            self._config = self._plan.config(self._trial.setting, self._trial.seed)
        except ConfigError as error:  # values that were drawn do not fit together
            return TrialOutcome(kind="failed", reason=str(error))
        starts, checkpoint = 0, ""
        while True:
            run = self._find()
            if self._stopping.is_set() and not (run and self._info(run).state == "done"):
                is_running = (run is not None and is_live(run)) or self._is_training()
                return TrialOutcome(kind="interrupted", run=run, is_left_running=is_running)
            if run is not None:
                self._check_configuration(run)
                if is_live(run):
                    if (outcome := self._follow(run)) is not None:
                        return outcome
                    continue
                info = self._info(run)
                if info.state in {"done", "failed"}:
                    return self._ended(run, info)
                if info.state == "stopped" and self._is_pruned:
                    return self._with_rounds("pruned", run)
                newest = list_checkpoints(run)[-1:]
                if not newest:  # killed before its first checkpoint: it is hidden, and no longer the run of the trial
                    write_notes(run, msgspec.structs.replace(read_notes(run), archived=True))
                    self._rounds = None
            else:
                newest = []
            name = str(newest[0]) if newest else ""
            starts, checkpoint = (starts + 1, checkpoint) if name == checkpoint else (1, name)
            if starts > MAX_STARTS:
                reason = f"its process was killed {MAX_STARTS} times without a checkpoint in between"
                return TrialOutcome(kind="failed", run=run, reason=reason)
            outcome = self._train(run if newest else None)
            if outcome is not None:
                return outcome

    def _find(self) -> Path | None:
        """Return the run; wait for one that a process of an earlier sweep is about to create."""
        while True:
            is_training = self._is_training()
            run = find_run(self._paths.telemetry_dir, self._plan.name, self._trial.number)
            if not is_training or (run is not None and is_live(run)) or self._stopping.is_set():
                return run
            self._stopping.wait(self._poll_s)

    def _is_training(self) -> bool:
        """True if a process that a sweep of this machine has started trains the run, or is about to create it."""
        lock = FileLock.try_acquire(self._paths.run_lock(self._trial.number))
        if lock is not None:
            lock.release()
        return lock is None

    def _info(self, run: Path) -> RunInfo:
        return read_run_info(run, last_write_time(run) or 0.0, time.time())

    def _train(self, resume: Path | None) -> TrialOutcome | None:
        """Start a process for the run, and follow it. Return None if it must be looked at again."""
        lock = FileLock.try_acquire(self._paths.run_lock(self._trial.number))
        if lock is None:
            return None
        try:
            output = self._paths.output(self._trial.number)
            self.process = self._start(self._arguments(resume), output, lock.file)
        finally:
            lock.release()
        if self._stopping.is_set():  # the signal came while the process was being started
            self.process.terminate()
        self._print_progress(f"{self._trial} {'resumes' if resume else 'starts'}")
        try:
            return self._watch(resume, output)
        except BaseException:  # the sweep ends, for example because its storage fails
            self.process.terminate()
            raise
        finally:
            self.process = None

    def _watch(self, run: Path | None, output: Path) -> TrialOutcome | None:
        """Follow the child process until it ends."""
        process = self.process
        assert process is not None
        is_terminated = False
        while (code := process.poll()) is None:
            if run is None or output.exists():
                run = run or find_run(self._paths.telemetry_dir, self._plan.name, self._trial.number)
                if run is not None and is_live(run):
                    move_output(output, run)
            if not is_terminated and (self._stopping.is_set() or self._should_prune(run)):
                process.terminate()
                is_terminated = True
            if (memory := tree_memory(process.pid)) is not None:
                self._memory = max(self._memory or 0, memory)
            if is_terminated:
                time.sleep(self._poll_s)
            else:
                self._stopping.wait(self._poll_s)
        run = run or find_run(self._paths.telemetry_dir, self._plan.name, self._trial.number)
        if run is not None and output.exists():
            move_output(output, run)
        return self._judge(code, run, output)

    def _judge(self, code: int, run: Path | None, output: Path) -> TrialOutcome | None:
        """Return the outcome of a process that has ended; None if the run has to be resumed or started again."""
        state = self._info(run).state if run else ""
        if run and state in {"done", "failed"}:
            return None  # the next look finds it
        if run and state == "stopped":
            if self._is_pruned:
                return None
            return TrialOutcome(kind="interrupted" if self._stopping.is_set() else "stopped", run=run)
        if self._stopping.is_set():
            return TrialOutcome(kind="interrupted", run=run)
        if code in {1, 2}:
            kind = "refused" if code == 2 else "failed"
            return TrialOutcome(kind=kind, run=run, reason=_last_line(output, run) or f"exit code {code}")
        self._print_progress(f"the process of {self._trial} ended with code {code}; it is started again")
        self._stopping.wait(RESTART_DELAY_S)
        return None

    def _follow(self, run: Path) -> TrialOutcome | None:
        """Follow a run that another process trains, until it ends."""
        self._print_progress(f"{self._trial} is already running as {run.name}")
        while is_live(run):
            if self._should_prune(run):
                holder = read_holder(run)
                if holder is not None and holder.host == socket.gethostname():
                    with suppress(ProcessLookupError):
                        os.kill(holder.pid, signal.SIGTERM)
            if self._stopping.wait(self._poll_s):
                return TrialOutcome(kind="interrupted", run=run, is_left_running=True)
        if self._info(run).state == "stopped" and not self._is_pruned:
            return TrialOutcome(kind="stopped", run=run)
        return None

    def _should_prune(self, run: Path | None) -> bool:
        """Report finished rounds to the pruner; return True, once, if the run shall be stopped."""
        if run is None or not self._plan.prune or self._is_pruned:
            return False
        with suppress(ReadError, OSError):  # the first line may not be complete yet
            self._rounds = self._rounds or FinishedRounds(run)
            self._rounds.poll()
            rounds = self._rounds.rounds
            self._is_pruned = self._report(
                rounds[: self._config.rounds - 1]
            )  # stopping a run after its last round saves nothing
        return self._is_pruned

    def _report(self, rounds: Sequence[RoundSummary]) -> bool:
        """Report the rounds that were not reported yet. Return True if the pruner stops the run."""
        for count in range(self._reported + 1, len(rounds) + 1):
            self._reported = count
            if self._trial.report(count, self._plan.value(self._plan.objectives[0], rounds[:count])):
                return True
        return False

    def _ended(self, run: Path, info: RunInfo) -> TrialOutcome:
        if info.state == "failed":
            reason = RunEnd(run).read().reason or "it recorded no reason"
            return TrialOutcome(kind="failed", run=run, reason=reason, memory=self._memory)
        return self._with_rounds("done", run)

    def _with_rounds(self, kind: Literal["done", "pruned"], run: Path) -> TrialOutcome:
        finished = FinishedRounds(run)
        try:
            finished.poll()
            gpu_memory = reserved_gpu_memory(finished.last_state)
        except (ReadError, OSError) as error:
            return TrialOutcome(kind="failed", run=run, reason=str(error))
        rounds = finished.rounds
        if finished.last_state.score_scale.best == "low" and "score" in self._plan.objectives:
            reason = 'a smaller score of this task is better, and a sweep maximises it; use objective = "return"'
            return TrialOutcome(kind="refused", run=run, reason=reason)
        if kind == "done" and not rounds:
            return TrialOutcome(kind="failed", run=run, reason="its recording has no finished round")
        if kind == "done" and self._plan.prune:  # the pruner compares other runs with it
            while self._report(rounds):
                continue
        return TrialOutcome(kind=kind, run=run, rounds=rounds, memory=self._memory, gpu_memory=gpu_memory)

    def _arguments(self, resume: Path | None) -> list[str]:
        """Return the arguments of the child process."""
        options: dict[str, Any] = {**self._plan.run, **self._trial.setting.values, "seed": self._trial.seed}
        options["devices"] = list(self._devices)
        config = self._config
        if resume is not None:  # the checkpoint has all options, but code of the user must be named again
            own = {"task"} if not is_built_in(config.task) else set[str]()
            own |= {"policy"} if is_own_policy(config.policy) else set[str]()
            options = {key: value for key, value in options.items() if key in own | {"devices"}}
        arguments = ["--no-tui", "--study", self._plan.name, "--trial", str(self._trial.number)]
        arguments += ["--telemetry-dir", str(self._paths.telemetry_dir)]
        if resume is not None:
            arguments += ["--resume", str(resume)]
        for key, value in options.items():
            if isinstance(value, list | tuple):
                arguments += [f"--{key}", *map(str, value)] if value else []  # pyright: ignore[reportUnknownArgumentType]
            else:
                arguments.append(f"--{key}={value}")
        return arguments

    def _check_configuration(self, run: Path) -> None:
        """Refuse a run whose notes name this trial, but whose configuration is another one."""
        info = self._info(run)
        if not info.config:  # not started yet
            return
        config = self._config
        # The run resolves the policy to a checkpoint, and the reference of a task of the user to its name.
        ignored = PLACE_KEYS | {"policy", "init-policy"} | ({"task"} if not is_built_in(config.task) else set[str]())
        resolved = flat_config(msgspec.to_builtins(config))
        for key in ({*self._plan.run, *self._trial.setting.values, "seed"}) - ignored:
            value, recorded = resolved[key], info.config.get(key)
            if recorded != (list(value) if isinstance(value, tuple) else value):  # pyright: ignore[reportUnknownArgumentType]
                raise ConfigError(
                    f"the notes of {run} name trial {self._trial.number} of study {self._plan.name}, but its {key} is "
                    f"{format_config_value(recorded)} and not {format_config_value(value)}; correct {run / NOTES_FILE}"
                )


def _last_line(output: Path, run: Path | None) -> str:
    """Return the last line that a process has printed."""
    paths = (
        [output, *sorted(run.glob("output*.log"), key=lambda path: path.stat().st_mtime, reverse=True)]
        if run
        else [output]
    )
    for path in paths:
        if path.exists():
            lines = path.read_text(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
