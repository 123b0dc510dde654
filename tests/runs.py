"""Small real runs, and the events of a run that must not depend on interruptions."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec
import pytest

from esper.common.configuration.files import resolve_config
from esper.common.control import RequestKind, RequestQueue
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.history.history import open_history
from esper.recordings.state.state import Keyframe, Record, RunState
from esper.training.engine.run_kind import RunKind
from esper.training.engine.setup import set_up_run
from esper.training.engine.start_point import RunOptions, StartPoint
from esper.training.lanes.errors import RunFailedError

E = TypeVar("E", bound=ev.Event)

RECORD_TIMEOUT_S = 300.0
"""Seconds without a record after which a test fails."""

CIRCUMSTANTIAL_EVENTS = (
    ev.RunStarted,
    ev.DeviceSampled,
    ev.PhaseTimed,
    ev.Paused,
    ev.Resumed,
    ev.CheckpointSaved,
    ev.ControlRequested,
    ev.DecisionExplained,
    ev.Logged,
    ev.CallOverdue,
    ev.CallEnded,
    ev.ClockChanged,
    ev.RunEnded,
)
"""Events about time, place and requests rather than about results of the computation."""
PLACES: dict[type[ev.Event], dict[str, Any]] = {ev.SearchEnded: {"directory": None}}
"""Fields with places of files, keyed by event, with the value that `computed` gives them."""


def tiny(telemetry_dir: Path, **options: Any) -> dict[str, Any]:
    """Options of a run that takes half a second: two batches for each epoch, and a small policy network."""
    return {
        "envs": 3,
        "rounds": 3,
        "steps": 4,
        "devices": ("cpu:0",),
        "checkpoint_every": 1,
        "training": {"samples-per-epoch": 256},
        "ppo": {"hidden": 16, "epochs": 2, "minibatches": 2},
        "telemetry_dir": str(telemetry_dir),
        **options,
    }


class LiveRun:
    """A run in a separate thread; its records are folded into a state as they arrive."""

    def __init__(
        self,
        telemetry_dir: Path,
        *,
        resume: Path | None = None,
        start: StartPoint | None = None,
        interactive: bool = False,
        ranks: RankGroup = SINGLE_RANK,
        **options: Any,
    ) -> None:
        self.records: SimpleQueue[Record] = SimpleQueue()
        self.control = RequestQueue()
        if start is None:
            config = resolve_config(None, tiny(telemetry_dir, **options))
            start = StartPoint(config, resume)
            if resume and ranks.rank == 0:  # no other rank locks a run that resumes
                start = StartPoint.at_checkpoint(config, resume)
        self.run = set_up_run(
            start, self.control, self.records, RunOptions(interactive=interactive), RunKind(), ranks=ranks
        )
        self.state = RunState()
        self.events: list[ev.AnyEvent] = []
        """All events folded so far, including those that a restore discarded."""
        self.failure: str | None = None
        """Message of the error with which the run failed."""
        self._thread = threading.Thread(target=self._train, daemon=True)

    def _train(self) -> None:
        try:
            self.run.train()
        except RunFailedError as error:
            self.failure = str(error)

    def start(self) -> LiveRun:
        self._thread.start()
        return self

    def start_paused(self, steps: int = 1) -> LiveRun:
        """Start the run, and pause it after this number of steps."""
        self.control.put(RequestKind.PAUSE, "test")
        self.start().wait_for(ev.Paused)
        for _ in range(steps - 1):
            self.control.put(RequestKind.STEP, "test")
            self.wait_for(ev.Paused)
        return self

    def wait_for(self, kind: type[E]) -> E:
        """Fold records until an event of this type arrives, and return it."""
        while True:
            record = self.records.get(timeout=RECORD_TIMEOUT_S)
            if isinstance(record, Keyframe):
                self.state = record.decode_state()
                continue
            self.state.apply(record)
            self.events.append(record)
            if isinstance(record, kind):
                return record

    @classmethod
    def finished(cls, telemetry_dir: Path, **options: Any) -> LiveRun:
        """Return a run that has ended."""
        live = cls(telemetry_dir, **options).start()
        live.finish()
        return live

    def stop(self) -> Path:
        """Stop the run, and return its last checkpoint."""
        self.control.put(RequestKind.STOP, "test")
        assert self.finish().status == "stopped"
        return list_checkpoints(self.run.directory)[-1]

    def abandon(self) -> None:
        """End the run without a checkpoint."""
        self.control.put(RequestKind.ABANDON, "test")
        self.finish()

    def finish(self) -> RunState:
        """Wait until the run has ended, and return its final state."""
        if self.state.status not in ("done", "stopped", "failed"):
            self.wait_for(ev.RunEnded)
        self.join()
        return self.state

    def join(self) -> None:
        """Wait until the thread of the run has ended."""
        self._thread.join(timeout=RECORD_TIMEOUT_S)
        assert not self._thread.is_alive()


def wait_for_fault(live: LiveRun) -> str:
    """Wait until the engine holds the run, and return the reason."""
    while (paused := live.wait_for(ev.Paused)).reason is None:
        pass
    return paused.reason


def stopped_run(telemetry_dir: Path) -> Path:
    """Return the directory of a run that was stopped after two steps and has one checkpoint."""
    live = LiveRun(telemetry_dir).start_paused(2)
    live.stop()
    return live.run.directory


def computed(events: Iterable[ev.AnyEvent]) -> list[ev.AnyEvent]:
    """Return the events with the results of a run, without sequence numbers, timestamps and places of files."""
    return [
        msgspec.structs.replace(event, seq=0, time=0.0, **PLACES.get(type(event), {}))
        for event in events
        if not isinstance(event, CIRCUMSTANTIAL_EVENTS) and not _is_about_a_lane(event)
    ]


def _is_about_a_lane(event: ev.AnyEvent) -> bool:
    """True for anomalies of a lane, which depend on the machine and the number of lanes."""
    return isinstance(event, ev.AnomalyFound | ev.AnomalyEnded) and "cpu:" in event.where


def recorded(run: Path) -> list[ev.AnyEvent]:
    """Return all events of a recorded run."""
    history = open_history(run)
    return list(history.events(0, history.length))


def only(directory: Path) -> Path:
    """Return the only entry of a directory."""
    (entry,) = directory.iterdir()
    return entry


def task_file(directory: Path) -> Path:
    """Return the file of a test's own tasks in its directory. No other test has a file of this name."""
    return directory / f"tasks_of_{directory.name}.py"


def task_reference(directory: Path, name: str) -> str:
    """Return the reference of a task in this file."""
    return f"{task_file(directory)}:{name}"


def only_run(cwd: Path) -> Path:
    """Return the directory of the only run recorded below a working directory."""
    return only(cwd / "telemetry")


def pass_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a KeyboardInterrupt in a thread of a lane pass, as that of Ctrl-C in the main thread does."""
    for module in ("lanes.runner", "engine.step"):
        monkeypatch.setattr(f"esper.training.{module}.user_errors", lambda: (Exception,))
