"""Esper Sanctum: train populations of growing neural networks, and watch them do it."""

__version__ = "0.1.0"
