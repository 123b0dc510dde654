"""Blueprints of seeds. To add one, decorate it with `@blueprint("name")` in `cnn.py` or in a module imported here."""

# pyright: reportUnusedImport=false

import esper.growth.blueprints.cnn  # noqa: F401 (registers its blueprints)
from esper.growth.blueprints.registry import BLUEPRINTS, blueprint, build_seed

__all__ = ["BLUEPRINTS", "blueprint", "build_seed"]
