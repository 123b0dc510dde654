"""Blueprints of seeds. To add one, decorate it with `@blueprint("name", "BCHW")` in a module imported here.

The order of the imports is the order of the blueprints.
"""

# pyright: reportUnusedImport=false

import esper.networks.seeds.blueprints.cnn
import esper.networks.seeds.blueprints.features
import esper.networks.seeds.blueprints.sequences  # noqa: F401
from esper.networks.seeds.blueprints.registry import (
    BLUEPRINTS,
    blueprint,
    build_seed,
    offered_blueprints,
    reinitialise_seed_,
)

__all__ = ["BLUEPRINTS", "blueprint", "build_seed", "offered_blueprints", "reinitialise_seed_"]
