"""Esper Sanctum: train populations of growing neural networks, and watch them do it."""

from esper.domain import VERSION as __version__

__all__ = ["__version__"]
