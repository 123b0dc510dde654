"""This Python process: rank under torchrun, cores, CPU time, memory, garbage collection, child interpreters, code."""

from __future__ import annotations

import atexit
import gc
import hashlib
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import subprocess

GEN0_THRESHOLD = 10_000
"""Containers allocated, minus those freed, between two collections of the youngest generation."""

MAX_THREAD_NAME = 15
"""Characters of a thread's name that Linux keeps."""


class RankInfo(NamedTuple):
    """Rank of this process in its run, and the node (machine) that it runs on. All numbers start at 0."""

    rank: int = 0
    world_size: int = 1
    """Number of ranks in the run."""
    local_rank: int = 0
    """Rank of this process on its node."""
    local_world_size: int = 1
    """Number of ranks on its node."""
    node_rank: int = 0
    num_nodes: int = 1
    restarts: int = 0
    """Number of times that torchrun has started the ranks again, after it had lost one."""

    @classmethod
    def from_environment(cls) -> RankInfo:
        """Read the environment variables that torchrun sets. Without torchrun, the run has this rank only."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        place = cls(*(int(os.environ[name]) for name in names))
        return place._replace(restarts=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))

    def env_range(self, envs: int) -> range:
        """Return the indices of this rank's envs among all `envs`."""
        return range(envs * self.rank // self.world_size, envs * (self.rank + 1) // self.world_size)


class NamedThread(threading.Thread):
    """A thread whose name the system shows too, for example in `top -H`. Python sets it from version 3.14 on."""

    def run(self) -> None:
        """Name the thread, then call its target."""
        name_current_thread(self.name)
        super().run()


def spawn_program(arguments: Sequence[str], output: Path, *inherited: int) -> subprocess.Popen[bytes]:
    """Start this program in a new session, which signals of this terminal do not reach.

    Args:
        output: File that is created for everything that it prints.
        inherited: File descriptors that it keeps open.

    Raises:
        OSError: The file exists or cannot be written, or the process cannot be started.
    """
    import subprocess  # imported here to keep other commands' start-up fast

    # -P: do not import modules from the working directory.
    command = [sys.executable, "-P", "-m", "esper", *arguments]
    with output.open("xb") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, pass_fds=inherited
        )


def name_current_thread(name: str) -> None:
    """Give the calling thread a name in the system, cut to 15 characters. Does nothing on systems other than Linux."""
    if sys.platform == "linux":
        with suppress(OSError):  # no /proc: the thread runs as well without a name
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name[:MAX_THREAD_NAME])


def freeze_loaded_objects() -> None:
    """Exclude all current objects from garbage collection, and collect the youngest generation less often.

    With torch and Textual loaded, a full collection stops all Python threads for 0.2 s. Modules live as long as the
    process, so scanning them is useless. Events are allocated by the hundred thousand and form no cycles: with Python's
    default threshold, collections take a tenth of the time that reading a recording takes.

    Call this in programs, not in tests: the frozen objects are not collected before the process exits. They are
    unfrozen at exit, because C extensions would otherwise report their objects as leaked.
    """
    gc.freeze()
    gc.set_threshold(GEN0_THRESHOLD)
    atexit.register(gc.unfreeze)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parent_start_time() -> float:
    """Return when the parent of this process was started, in seconds since the epoch."""
    import psutil  # not at the start of every command

    return psutil.Process(os.getppid()).create_time()


def resident_bytes(memory: Sequence[Any]) -> int:
    """Return the resident bytes of processes.

    Shared memory, such as libraries and data that all of them map, counts once, where the system reports its size.

    Args:
        memory: Result of psutil's `memory_info` for each process, at least one.
    """
    shared = [getattr(process, "shared", 0) for process in memory]
    return sum(process.rss for process in memory) - sum(shared) + max(shared)


class HostMemory(NamedTuple):
    """Memory of a machine, or of a container on it, in bytes."""

    available: int
    """Memory that processes can still get without swapping."""
    total: int


_MEMORY_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Files with the limit and the use of a control group, of version 2 and of version 1, keyed by the name of the
controller in /proc/self/cgroup; and the name, in `memory.stat`, of cached files that the kernel drops at the limit."""


def host_memory(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> HostMemory:
    """Return the memory of this machine, or that of a control group of this process if less is available there.

    The kernel kills the processes of a container at the limit of its group, even if the machine has memory left.

    Args:
        membership: File that names the control groups of this process.
        root: Folder of all control groups.
    """
    import psutil  # not at the start of every command

    machine = psutil.virtual_memory()
    found = [HostMemory(machine.available, machine.total)]
    lines = membership.read_text().splitlines() if membership.exists() else []  # only Linux has control groups
    for controller, path in (line.split(":", 2)[1:] for line in lines):
        if controller not in _MEMORY_FILES:
            continue
        base = root / controller
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError, KeyError):  # it is not visible here, or has no limit
                if folder.is_relative_to(base):
                    found.append(_group_memory(folder, *_MEMORY_FILES[controller]))
    return min(found)


def _group_memory(folder: Path, limit_file: str, used_file: str, cached: str) -> HostMemory:
    limit, used = int((folder / limit_file).read_text()), int((folder / used_file).read_text())
    stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return HostMemory(max(limit - used + int(stats[cached]), 0), limit)


def cpu_seconds() -> float:
    """Return the CPU time of this process and its workers so far, in seconds. Workers that have ended count too."""
    import psutil  # not at the start of every command

    process = psutil.Process()
    own = process.cpu_times()
    times = [worker.cpu_times() for worker in process.children(recursive=True)]
    ended = own.children_user + own.children_system
    return own.user + own.system + ended + sum(time.user + time.system for time in times)


def is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped a process, which can continue; False if it runs, waits or has ended."""
    import psutil  # not at the start of every command

    with suppress(psutil.Error):
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    return False


def python_command(program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of a Python program that has the import path of this process.

    Args:
        program: Python source, as for `python -c`.
        arguments: `sys.argv[1:]` of the program.
    """
    paths = [path or os.getcwd() for path in sys.path]  # an interactive session has "" for the working directory
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return [sys.executable, "-P", "-c", program, *arguments], environment


@cache
def package_digest() -> str:
    """Return the digest of this package's code, data and trained policies: those of others give other results."""
    digest = hashlib.blake2b(digest_size=32)
    for path in sorted(Path(__file__).parents[2].rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()
