"""Where this process stands among those of its run: torchrun says it in the environment. Imports no torch."""

from __future__ import annotations

import os
from typing import NamedTuple


class Place(NamedTuple):
    """One of the processes of a run, its rank, and the machine that it runs on. Everything is counted from 0."""

    rank: int = 0
    world_size: int = 1
    """Ranks of the run."""
    local_rank: int = 0
    """Number of this rank on its machine."""
    local_world_size: int = 1
    """Ranks on its machine."""
    machine: int = 0
    machines: int = 1

    @property
    def directory(self) -> str:
        """Where the rank records, below the directory of the run: rank 0 in that directory itself."""
        return f"rank-{self.rank}" if self.rank else "."

    @classmethod
    def current(cls) -> Place:
        """As torchrun has it; alone, where this process was not started by it."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        return cls(*(int(os.environ[name]) for name in names))
