"""The commands, one module each. Their functions take the arguments after the command name and return the exit code."""

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
    "query": "query:run",
    "mcp": "mcp:run",
    "evaluate": "evaluate:run",
    "whatif": "whatif:run",
    "sweep": "sweep:run",
    "grow": "grow:run",
    "harvest": "harvest:run",
    "checkpoints": "checkpoints:run",
    "devices": "devices:run",
    "config": "config:run",
    "schema": "schema:run",
    "completion": "completion:run",
}
"""Module and function of each command. A module is imported when its command runs."""

TRAINING = "train:run_training"
"""Module and function that run if the first argument is not a command."""
