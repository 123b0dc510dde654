"""Pickling of what reader processes need: sources of samples, and transforms.

Only processes of one run exchange these pickles. A memory-mapped array is opened again; it would be copied.
"""

from __future__ import annotations

import io
import mmap
import pickle
import weakref
from types import FunctionType
from typing import Any, cast

import numpy as np
import psutil
from numpy.lib.array_utils import byte_bounds

from esper.common.user_code.references import describe_exception, user_errors


class Pickler(pickle.Pickler):
    """Pickles memory-mapped arrays by their path, and refuses code that another process cannot import."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how to pickle an object; NotImplemented for the usual way."""
        if isinstance(obj, np.memmap) and is_mapped(cast("object", obj)):
            return _map_array, _map_arguments(obj)
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__qualname__} is defined in the session or the script that runs")
        return NotImplemented


def is_mapped(value: Any) -> bool:
    """Return True for an array in a file; its copies in memory have the same class."""
    return isinstance(value, np.memmap) and None not in (value.filename, getattr(cast("Any", value), "_mmap", None))


def copy_by_pickle(value: Any) -> Any:
    """Return a copy of an object of the user, as another process would receive it.

    Raises:
        ValueError: It cannot be pickled, or not be read again.
    """
    file = io.BytesIO()
    try:
        Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return pickle.loads(file.getbuffer())
    except user_errors() as error:
        raise ValueError(
            f"cannot be sent to the reader processes: {describe_exception(error)}; "
            "define its classes and functions at the top of a file that is imported, and open files in __getitem__"
        ) from error


def _map_arguments(array: Any) -> tuple[Any, ...]:
    """Return the arguments of `_map_array` for a memory-mapped array, which may be a part of a larger one."""
    low, high = byte_bounds(array)
    mapped = np.frombuffer(array._mmap, np.uint8).__array_interface__["data"][0]
    offset = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY + low - mapped
    first = array.__array_interface__["data"][0] - low
    return str(array.filename), offset, high - low, first, array.dtype, array.shape, array.strides


_open_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
"""Maps of this process."""
_MAX_RESIDENT = 256 << 20
"""Bytes of mapped files that a process reads before it lets go of them. They stay in the system's cache."""


class MapRelease:
    """Lets go of the pages of memory-mapped arrays when they are many. Else a process would seem to grow with them."""

    def __init__(self) -> None:
        self._resident = self._mapped_bytes()

    def check(self) -> None:
        """Let go of the pages if more than `_MAX_RESIDENT` bytes were read since the last time."""
        if _open_maps and self._mapped_bytes() > self._resident + _MAX_RESIDENT:
            for opened in _open_maps:
                opened.madvise(mmap.MADV_DONTNEED)
            self._resident = self._mapped_bytes()

    def _mapped_bytes(self) -> int:
        """Return the bytes of this process that are in files, with those of its programs; 0 where they are not told."""
        return getattr(psutil.Process().memory_info(), "shared", 0)


def _map_array(
    path: str,
    offset: int,
    size: int,
    first: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    """Map an array for reading.

    Args:
        offset: Place of its bytes in the file.
        size: Number of these bytes.
        first: Place of its first element in these bytes.
    """
    mapped: Any = np.memmap(path, np.uint8, "r", offset, (size,))
    _open_maps.add(mapped._mmap)
    array: Any = np.ndarray(shape, dtype, mapped, first, strides).view(np.memmap)
    for name in ("_mmap", "filename", "offset", "mode"):  # a view of another class does not take them over
        setattr(array, name, getattr(mapped, name))
    return array
