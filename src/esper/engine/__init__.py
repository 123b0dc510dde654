"""The training engine: lanes, envs, the loop, checkpoints (Tolaria)."""
