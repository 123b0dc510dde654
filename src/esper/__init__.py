"""Esper Sanctum: train populations of growing neural networks, and watch them do it."""

from esper import domain

__version__ = domain.VERSION
