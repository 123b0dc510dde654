"""Start of worker processes. Needs no torch, so that main process and workers import it at the same time."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cached_property
from multiprocessing.connection import Connection, Pipe
from typing import IO

from esper.common.system.process import NamedThread, name_current_thread, python_command
from esper.training.lanes.channel import FILES, Channel, open_message_file

_PROGRAM = """
from esper.training.lanes import spawn
line = spawn.connect()
from esper.training.lanes.{} import serve
serve(*line)
"""
"""Program of a worker or a reader, given its module. It connects before it imports torch.

Not `-m`: as `__main__`, the classes would have other names, which pickle could not resolve.
"""


END_TIMEOUT_S = 10.0
"""Seconds in which a process that has closed its pipe must end."""
MAX_OUTPUT_BYTES = 10_000
"""Maximum length of the end of a worker's output that a fault contains."""


class SpawnedWorker:
    """A worker process and the channel to it.

    Args:
        name: Name of its main thread.
        data_fd: File descriptor of the data, which the process inherits.
        module: Module of its function `serve`.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, name: str, data_fd: int, module: str = "worker") -> None:
        with contextlib.ExitStack() as opened:
            pipe, worker_end = Pipe()
            opened.enter_context(pipe)
            self.output = opened.enter_context(tempfile.TemporaryFile())
            files = [opened.enter_context(open_message_file()).fileno() for _ in range(FILES)]
            self.channel = Channel(pipe, files, owns_files=True)
            with worker_end:
                inherited = worker_end.fileno(), *files
                command, environment = python_command(_PROGRAM.format(module), name, *map(str, inherited))
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=self.output,
                    stderr=self.output,
                    pass_fds=(*inherited, data_fd),
                    env=environment,
                    start_new_session=True,  # signals of the terminal are for the main process
                )
            self._opened = opened.pop_all()
        self.is_open = True

    def describe_end(self, error: Exception) -> tuple[str, str | None]:
        """Return how the process ended, and its output. It has closed its pipe, so it ends soon if not yet.

        Args:
            error: Error of the channel.
        """
        try:
            code = self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # it is alive, so the error is one of this process
            return f"cannot be reached: {error}", None
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - MAX_OUTPUT_BYTES))
        output = self.output.read().decode(errors="replace")
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}", output or None

    def close(self) -> None:
        """Kill the process, which holds no state that is needed later. May be called again."""
        self.process.kill()
        self.process.wait()
        self._opened.close()
        self.is_open = False


class WorkerSpawner:
    """Starts the workers of this process, some of them early, and owns the file of the data that they share."""

    def __init__(self) -> None:
        self._early: dict[str, SpawnedWorker] = {}
        """Workers that no lane has taken yet, keyed by lane."""

    @cached_property
    def data_file(self) -> IO[bytes]:
        """File that receives the data before the first message to a worker."""
        return tempfile.TemporaryFile()

    def start_early(self, lanes: Sequence[str]) -> None:
        """Start the workers of some lanes. `spawn` starts those again that cannot be started now, and reports why."""
        with contextlib.suppress(OSError):
            for lane in lanes:
                self._early[lane] = SpawnedWorker(lane, self.data_file.fileno())

    def spawn(self, lane: str) -> SpawnedWorker:
        """Return the worker of a lane: the one that was started early, or a new one. Raises OSError."""
        return self._early.pop(lane, None) or SpawnedWorker(lane, self.data_file.fileno())

    def close(self) -> None:
        """Kill the workers that no lane has taken, and close the file. May be called again."""
        while self._early:
            self._early.popitem()[1].close()
        if "data_file" in self.__dict__:
            self.data_file.close()


def connect() -> tuple[Channel, str]:
    """Return the channel to the main process and the name of the lane, in a worker, which exits with that process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # else a KeyboardInterrupt of the user's code would look like Ctrl-C
    lane, pipe, *files = sys.argv[1], *map(int, sys.argv[2:])
    name_current_thread(f"lane {lane}")
    NamedThread(target=_exit_with_main_process, args=(pipe,), name="hangup", daemon=True).start()
    return Channel(Connection(pipe), files, owns_files=False), lane


def _exit_with_main_process(descriptor: int) -> None:
    """Wait until the other end of the pipe is closed, then exit, even in the middle of an import."""
    poll = select.poll()
    poll.register(descriptor, 0)  # a hangup is reported always
    poll.poll()
    os._exit(0)
