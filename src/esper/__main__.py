"""`python -m esper` is `esper-sanctum`."""

import sys

from esper.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
