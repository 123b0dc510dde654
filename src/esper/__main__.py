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
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is not signal.SIG_IGN:  # a shell starts a command in the background with it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from esper.cli.main import main

    signal.signal(signal.SIGINT, interrupt)
    try:
        return main(argv)
    finally:
        if interrupt is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(run())
