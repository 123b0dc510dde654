"""Memory of the runs of a sweep, and of the machine."""

from __future__ import annotations


def tree_memory(pid: int) -> int | None:
    """Return the resident bytes of a process and its descendants; None if it has ended."""
    import psutil

    total = 0
    try:
        process = psutil.Process(pid)
        tree = [process, *process.children(recursive=True)]
    except psutil.Error:
        return None
    for member in tree:
        try:
            total += member.memory_info().rss
        except psutil.Error:
            continue
    return total or None


def available_memory() -> int:
    """Return the bytes that new processes can use without swapping."""
    import psutil

    return psutil.virtual_memory().available
