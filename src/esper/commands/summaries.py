"""What `show` and `compare` have in common: reading a run, and saying things of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from esper.commands.options import warn
from esper.config import ConfigError
from esper.history.history import open_history
from esper.history.summary import Summary, summarise
from esper.recording.runs import resolve_run
from esper.recording.segments import ReadError


def read_summary(text: str, telemetry_dir: Path) -> Summary:
    """Sum up the run that a person means. Raises ReadError or ConfigError where there is nothing to sum up."""
    path = resolve_run(text, telemetry_dir)
    history = open_history(path)
    summary = summarise(history, time.time())
    if summary is None:
        if history.notices:
            raise ReadError(history.notices[0])
        raise ConfigError(f"{path} has nothing to tell yet: no event was recorded")
    warn(summary.notices)
    return summary


def word(value: Any) -> str:
    """A value of the configuration."""
    if isinstance(value, list):
        return " ".join(map(str, value)) or "unset"
    return "unset" if value in (None, "") else str(value)
