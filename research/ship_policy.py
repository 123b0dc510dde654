"""Writes the policy of a checkpoint into the package, as the one that `pretrained` names.

    python -m research.ship_policy RUN

Its model card, README.md beside it, is written by hand: training command, seeds, evaluation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from esper.engine.trained_policy import SHIPPED, read_trained_policy, write_policy


def main() -> None:
    """Write the policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="checkpoint, or run, whose newest one is used")
    parser.add_argument("--telemetry-dir", type=Path, default=Path("telemetry"))
    options = parser.parse_args()
    SHIPPED.parent.mkdir(parents=True, exist_ok=True)
    write_policy(read_trained_policy(options.run, options.telemetry_dir), SHIPPED)
    print(f"{SHIPPED}: {SHIPPED.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
