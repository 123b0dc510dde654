"""CPU time of this process and its workers."""

from __future__ import annotations

import psutil


def cpu_seconds() -> float:
    """Return the CPU time of this process and its workers so far, in seconds."""
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)
