"""NVML, the library that reports the NVIDIA GPUs of a machine. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any


@cache
def load_nvml() -> ModuleType | None:
    """Return NVML, initialised for the life of the process; None on a machine without it."""
    import pynvml  # pyright: ignore[reportMissingTypeStubs]

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def query_nvml(query: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an NVML call; None on an error, such as a sensor that the GPU lacks."""
    import pynvml  # pyright: ignore[reportMissingTypeStubs]

    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None
