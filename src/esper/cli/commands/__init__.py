"""The commands, one file each: a function takes the arguments after the name and returns the exit code."""

from __future__ import annotations

COMMANDS = {
    "replay": "replay:run",
    "attach": "attach:run",
    "demo": "replay:run_demo",
    "serve": "serve:run",
    "runs": "runs:run",
    "show": "show:run",
    "compare": "compare:run",
    "export": "export:run",
    "evaluate": "evaluate:run",
    "checkpoints": "checkpoints:run",
    "devices": "devices:run",
    "config": "config:run",
    "schema": "schema:run",
}
"""Module and function of each command; a module is imported when its command runs. Training needs no name."""

TRAINING = "train:run_training"
"""Module and function of the default command."""
