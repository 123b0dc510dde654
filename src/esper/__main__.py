"""`python -m esper` is `esper-sanctum`."""

import signal
import sys
from collections.abc import Sequence


def run(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Before and after a command, Ctrl+C ends the process at once: Python would print a traceback.

    Args:
        argv: Arguments without the program's name. None for those of the process.
    """
    within = signal.getsignal(signal.SIGINT)
    outside = signal.SIG_IGN if within is signal.SIG_IGN else signal.SIG_DFL  # a command in the background ignores it
    signal.signal(signal.SIGINT, outside)
    from esper.cli.main import main

    signal.signal(signal.SIGINT, within)
    try:
        return main(argv)
    finally:
        signal.signal(signal.SIGINT, outside)


if __name__ == "__main__":
    sys.exit(run())
