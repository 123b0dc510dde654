"""Progress bar of a command, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int) -> Generator[Callable[[str, int], None]]:
    """Show a progress bar with the time left if standard error is a terminal.

    Args:
        total: Units of work of the command, such as env-steps.

    Yields:
        A function to call with a description and the number of further units.
    """
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=total)
        yield lambda description, count: progress.update(task, advance=count, description=description)
