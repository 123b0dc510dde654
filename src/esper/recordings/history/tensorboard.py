"""Writes the curves of a run for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from esper.recordings import events as ev
from esper.recordings.history.curves import Note, Point, RunCurves, hyperparameters
from esper.recordings.history.export import NamedHistory, Track
from esper.recordings.state.state import RunState


class TensorboardWriter:
    """Writes events of TensorBoard to a directory. Scalars are scalars, not tensors, so that every reader finds them.

    Args:
        directory: Directory of the run; it is created if it does not exist.
        per_env: Also write the curves of single envs.

    Raises:
        ImportError: tensorboard is not installed.
        OSError: The directory cannot be written.
    """

    def __init__(self, directory: Path, *, per_env: bool) -> None:
        # Imported by name, because tensorboard has no type annotations.
        writer_module = import_module("tensorboard.summary.writer.event_file_writer")
        self._event: Any = import_module("tensorboard.compat.proto.event_pb2")
        self._summary: Any = import_module("tensorboard.compat.proto.summary_pb2")
        self._tensor: Any = import_module("tensorboard.compat.proto.tensor_pb2")
        self._types: Any = import_module("tensorboard.compat.proto.types_pb2")
        self._text: Any = import_module("tensorboard.plugins.text.metadata")
        self._hparams: Any = import_module("tensorboard.plugins.hparams.summary_v2")
        self._per_env = per_env
        self._curves = RunCurves(per_env=per_env)
        self._time = 0.0
        """Wall-clock time of the last point, seconds since the epoch."""
        self._shift = 0.0
        """Seconds that are added to times, because the clock was set back."""
        self._writer: Any = writer_module.EventFileWriter(str(directory))

    def write(self, event: ev.AnyEvent) -> None:
        """Write what an event adds to the curves."""
        if isinstance(event, ev.RunStarted):
            self._write_hyperparameters(event)
        for found in self._curves.points(event):
            value = self._scalar(found) if isinstance(found, Point) else self._note(found)
            self._add(self._summary.Summary(value=[value]), found.step, found.time)

    def restart(self, state: RunState, time: float) -> None:
        """Start the curves again after a step. TensorBoard drops the later points, which the run has undone.

        Args:
            state: State after the step, of a run that has started.
            time: Wall-clock time in seconds since the epoch.
        """
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._writer.add_event(
            self._event.Event(session_log=start, step=state.steps_done + 1, wall_time=self._steady(time))
        )
        self._curves = RunCurves(state, per_env=self._per_env)
        if state.started is not None:
            self._write_hyperparameters(state.started)

    def flush(self) -> None:
        """Write the buffered events to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Write everything and close the file."""
        self._writer.close()

    def _write_hyperparameters(self, started: ev.RunStarted) -> None:
        self._add(self._hparams.hparams_pb(hyperparameters(started.config)), 0, started.time)

    def _scalar(self, point: Point) -> Any:
        return self._summary.Summary.Value(tag=point.curve, simple_value=point.value)

    def _note(self, note: Note) -> Any:
        return self._summary.Summary.Value(
            tag=f"{note.title}/text_summary",
            metadata=self._text.create_summary_metadata(display_name=note.title, description=""),
            tensor=self._tensor.TensorProto(
                dtype=self._types.DT_STRING,
                string_val=[note.text.encode()],
                tensor_shape={"dim": [{"size": 1}]},
            ),
        )

    def _add(self, summary: Any, step: int, time: float) -> None:
        self._writer.add_event(self._event.Event(summary=summary, step=step, wall_time=self._steady(time)))

    def _steady(self, time: float) -> float:
        """Return a time that is not before the last one: TensorBoard shows the time relative to the first point."""
        self._shift += max(self._time - (time + self._shift), 0.0)
        self._time = time + self._shift
        return self._time


def export_tensorboard(recordings: Sequence[NamedHistory], out: Path, track: Track, *, per_env: bool) -> None:
    """Write the curves of recordings for TensorBoard, of several recordings each to a directory of its own.

    Args:
        out: Empty directory.
        track: Passes the events on, and shows the progress.
        per_env: Also write the curves of single envs.

    Raises:
        ImportError: tensorboard is not installed.
        OSError: A file cannot be written.
    """
    for run, history in recordings:
        writer = TensorboardWriter(out if len(recordings) == 1 else out / run, per_env=per_env)
        state = history.state_at(0)
        if state.started is not None:  # an excerpt
            writer.restart(state, state.time)
        for event in track(history.events(), run):
            writer.write(event)
        writer.close()
