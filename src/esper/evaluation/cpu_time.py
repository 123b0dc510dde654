"""CPU time of this process and its workers."""

from __future__ import annotations

import psutil


def cpu_seconds() -> float:
    """Return the CPU time of this process and its workers so far, in seconds. Workers that have ended count too."""
    process = psutil.Process()
    own = process.cpu_times()
    times = [each.cpu_times() for each in process.children(recursive=True)]
    ended = own.children_user + own.children_system
    return own.user + own.system + ended + sum(time.user + time.system for time in times)
