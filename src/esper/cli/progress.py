"""Progress bar of a command, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def progress_bar(env_steps: int) -> Generator[Callable[[str, int], None]]:
    """Show a progress bar with the time left if standard error is a terminal.

    Args:
        env_steps: Number of env-steps of the command.

    Yields:
        A function to call with a description and the number of env-steps after each step.
    """
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=env_steps)
        yield lambda description, count: progress.update(task, advance=count, description=description)
