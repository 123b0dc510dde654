"""Small real runs, and what of them must not depend on when, where or how often they were interrupted."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec

from esper.config_files import resolve_config
from esper.control import RequestKind, RequestQueue
from esper.engine.run import Run
from esper.history.history import open_history
from esper.lanes.errors import RunFailedError
from esper.telemetry import events as ev
from esper.telemetry.state import Keyframe, Record, RunState

E = TypeVar("E", bound=ev.Event)

PATIENCE = 300.0
"""Seconds after which a run that says nothing is given up."""

OF_THE_MOMENT = (
    ev.RunStarted,
    ev.DeviceSampled,
    ev.PhaseTimed,
    ev.Paused,
    ev.Resumed,
    ev.CheckpointSaved,
    ev.ControlRequested,
    ev.Logged,
    ev.RunEnded,
)
"""Events that say when, where and at whose wish: not what was computed."""


def tiny(telemetry_dir: Path, **options: Any) -> dict[str, Any]:
    """Options of a run that takes a second or two."""
    return {
        "envs": 3,
        "rounds": 3,
        "steps": 4,
        "devices": ("cpu:0",),
        "checkpoint_every": 1,
        "telemetry_dir": str(telemetry_dir),
        **options,
    }


class LiveRun:
    """A run in a thread of its own, with its records folded as they come."""

    def __init__(
        self, telemetry_dir: Path, *, resume: Path | None = None, attended: bool = False, **options: Any
    ) -> None:
        self.records: SimpleQueue[Record] = SimpleQueue()
        self.control = RequestQueue()
        config = resolve_config(None, tiny(telemetry_dir, **options))
        self.run = Run(config, self.control, self.records, resume, attended=attended)
        self.state = RunState()
        self.heard: list[ev.AnyEvent] = []
        """Every event folded so far, those that were undone too."""
        self.failure: str | None = None
        """Why the run has failed, as its caller is told."""
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
        """Start, and hold after so many steps."""
        self.control.put(RequestKind.PAUSE, "test")
        self.start().wait_for(ev.Paused)
        for _ in range(steps - 1):
            self.control.put(RequestKind.STEP, "test")
            self.wait_for(ev.Paused)
        return self

    def wait_for(self, kind: type[E]) -> E:
        """Fold records until one of this kind has come."""
        while True:
            record = self.records.get(timeout=PATIENCE)
            if isinstance(record, Keyframe):
                self.state = record.decode_state()
                continue
            self.state.apply(record)
            self.heard.append(record)
            if isinstance(record, kind):
                return record

    def finish(self) -> RunState:
        """Wait for the end."""
        if self.state.status not in ("done", "stopped", "failed"):
            self.wait_for(ev.RunEnded)
        self._thread.join(timeout=PATIENCE)
        assert not self._thread.is_alive()
        return self.state


def stopped_run(telemetry_dir: Path) -> Path:
    """The directory of a run that was stopped after two steps, and has one checkpoint."""
    live = LiveRun(telemetry_dir).start_paused(2)
    live.control.put(RequestKind.STOP, "test")
    live.finish()
    return live.run.directory


def computed(events: Iterable[ev.AnyEvent]) -> list[ev.AnyEvent]:
    """What a run computed, event by event, without numbers and dates."""
    return [
        msgspec.structs.replace(event, seq=0, time=0.0)
        for event in events
        if not isinstance(event, OF_THE_MOMENT) and not _about_a_lane(event)
    ]


def _about_a_lane(event: ev.AnyEvent) -> bool:
    """An anomaly of memory, of speed, or among the envs that happen to share a lane."""
    return isinstance(event, ev.AnomalyFound | ev.AnomalyEnded) and event.where.startswith("cpu:")


def recorded(run: Path) -> list[ev.AnyEvent]:
    """The one history of a recorded run."""
    history = open_history(run)
    return list(history.events(0, history.length))


def only_run(cwd: Path) -> Path:
    """The directory of the run that the program recorded there."""
    (directory,) = (cwd / "telemetry").iterdir()
    return directory
