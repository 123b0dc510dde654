"""Curves of ended runs in the cache, from which single curves can be read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from esper.recordings.files.segments import list_segments, packed_path
from esper.recordings.history.curve_store import CurvePoints, CurveStore, StepAxes
from esper.recordings.history.run_cache import RunCache

Signature: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, size in bytes and time of the last write in ns of each file of events."""

CURVES = "curves"
"""Kind of the values in the cache."""
MAX_RUNS = 2000
"""Maximum number of runs with curves in the cache; those stored longest ago are removed."""


def event_files(run: Path) -> Signature:
    """Return the signature of the events of a run; it changes with every write.

    Raises:
        OSError: The directory cannot be read.
    """
    found: list[tuple[str, int, int]] = []
    for plain in list_segments(run):
        for path in (plain, packed_path(plain)):  # a segment may be packed meanwhile
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((path.name, status.st_size, status.st_mtime_ns))
    return tuple(found)


class CacheError(Exception):
    """The cache has changed or is damaged; the curves must be read from the recording again."""


class _Header(msgspec.Struct, array_like=True):
    """Value without a name of each run."""

    signature: Signature
    names: list[str]
    """Names of the curves."""
    steps_per_round: int


class _Curve(msgspec.Struct, array_like=True):
    """Value of each curve, and of each column of `StepAxes`."""

    signature: Signature
    steps: bytes
    """uint32, little-endian."""
    values: bytes
    """float64, little-endian."""


class CachedCurves:
    """Curves of an ended run in the cache. A curve is read when it is requested first, and kept.

    Created by `load_curves`. The methods raise `CacheError` if the cache has changed or is damaged.

    Args:
        run: Directory of the run.
        header: Value without a name of the run.
    """

    def __init__(self, cache: RunCache, run: Path, header: _Header) -> None:
        self._cache = cache
        self._run = run
        self._header = header
        self._curves: dict[str, CurvePoints] = {}

    @property
    def names(self) -> list[str]:
        """Names of the curves."""
        return self._header.names

    @property
    def axes(self) -> StepAxes:
        """Positions of all steps on the possible x axes."""
        steps, env_steps = self._read("env-steps")
        return StepAxes(self._header.steps_per_round, steps, env_steps, self._read("seconds").values)

    def curve(self, name: str) -> CurvePoints | None:
        """Return the points of a curve; None if the run does not have it."""
        return self._read(name) if name in self._header.names else None

    def _read(self, name: str) -> CurvePoints:
        import numpy as np

        if name not in self._curves:
            content = self._cache.load(CURVES, self._run, name)
            curve = msgspec.msgpack.decode(content, type=_Curve) if content is not None else None
            if curve is None:
                self._cache.clear()
            if curve is None or curve.signature != self._header.signature:
                raise CacheError(f"the cache has no curve {name} of {self._run}")
            self._curves[name] = CurvePoints(np.frombuffer(curve.steps, "<u4"), np.frombuffer(curve.values, "<f8"))
        return self._curves[name]


def load_curves(cache: RunCache, run: Path, signature: Signature) -> CachedCurves | None:
    """Return the cached curves of a run; None if there are none of these events."""
    content = cache.load(CURVES, run)
    header = msgspec.msgpack.decode(content, type=_Header) if content is not None else None
    return CachedCurves(cache, run, header) if header is not None and header.signature == signature else None


def store_curves(cache: RunCache, run: Path, signature: Signature, store: CurveStore) -> CachedCurves | None:
    """Store the curves of a run that has ended; return them as cached, or None if they cannot be cached.

    Args:
        run: Directory of the run.
        signature: Signature of its events before they were read.
        store: Its curves, completely read.
    """
    encode = msgspec.msgpack.Encoder().encode
    axes, header = store.axes, _Header(signature, store.names, store.axes.steps_per_round)
    curves = {name: store.curve(name) for name in store.names}
    curves["env-steps"] = CurvePoints(axes.steps, axes.env_steps)
    curves["seconds"] = CurvePoints(axes.steps, axes.seconds)
    values = {
        name: encode(_Curve(signature, points.steps.astype("<u4").tobytes(), points.values.astype("<f8").tobytes()))
        for name, points in curves.items()
    }
    if not cache.store(CURVES, {run: {"": encode(header), **values}}):
        return None
    cache.limit(CURVES, MAX_RUNS)
    return CachedCurves(cache, run, header)
