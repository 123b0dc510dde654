"""Anomaly rules. To add one, name it in `Rule`, and decorate its check with `@rule` in a module imported here.

The checks of one event type run in the order of their module.
"""

# pyright: reportUnusedImport=false

import esper.recordings.health.rules.envs
import esper.recordings.health.rules.lanes
import esper.recordings.health.rules.policy  # noqa: F401
from esper.recordings.health.rules.registry import CHECKS, RULES

__all__ = ["CHECKS", "RULES"]
