"""This Python process: its rank under torchrun, its cores, garbage-collector settings, child interpreters.

A full collection looks through everything that is loaded, and nobody else runs Python meanwhile: with torch and Textual
that is 0.2 s in which no key is answered. And events come by the hundred thousand, in containers that form no cycles:
to look through the young ones as often as Python does by itself is a tenth of the time that a recording takes to read.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import NamedTuple


class RankInfo(NamedTuple):
    """One of the processes of a run, its rank, and the machine that it runs on. Everything is counted from 0."""

    rank: int = 0
    world_size: int = 1
    """Ranks of the run."""
    local_rank: int = 0
    """Number of this rank on its machine."""
    local_world_size: int = 1
    """Ranks on its machine."""
    node_rank: int = 0
    num_nodes: int = 1

    @property
    def record_directory(self) -> str:
        """Where the rank records, below the directory of the run: rank 0 in that directory itself."""
        return f"rank-{self.rank}" if self.rank else "."

    @classmethod
    def from_environment(cls) -> RankInfo:
        """As torchrun has it; alone, where this process was not started by it."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        return cls(*(int(os.environ[name]) for name in names))


GEN0_THRESHOLD = 10_000
"""Containers made, and not freed, from one look at the young ones to the next."""


def freeze_loaded_objects() -> None:
    """From here on, look only through what is made later: modules live as long as the process.

    For programs, not for tests: what is alive now is not looked at again until the process ends. Then it is, or
    extensions would print what of theirs was never freed.
    """
    gc.freeze()
    gc.set_threshold(GEN0_THRESHOLD)
    atexit.register(gc.unfreeze)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def python_command(program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a program that imports what this process imports, from the same places.

    Args:
        program: Python, as for `python -c`.
        arguments: its `sys.argv[1:]`.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return [sys.executable, "-P", "-c", program, *arguments], environment
