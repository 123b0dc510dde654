"""Anomaly rules. To add one, name it in `Rule`, and decorate its check with `@rule` in a module imported here.

The checks of one event type run in the order of their module.
"""

# pyright: reportUnusedImport=false

import esper.health.rules.envs
import esper.health.rules.lanes
import esper.health.rules.policy  # noqa: F401
from esper.health.rules.registry import CHECKS, RULES

__all__ = ["CHECKS", "RULES"]
