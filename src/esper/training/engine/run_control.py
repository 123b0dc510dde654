"""Run control: handles requests between steps, writes checkpoints, and holds the run after a failed step.

Works for one rank or several.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Never

import torch

from esper.common.control import ENDING_KINDS, Request, RequestKind, RequestQueue
from esper.common.domain import PauseCause
from esper.common.system.ranks import RankGroup
from esper.recordings import events as ev
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.files.run_directory import DELETED
from esper.training.checkpoint.files import Checkpoint
from esper.training.engine import reporter
from esper.training.engine.checkpointer import Checkpointer
from esper.training.engine.training_state import TrainingState
from esper.training.lanes.errors import INCONSISTENT_STATE, FaultError, RunFailedError
from esper.training.policy.occlusion import ExplainingAgent

UNATTENDED_ORIGINS = frozenset({"signal", "dashboard"})
"""Stop-request origins that leave no user to retry a failed checkpoint."""


class RunController:
    """Handles requests, checkpoints and faults for a trainer. Called between steps, or right after a step has failed.

    Args:
        interactive: Hold the run on a fault and wait for the user. If False, a fault ends the run.
    """

    def __init__(
        self, training: TrainingState, control: RequestQueue, checkpointer: Checkpointer, *, interactive: bool
    ) -> None:
        self._training = training
        self._control = control
        self.checkpointer = checkpointer
        self._interactive = interactive
        self._hub = training.hub
        self._single_step: str | None = None
        """Origin of the request for the single step in progress; None if there is none."""
        self._is_overdue = False
        """True if a checkpoint waits until the events before it are recorded."""
        self._unrecorded_until: float | None = None
        """End of the wait for the disk, as a time of `monotonic`; None while the run can be recorded."""

    # Faults

    def hold_after_fault(self, fault: FaultError) -> None:
        """Save the stashed start of the round, then hold the run until the user restores a checkpoint.

        Raises:
            FaultError: The run is not interactive, its device is lost, a call was abandoned, or the user ends it.
        """
        unsaved = self._try_optional(lambda: self._save_stash("fault"))
        if not self._interactive or fault.is_device_lost or self._training.pool.supervisor.abandoned:
            raise fault
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        self._emit_failed(fault, unsaved)
        while True:
            match request := self._control.get(timeout=0.2):
                case None:
                    pass
                case Request(RequestKind.CHECKPOINT | RequestKind.STOP, origin) if unsaved:
                    self._emit_request(request)
                    unsaved = self._try_optional(lambda: self._save_stash(origin))
                    is_saved = not unsaved or self.checkpointer.is_lost(self._training.ranks)
                    if request.kind is RequestKind.STOP and (is_saved or origin in UNATTENDED_ORIGINS):
                        raise fault
                    self._emit_failed(fault, unsaved)
                case Request(RequestKind.RESTORE, origin, str(path)):
                    self._emit_request(request)
                    if not self._try_optional(lambda: self.restore(Path(path), origin)):
                        return
                case Request(RequestKind.STOP | RequestKind.ABANDON):
                    self._emit_request(request)
                    raise fault
                case _:
                    self._emit_request(request, ignored=INCONSISTENT_STATE)

    def _emit_failed(self, fault: FaultError, unsaved: str | None) -> None:
        reason, cause = (f"{fault}; {unsaved}", PauseCause.UNSAVED) if unsaved else (str(fault), PauseCause.FAULT)
        self._emit_paused("engine", reason, cause)

    def _save_stash(self, origin: str) -> None:
        """Write a checkpoint of the start of the round. Raises CheckpointError."""
        start = time.perf_counter()
        stashed = self.checkpointer.save_stash()
        if stashed is not None:
            self._emit_checkpoint(*stashed, time.perf_counter() - start, origin)
            self._try_optional(lambda: self.checkpointer.prune(self._training.ranks))

    # The recording

    def _is_held_unrecorded(self, *, paused: bool) -> bool:
        """Return True while the run is held because it cannot be recorded. All ranks call this together.

        Args:
            paused: The run is paused, and stays so when it can be recorded again.

        Raises:
            RunFailedError: It was held for too long and no user watches it, or its directory was deleted.
        """
        self._fail_if_lost()
        if self._unrecorded_until is None:
            if not self._hold_while_unrecordable():
                return False
            self._unrecorded_until = self._end_of_patience()
        if self._hub.flush():
            self._unrecorded_until = None
            if self._is_overdue:
                self._save_scheduled()
            if paused:
                self._emit_paused("engine")
            else:
                self._emit_resumed("engine")
            return False
        if not self._interactive and time.monotonic() > self._unrecorded_until:
            self._fail_unrecorded()
        return True

    def _hold_while_unrecordable(self) -> bool:
        """Pause the run if it cannot be recorded, and return True if so.

        With several ranks, the run continues without recording until its memory is full.
        """
        failure = self._hub.failure if self._training.ranks.is_single else None
        if failure is not None:
            self._emit_paused(
                "engine", f"{failure}; the run resumes when it can be recorded again", PauseCause.RECORDING
            )
        return failure is not None

    def _fail_if_lost(self) -> None:
        """End a run whose directory was deleted, after the user has been told. All ranks call this together.

        Raises:
            RunFailedError: The directory was deleted.
        """
        if not self.checkpointer.is_lost(self._training.ranks):
            return
        reason = f"cannot record to {self.checkpointer.directory}: {DELETED}"
        if self._interactive:
            self._emit_paused("engine", reason, PauseCause.LOST)
            while (request := self._control.get(timeout=0.2)) is None or request.kind not in ENDING_KINDS:
                if request is not None:
                    self._emit_request(request, ignored="the run directory was deleted, and nothing can be saved")
            self._emit_request(request)
        raise RunFailedError(reason)

    def _fail_unrecorded(self) -> Never:
        """End a run that cannot be recorded, with a checkpoint if it can be written. Raises RunFailedError."""
        self._try_optional(lambda: self._checkpoint("engine"))
        minutes = self._training.config.patience_minutes
        raise RunFailedError(f"the run waited for {minutes:g} minutes (--patience-minutes)")

    def _await_recording(self) -> None:
        """Wait at the end of a run until its events are recorded, or the user ends it.

        Raises:
            RunFailedError: They could not be recorded for too long and no user watches the run, or its directory was
                deleted.
        """
        if self._hub.flush() or not self._hold_while_unrecordable():
            return
        deadline = self._end_of_patience()
        while not self._hub.flush() and not self._must_end():
            self._fail_if_lost()
            if not self._interactive and time.monotonic() >= deadline:
                self._fail_unrecorded()

    def _end_of_patience(self) -> float:
        """Return the time of `monotonic` up to which a run that no user watches waits for its disk."""
        return time.monotonic() + 60 * self._training.config.patience_minutes

    # Requests

    def may_go_ahead(self) -> bool:
        """Return True if `handle_requests` would do nothing now. All ranks call this together."""
        is_recorded = not self._training.ranks.is_single or self._hub.failure is None
        return not self._control.has_request() and self._single_step is None and is_recorded

    def handle_requests(self) -> bool:
        """Handle the requests received since the last step; block while paused. Return False if the run must end.

        Raises:
            RunFailedError: The run could not be recorded for too long and no user watches it, or its directory was
                deleted.
        """
        paused = self._single_step is not None
        if self._single_step is not None:
            self._emit_paused(self._single_step)
            self._single_step = None
        self._unrecorded_until = None
        while True:
            unrecorded = self._is_held_unrecorded(paused=paused)
            request = self._control.get(timeout=0.2 if paused or unrecorded else 0.0)
            if request is None:
                if paused or unrecorded:
                    continue
                return True
            ignored = self._reason_ignored(request, paused=paused, unrecorded=unrecorded)
            self._emit_request(request, ignored)
            if ignored:
                continue
            origin = request.origin
            match request.kind:
                case RequestKind.STOP:
                    if self._write_final_checkpoint(origin):
                        return False
                    paused = True
                case RequestKind.ABANDON:
                    return False
                case RequestKind.CHECKPOINT:
                    self._try_optional(partial(self._checkpoint, origin))
                case RequestKind.RESTORE:
                    assert request.path is not None  # the sender sets it
                    if not self._try_optional(partial(self.restore, Path(request.path), origin)):
                        return True
                case RequestKind.EXPLAIN:
                    self._explain(request)
                case RequestKind.PAUSE:
                    paused = True
                    self._emit_paused(origin)
                case RequestKind.STEP:
                    self._single_step = origin
                    self._training.timer.start_step()
                    return True
                case RequestKind.RESUME:
                    self._emit_resumed(origin)
                    return True

    def _explain(self, request: Request) -> None:
        """Report the explanation of the last decision for an env. All ranks call this together."""
        state, found = self._training, None
        assert isinstance(state.agent, ExplainingAgent)
        for row, episode in enumerate(state.episodes):
            if episode.env.index == request.env:
                try:
                    explanation = state.agent.explain(row, episode.view.step - 1)
                    found = reporter.decision_explained(episode, explanation, state.step_number.round)
                except Exception as error:  # noqa: BLE001 (a policy that cannot explain can still train)
                    found = f"{type(error).__name__}: {error}"
        for event in state.ranks.all_gather_object(found):
            if isinstance(event, str):
                self._emit_request(request, ignored=event)
            elif event is not None:
                self._hub.emit_global(event)

    def _emit_request(self, request: Request, ignored: str | None = None) -> None:
        self._hub.emit_global(reporter.control_requested(request, ignored))

    def _reason_ignored(self, request: Request, *, paused: bool, unrecorded: bool) -> str | None:
        """Return why a request has no effect; None if it has one."""
        if request.kind is RequestKind.PAUSE and paused:
            return "the run is already paused"
        if request.kind in {RequestKind.RESUME, RequestKind.STEP} and unrecorded:
            return "the run cannot be recorded; it resumes by itself when it can"
        if request.kind in {RequestKind.RESUME, RequestKind.STEP} and not paused:
            return "the run is not paused"
        if request.kind is RequestKind.EXPLAIN:
            if not isinstance(self._training.agent, ExplainingAgent):
                return "this policy cannot explain its decisions"
            if request.env not in range(self._training.config.envs):
                return f"the run has no env {request.env}"
        return None

    def _emit_paused(self, origin: str, reason: str | None = None, cause: PauseCause | None = None) -> None:
        at = self._training.step_number
        held = cause.value if cause else None
        self._hub.emit_global(ev.Paused(round=at.round, step=at.step, origin=origin, reason=reason, cause=held))
        self._hub.flush()

    def _emit_resumed(self, origin: str, checkpoint: str | None = None) -> None:
        at = self._training.step_number
        self._hub.emit_global(ev.Resumed(round=at.round, step=at.step, origin=origin, checkpoint=checkpoint))
        self._training.timer.start_step()

    # Checkpoints

    def stash_round_start(self) -> None:
        """Stash the state at the start of a round, in case a step of the round fails. Single-rank runs only."""
        if self._training.ranks.is_single:
            self.checkpointer.stash(self._training)

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint after a round if one is due. After the last round, wait until everything is saved.

        Raises:
            RunFailedError: The checkpoint or the events of the last round cannot be written, and no user can retry.
        """
        config, rounds = self._training.config, self._training.round
        if self._training.has_ended:
            self._await_recording()
            origin = "end"
            while origin and not self._write_final_checkpoint(origin):
                origin = self._wait_for_retry()
            self._await_recording()
        elif config.checkpoint_every and rounds % config.checkpoint_every == 0:
            self._save_scheduled()

    def _save_scheduled(self) -> None:
        """Write the checkpoint that is due, but not before the events that lead to it: a kill would lose these.

        A run that cannot be recorded is held before its next step, and writes the checkpoint when it can be.
        """
        self._is_overdue = self._training.ranks.is_single and not self._hub.flush()
        if not self._is_overdue:
            self._try_optional(lambda: self._checkpoint("schedule"))

    def _try_optional(self, operation: Callable[[], None]) -> str | None:
        """Run a non-essential operation. Log and return the message of a `CheckpointError`; the run continues."""
        try:
            operation()
        except CheckpointError as error:
            self._hub.emit_global(ev.Logged(severity="error", text=str(error)))
            return str(error)
        return None

    def _checkpoint(self, origin: str) -> None:
        """Write and report a checkpoint. Raises CheckpointError."""
        start = time.perf_counter()
        with self._training.timer("checkpoint"):
            saved = self.checkpointer.save(self._training)
        self._emit_checkpoint(*saved, time.perf_counter() - start, origin)
        self._try_optional(lambda: self.checkpointer.prune(self._training.ranks))
        self._hub.flush()

    def _write_final_checkpoint(self, origin: str) -> bool:
        """Write the last checkpoint of a run. Return False, paused, if it cannot be written and a user can retry.

        Raises:
            RunFailedError: The checkpoint cannot be written and no user can retry, for `--patience-minutes` if the run
                has ended by itself.
        """
        deadline = self._end_of_patience() if origin == "end" and self._training.ranks.is_single else 0.0
        reported = None
        while True:
            try:
                self._checkpoint(origin)
                return True
            except CheckpointError as error:
                self._fail_if_lost()
                if self._interactive and origin not in UNATTENDED_ORIGINS:
                    reason = f"{error}; free some space and try again, or leave without a checkpoint"
                    self._emit_paused("engine", reason, PauseCause.CHECKPOINT)
                    return False
                if time.monotonic() >= deadline or self._must_end():
                    raise RunFailedError(str(error)) from None
                if str(error) != reported:
                    reported = str(error)
                    text = f"{reported}; the run tries again and ends when it is written"
                    self._hub.emit(ev.Logged(severity="error", text=text))

    def _must_end(self) -> bool:
        """Wait for a request for a moment, and return True if it ends the run. Other requests are ignored."""
        request = self._control.get(timeout=0.2)
        if request is None:
            return False
        is_end = request.kind in ENDING_KINDS
        self._emit_request(request, None if is_end else "all rounds are done, and the run ends once they are saved")
        return is_end

    def _wait_for_retry(self) -> str | None:
        """Wait until the user wants the last checkpoint of a finished run to be written again.

        Returns:
            Origin of the request; None if the run is to end without the checkpoint, or another one was restored.
        """
        while True:
            match request := self._control.get(timeout=0.2):
                case None:
                    pass
                case Request(RequestKind.STOP | RequestKind.CHECKPOINT | RequestKind.RESUME, origin):
                    self._emit_request(request)
                    return origin
                case Request(RequestKind.ABANDON):
                    self._emit_request(request)
                    return None
                case Request(RequestKind.RESTORE, origin, str(path)):
                    self._emit_request(request)
                    if not self._try_optional(lambda: self.restore(Path(path), origin)):
                        return None
                case _:
                    self._emit_request(request, ignored="all rounds are done")

    def restore(self, path: Path, origin: str) -> None:
        """Restore a checkpoint of this run. Later events are discarded and later checkpoints are moved to `undone/`.

        Raises:
            CheckpointError: The checkpoint is damaged or belongs to another run.
        """
        restored = self.checkpointer.restore(self._training, path)
        self._single_step = None
        self._hub.rewind(restored.telemetry)
        self._training.director.resume()
        self._emit_checkpoint(path, restored.bytes, restored.checkpoint, None, "restore", restored.written)
        self._emit_resumed(origin, str(path))
        self._try_optional(lambda: self.checkpointer.set_aside_later(self._training))

    def _emit_checkpoint(
        self, path: Path, size: int, saved: Checkpoint, seconds: float | None, origin: str, written: float | None = None
    ) -> None:
        self._hub.emit_global(reporter.checkpoint_saved(path, size, saved, seconds, origin, written))


class RankedRequestQueue(RequestQueue):
    """Request queue shared by all ranks: a request to any rank reaches every rank, in the same order."""

    def __init__(self, local: RequestQueue, ranks: RankGroup) -> None:
        super().__init__()
        self._local = local
        self._ranks = ranks
        self._agreed: deque[Request] = deque()

    def get(self, timeout: float = 0.0) -> Request | None:
        """Remove and return the oldest request, like `RequestQueue.get`. All ranks must call it together."""
        if not self._agreed:
            received = self._ranks.all_gather_object(self._local.get(timeout))
            self._agreed.extend(request for request in received if request)
        return self._agreed.popleft() if self._agreed else None

    def has_request(self) -> bool:
        """Return True if any rank has a request, like `RequestQueue.has_request`. All ranks must call it together."""
        return bool(self._agreed) or any(self._ranks.all_gather_object(self._local.has_request()))
