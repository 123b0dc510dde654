"""Cache of the curves of ended runs: one file per run, from which single curves can be read.

A file starts with the size and the checksum of its header. The header is msgpack: the identity of the recording, the
names of the curves, and the place and the checksum of each array. The arrays follow, little-endian.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from platformdirs import user_cache_path

from esper.disk import make_directory, open_regular
from esper.domain import VERSION
from esper.history.curve_store import CurvePoints, CurveStore, StepAxes
from esper.recording.segments import list_segments, packed_path
from esper.telemetry.codec import DECODE_ERRORS
from esper.telemetry.events import SCHEMA_VERSION

if TYPE_CHECKING:
    from numpy.typing import NDArray

Signature: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, size in bytes and time of the last write in ns of each file of events."""

FORMAT = f"{VERSION}/{SCHEMA_VERSION}/1"
"""Version of the curves and of the file. Files of another version are not read."""
MAX_FILES = 2000
"""Maximum number of files in the cache; those written longest ago are deleted."""
MAX_HEADER_BYTES = 1 << 22
_HEADER_INFO = struct.Struct("<II")
"""Size of the header and its checksum."""
_SUFFIX = ".curves"
_DTYPES = {"steps": "<u4", "values": "<f8"}


def default_curve_cache() -> Path:
    """Return the directory of the cache in the user's cache directory."""
    return user_cache_path("esper-sanctum") / "curves"


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
    """A file of the cache has changed or is damaged; the curves must be read from the recording again."""


class _Block(msgspec.Struct, array_like=True):
    """Place of an array in the file, and its checksum."""

    start: int
    size: int
    crc: int


class _Header(msgspec.Struct, kw_only=True):
    format: str
    path: bytes
    signature: Signature
    steps_per_round: int
    axes: tuple[_Block, _Block, _Block]
    """Steps, env-steps and seconds of `StepAxes`."""
    curves: dict[str, tuple[_Block, _Block]]
    """Steps and values, keyed by curve. Most curves share their steps."""


class CachedCurves:
    """Curves of an ended run in a file of the cache. An array is read when it is requested first, and kept.

    Args:
        path: File.
        header: Its header.
        start: Offset of the arrays.

    The methods raise `CacheError` if the file has changed or is damaged.
    """

    def __init__(self, path: Path, header: _Header, start: int) -> None:
        self._path = path
        self._header = header
        self._start = start
        self._curves: dict[str, CurvePoints] = {}
        self._axes: StepAxes | None = None

    @property
    def names(self) -> list[str]:
        """Names of the curves."""
        return list(self._header.curves)

    @property
    def axes(self) -> StepAxes:
        """Positions of all steps on the possible x axes."""
        if self._axes is None:
            steps, env_steps, seconds = self._header.axes
            self._axes = StepAxes(
                self._header.steps_per_round,
                self._read(steps, _DTYPES["steps"]),
                self._read(env_steps, _DTYPES["values"]),
                self._read(seconds, _DTYPES["values"]),
            )
        return self._axes

    def curve(self, name: str) -> CurvePoints | None:
        """Return the points of a curve; None if the run does not have it."""
        if name not in self._curves and name in self._header.curves:
            steps, values = self._header.curves[name]
            points = CurvePoints(self._read(steps, _DTYPES["steps"]), self._read(values, _DTYPES["values"]))
            self._curves[name] = points
        return self._curves.get(name)

    def _read(self, block: _Block, dtype: str) -> NDArray[Any]:
        import numpy as np

        try:
            with open_regular(self._path) as file:
                file.seek(self._start + block.start)
                content = file.read(block.size)
            if len(content) != block.size or zlib.crc32(content) != block.crc:
                raise CacheError(f"{self._path} is damaged")
            return np.frombuffer(content, dtype)
        except (OSError, OverflowError, ValueError, MemoryError) as error:  # places and sizes may be any numbers
            raise CacheError(f"cannot read {self._path}: {error}") from error


