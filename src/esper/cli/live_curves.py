"""`--tensorboard`: writes the curves of a run for TensorBoard while it trains."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

from esper.cli.console import drain
from esper.common.system.process import NamedThread
from esper.recordings.history.tensorboard import TensorboardWriter
from esper.recordings.state.state import Keyframe, Record

if TYPE_CHECKING:
    from esper.training.engine.thread import EngineThread

DIRECTORY = "tensorboard"
"""Directory of the curves in the directory of the run."""
FLUSH_S = 5.0
"""Seconds between two flushes. TensorBoard sees the points of a run after the next flush."""


class LiveCurves:
    """Context in which the curves of a run are written, in a thread. Neither engine nor dashboard wait for it.

    A resumed run appends a file. TensorBoard drops the points that a restored checkpoint has undone. If the curves
    cannot be written, a warning of the run says so, and the run continues.

    Args:
        engine: Engine of the run, not started yet.
    """

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._records: SimpleQueue[Record] = engine.subscribe()
        self._engine_ended = threading.Event()
        self._thread = NamedThread(target=self._main, name="tensorboard", daemon=True)

    def __enter__(self) -> LiveCurves:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the rest. The engine must have ended."""
        self._engine_ended.set()
        self._thread.join()

    def _main(self) -> None:
        try:
            self._write_all()
        except OSError as error:
            self._engine.warnings.append(f"--tensorboard: the curves cannot be written: {error.strerror or error}")
            for _ in drain(self._records, self._is_alive):
                """Discard the records, which would fill the memory."""

    def _write_all(self) -> None:
        writer: TensorboardWriter | None = None
        flushed = time.monotonic()
        for record in drain(self._records, self._is_alive):
            if isinstance(record, Keyframe):
                state = record.decode_state()
                if state.started is not None and self._engine.run_directory is not None:
                    writer = writer or TensorboardWriter(self._engine.run_directory.check() / DIRECTORY, per_env=False)
                    writer.restart(state, record.time)
            elif writer is not None:
                writer.write(record)
                if time.monotonic() > flushed + FLUSH_S:
                    flushed = time.monotonic()
                    writer.flush()
        if writer is not None:
            writer.close()

    def _is_alive(self) -> bool:
        return not self._engine_ended.is_set()
