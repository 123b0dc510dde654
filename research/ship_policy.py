"""Which policy does `pretrained` name? Writes that of a checkpoint into the package.

    python -m research.ship_policy RUN

Takes seconds. The model card, README.md beside the policy, is written by hand: training command, seeds, evaluation.
"""

from __future__ import annotations

import argparse

from research.policies import TELEMETRY_DIR

from esper.engine.trained_policy import SHIPPED, read_trained_policy, write_policy_file


def main() -> None:
    """Write the policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="checkpoint, or run, whose newest one is used")
    SHIPPED.parent.mkdir(parents=True, exist_ok=True)
    write_policy_file(read_trained_policy(parser.parse_args().run, TELEMETRY_DIR), SHIPPED)
    print(f"{SHIPPED}: {SHIPPED.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
