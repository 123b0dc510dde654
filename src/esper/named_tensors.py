"""Tensors by dotted name, as a checkpoint holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def below(prefix: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose name starts with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
