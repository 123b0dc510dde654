"""Options that messages advise to resume a run. Importing this needs no torch."""

from __future__ import annotations

import shlex
from pathlib import Path

from esper.common.user_code.references import TaskOrigin
from esper.training.policy.loading import is_own_policy


def resume_options(run: Path, origin: TaskOrigin | None, policy: str) -> str:
    """Return the options that resume a run, with the user's own code, which must be named again.

    Args:
        origin: Source of the task; None for a built-in one.
    """
    words = ["--resume", str(run)]
    words += ["--task", origin.reference] if origin else []
    words += ["--policy", policy] if is_own_policy(policy) else []
    return shlex.join(words)
