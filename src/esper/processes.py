"""Further Pythons beside this one, for work that one interpreter's lock would hold up."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def another_python(program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a program that imports what this process imports, from the same places.

    Args:
        program: Python, as for `python -c`.
        arguments: its `sys.argv[1:]`.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return [sys.executable, "-P", "-c", program, *arguments], environment
