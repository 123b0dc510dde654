"""Which policy does `pretrained` name? Writes that of a checkpoint into the package.

    python -m research.ship_policy RUN

Takes seconds. The model card, README.md beside the policy, is written by hand: training command, seeds, evaluation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import safetensors.torch
from research.policies import TELEMETRY_DIR

from esper.engine.trained_policy import SHIPPED, TrainedPolicy, read_trained_policy


def write_policy(policy: TrainedPolicy, path: Path) -> None:
    """Write a policy to a file that `pretrained` can name. Raises OSError."""
    metadata = {"ppo": msgspec.json.encode(policy.ppo).decode()}
    tensors = {name: value.contiguous() for name, value in policy.tensors.items()}
    safetensors.torch.save_file(tensors, path, metadata)


def main() -> None:
    """Write the policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="checkpoint, or run, whose newest one is used")
    SHIPPED.parent.mkdir(parents=True, exist_ok=True)
    write_policy(read_trained_policy(parser.parse_args().run, TELEMETRY_DIR), SHIPPED)
    print(f"{SHIPPED}: {SHIPPED.stat().st_size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
