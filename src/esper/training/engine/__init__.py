"""The training engine: set-up of a run, the loop, run control, checkpoints and events."""
