"""Work of one process on a study: a thread per job claims trials and brings their runs to the end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from esper.common.configuration.config import ConfigError
from esper.common.formatting import format_bytes
from esper.common.system.process import NamedThread, host_memory
from esper.studies.sweeps.jobs import JobDevices
from esper.studies.sweeps.memory import free_gpu_memory
from esper.studies.sweeps.storage import storage_errors
from esper.studies.sweeps.study import GPU_MEMORY_ATTR, MEMORY_ATTR, ClaimedTrial, SweepStudy
from esper.studies.sweeps.trial_run import POLL_S, StartProcess, TrialOutcome, TrialRun, start_process

JOIN_S = 0.2
"""Seconds between two checks of the threads, in which the main thread handles signals."""


class SweepWorker:
    """Work on a study in this process.

    Args:
        jobs: Devices of each job of this machine.
        print_progress: Function that receives a sentence about the progress. It is called in any thread.
        start: Function that starts a run.
        poll_s: Seconds between two checks of a run.
    """

    def __init__(
        self,
        study: SweepStudy,
        jobs: Sequence[JobDevices],
        print_progress: Callable[[str], None],
        start: StartProcess = start_process,
        poll_s: float = POLL_S,
    ) -> None:
        self._study = study
        self._jobs = jobs
        self._print_progress = print_progress
        self._start = start
        self._poll_s = poll_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._active: dict[int, TrialRun] = {}
        """Runs in progress, keyed by job."""
        self._errors: list[BaseException] = []
        self._held: list[ClaimedTrial] = []
        """Trials whose runs the user has stopped: while this process lives, no other one resumes them."""
        self._has_reported_memory = False
        self._has_trained = False
        """A run that this process has started has trained, so the machine is able to."""

    def run(self) -> None:
        """Work until no trial is left, or `stop` was called.

        Raises:
            ConfigError: A run was refused by its process, or a run with the notes of a trial is another one.
        """
        threads = [
            NamedThread(target=self._work, args=(index, devices), name=f"job {index}", daemon=True)
            for index, devices in enumerate(self._jobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(JOIN_S)
        for trial in self._held:
            trial.release()
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        """Stop all runs that this process started, with a checkpoint, and begin no other. Can be called in a signal."""
        self._stopping.set()

    def abort(self) -> None:
        """Send the runs a second signal, which ends them at once."""
        for run in list(self._active.values()):
            if (process := run.process) is not None:
                process.terminate()

    def _work(self, index: int, devices: JobDevices) -> None:
        try:
            with storage_errors():
                while not self._stopping.is_set():
                    self._wait_for_memory(index, devices)
                    trial = None if self._stopping.is_set() else self._study.claim()
                    if trial is None:
                        return
                    self._work_on(trial, index, devices)
        except BaseException as error:  # noqa: BLE001 (raised again in the main thread)
            self._errors.append(error)
            self._stopping.set()
        finally:
            self._active.pop(index, None)

    def _work_on(self, trial: ClaimedTrial, index: int, devices: JobDevices) -> None:
        run = TrialRun(trial, devices, self._stopping, self._print_progress, self._start, self._poll_s)
        self._active[index] = run
        try:
            outcome = run.work()
            if outcome.kind == "stopped":
                with self._lock:
                    self._held.append(trial)
            self._store(trial, outcome)
        finally:
            self._active.pop(index, None)
            if trial not in self._held:
                trial.release()

    def _store(self, trial: ClaimedTrial, outcome: TrialOutcome) -> None:
        """Store an outcome in the study, and print it."""
        name = outcome.run.name if outcome.run else "no run"
        self._has_trained |= outcome.kind in {"done", "pruned", "failed"} and outcome.memory is not None
        match outcome.kind:
            case "done" | "pruned":
                assert outcome.run is not None
                plan, rounds = trial.plan, outcome.rounds
                if any(math.isnan(plan.value(name, rounds)) for name in plan.objectives):
                    trial.fail("its result is not a number", outcome.run)
                    self._print_progress(f"{trial} failed: its result is not a number; run {name}; {self._left()}")
                    return
                store = trial.complete if outcome.kind == "done" else trial.prune
                trial.note_memory(outcome.memory, outcome.gpu_memory)
                store(outcome.run, rounds)
                text = ", ".join(plan.describe_value(name, rounds) for name in plan.objectives)
                verb = "done" if outcome.kind == "done" else f"pruned after round {len(rounds)}"
                self._print_progress(f"{trial} {verb}: {text}; run {name}; {self._left()}")
            case "refused" if not self._has_trained:
                raise ConfigError(f"{trial} could not start: {outcome.reason.removeprefix('esper-sanctum: ')}")
            case "failed" | "refused":
                trial.fail(outcome.reason, outcome.run)
                self._print_progress(f"{trial} failed: {outcome.reason}; run {name}; {self._left()}")
            case "stopped":
                self._print_progress(f"{trial} was stopped by the user; the next start of the sweep resumes it")
            case "interrupted":
                left = "its run goes on" if outcome.is_left_running else "the next start of the sweep resumes it"
                self._print_progress(f"{trial} is not done; {left}")

    def _left(self) -> str:
        done = sum(info.state.is_finished() for info in self._study.trials())
        return f"{self._study.plan.num_trials - done} left"

    def _wait_for_memory(self, index: int, devices: JobDevices) -> None:
        """Wait while the memory that a run of this study needs is not free, and another run of this process may end."""
        while self._active.keys() - {index} and (missing := self._missing_memory(devices)):
            if not self._has_reported_memory:
                self._has_reported_memory = True
                self._print_progress(f"waiting for memory: {missing}")
            if self._stopping.wait(self._poll_s):
                return

    def _missing_memory(self, devices: JobDevices) -> str:
        """Return which memory is not free for another run, in words; empty if it is free, or was never measured."""
        needed, free = self._study.needed_memory(MEMORY_ATTR), host_memory().available
        if free < needed:
            return f"a run of this study needs {format_bytes(needed)}, and {format_bytes(free)} are free"
        for lane in devices:
            needed, found = self._study.needed_memory(GPU_MEMORY_ATTR), free_gpu_memory(lane)
            if found is not None and found < needed:
                return f"a run of this study needs {format_bytes(needed)} on {lane}, and {format_bytes(found)} are free"
        return ""
