"""Blueprints of seeds. To add one, decorate it with `@blueprint("name", "BCHW")` in a module imported here.

The order of the imports is the order of the blueprints.
"""

# pyright: reportUnusedImport=false

import esper.growth.blueprints.cnn
import esper.growth.blueprints.features
import esper.growth.blueprints.sequences  # noqa: F401
from esper.growth.blueprints.registry import (
    BLUEPRINTS,
    blueprint,
    build_seed,
    offered_blueprints,
    reinitialise_seed_,
)

__all__ = ["BLUEPRINTS", "blueprint", "build_seed", "offered_blueprints", "reinitialise_seed_"]
