"""Esper Sanctum: train populations of growing neural networks, and watch them do it.

`import esper` offers the names of `__init__.pyi`. Each is imported on use, because importing torch takes seconds.
"""

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

from esper.common import domain

__version__ = domain.VERSION
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # pyright: ignore[reportUnknownVariableType]
