"""Layouts of activations: the meaning of each axis of a tensor.

Letters: B samples, C channels, L or T positions, H × W pixels.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Layout(StrEnum):
    """The axes of an activation, in order."""

    BC = "BC"
    """Features."""
    BCL = "BCL"
    """A sequence, channels first, as in `nn.Conv1d`."""
    BTC = "BTC"
    """A sequence of tokens."""
    TBC = "TBC"
    """A sequence of tokens, positions first."""
    BCHW = "BCHW"
    """A picture."""
    BHWC = "BHWC"
    """A picture, channels last."""

    @property
    def batch_axis(self) -> int:
        """Index of the axis of the samples."""
        return self.index("B")

    @property
    def channel_axis(self) -> int:
        """Index of the axis of the channels."""
        return self.index("C")

    @property
    def canonical(self) -> Layout:
        """Layout that seeds receive in its place: one with the same axes in another order, or itself."""
        return _CANONICAL.get(self, self)

    def to_canonical(self, x: Tensor) -> Tensor:
        """Return a view of an activation with the axes of `canonical`."""
        return x.permute([self.index(axis) for axis in self.canonical]) if self in _CANONICAL else x

    def from_canonical(self, x: Tensor) -> Tensor:
        """Return a view of an activation of `canonical` with the axes of this layout."""
        return x.permute([self.canonical.index(axis) for axis in self]) if self in _CANONICAL else x


_CANONICAL = {Layout.TBC: Layout.BTC, Layout.BHWC: Layout.BCHW}

CANONICAL_LAYOUTS = tuple(layout for layout in Layout if layout not in _CANONICAL)
"""Layouts that blueprints can be written for."""
