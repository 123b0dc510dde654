"""Which policy does `pretrained` name? Writes that of a checkpoint, or a taught one, into the package.

    python -m research.ship_policy RUN
    python -m research.ship_policy telemetry/teaching/pupil-1.safetensors
    python -m research.ship_policy RUN --to FILE.safetensors     # to compare it with taught policies

Takes seconds. The model card, README.md beside the policy, is written by hand: training commands, seeds, evaluation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from research.policies import TELEMETRY_DIR

from esper.training.engine.trained_policy import SHIPPED, read_policy_file, read_trained_policy, write_policy_file


def main() -> None:
    """Write the policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="policy file, checkpoint, or run, whose newest checkpoint is used")
    parser.add_argument("--to", type=Path, default=SHIPPED, help="file to write (default: the one in the package)")
    options = parser.parse_args()
    is_file = Path(options.policy).suffix == SHIPPED.suffix
    policy = (
        read_policy_file(Path(options.policy), options.policy)
        if is_file
        else read_trained_policy(options.policy, TELEMETRY_DIR)
    )
    options.to.parent.mkdir(parents=True, exist_ok=True)
    write_policy_file(policy, options.to)
    print(f"{options.to}: {options.to.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