class CurveCache:
    """Files with the curves of ended runs. Without a directory that can be written, nothing is cached.

    Args:
        directory: Directory of the files, created when the first one is written; None for no cache.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.notice: str | None = None
        """Sentence for the user if the cache cannot be written; then nothing more is written."""

    def load(self, run: Path, signature: Signature) -> CachedCurves | None:
        """Return the cached curves of a run; None if there are none of these events, or the file is damaged."""
        if self._directory is None:
            return None
        path = self._path(run)
        try:
            with open_regular(path) as file:
                size, crc = _HEADER_INFO.unpack(file.read(_HEADER_INFO.size))
                encoded = file.read(min(size, MAX_HEADER_BYTES))
            header = msgspec.msgpack.decode(encoded, type=_Header)
        except (OSError, struct.error, *DECODE_ERRORS):
            return None  # it is written again
        if zlib.crc32(encoded) != crc or (header.format, header.path, header.signature) != (
            FORMAT,
            os.fsencode(run.resolve()),
            signature,
        ):
            return None
        return CachedCurves(path, header, _HEADER_INFO.size + size)

    def store(self, run: Path, signature: Signature, store: CurveStore) -> CachedCurves | None:
        """Write the curves of a run that has ended; return them as cached, or None if they cannot be cached.

        Args:
            run: Directory of the run.
            signature: Signature of its events before they were read.
            store: Its curves, completely read.
        """
        if self._directory is None or self.notice:
            return None
        arrays = _Arrays()
        axes = store.axes
        header = _Header(
            format=FORMAT,
            path=os.fsencode(run.resolve()),
            signature=signature,
            steps_per_round=axes.steps_per_round,
            axes=(arrays.add(axes.steps, "steps"), arrays.add(axes.env_steps), arrays.add(axes.seconds)),
            curves={
                name: (arrays.add(points.steps, "steps"), arrays.add(points.values))
                for name in store.names
                for points in [store.curve(name)]
            },
        )
        encoded = msgspec.msgpack.encode(header)
        try:
            make_directory(self._directory)
            _write(
                self._path(run),
                b"".join([_HEADER_INFO.pack(len(encoded), zlib.crc32(encoded)), encoded, *arrays.contents]),
            )
            self._delete_oldest()
        except OSError as error:
            self.notice = (
                f"the cache of curves in {self._directory} cannot be written ({error.strerror or error}); every start "
                "reads all recordings again"
            )
            return None
        return self.load(run, signature)

    def _path(self, run: Path) -> Path:
        assert self._directory is not None
        digest = hashlib.blake2b(os.fsencode(run.resolve()), digest_size=12).hexdigest()
        return self._directory / f"{digest}{_SUFFIX}"

    def _delete_oldest(self) -> None:
        """Delete the files that were written longest ago, if there are more than `MAX_FILES`. Raises OSError."""
        assert self._directory is not None
        paths = [path for path in self._directory.iterdir() if path.suffix == _SUFFIX]
        if len(paths) <= MAX_FILES:
            return
        written: list[tuple[float, Path]] = []
        for path in paths:
            with suppress(FileNotFoundError):  # another process may delete it
                written.append((path.stat().st_mtime, path))
        for _, path in sorted(written)[:-MAX_FILES]:
            path.unlink(missing_ok=True)


class _Arrays:
    """Arrays of a file, each stored once."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self._size = 0
        self._blocks: dict[bytes, _Block] = {}

    def add(self, array: NDArray[Any], kind: str = "values") -> _Block:
        """Add an array, and return its place."""
        content = array.astype(_DTYPES[kind]).tobytes()
        block = self._blocks.get(content)
        if block is None:
            block = self._blocks[content] = _Block(self._size, len(content), zlib.crc32(content))
            self.contents.append(content)
            self._size += len(content)
        return block


def _write(path: Path, content: bytes) -> None:
    """Replace a file. It is not synced: after a loss of power, a damaged file is written again. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        try:
            file.write(content)
            file.close()
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise
