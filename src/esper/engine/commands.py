"""Commands that messages advise: to resume a run, and to harvest a network from it. Importing this needs no torch."""

from __future__ import annotations

import shlex
from pathlib import Path

from esper.policy.loading import is_own_policy
from esper.user_code import TaskOrigin


def resume_options(run: Path, origin: TaskOrigin | None, policy: str) -> str:
    """Return the options that resume a run, with the user's own code, which must be named again.

    Args:
        origin: Source of the task; None for a built-in one.
    """
    words = ["--resume", str(run), *_task_words(origin)]
    words += ["--policy", policy] if is_own_policy(policy) else []
    return shlex.join(words)


def harvest_command(run: Path, origin: TaskOrigin | None) -> str:
    """Return the command that harvests a network of the newest checkpoint of a run; the user adds the directory.

    Args:
        origin: Source of the task; None for a built-in one.
    """
    return f"{shlex.join(['esper-sanctum', 'harvest', str(run), *_task_words(origin)])} --to DIR"


def _task_words(origin: TaskOrigin | None) -> list[str]:
    return ["--task", origin.reference] if origin else []
