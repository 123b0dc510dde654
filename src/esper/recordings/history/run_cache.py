"""Cache of values computed from ended runs, in an SQLite file: the information that lists show, and curves.

Every value is a zstd frame with a checksum, and contains the key under which it was stored. So a flipped byte in a
value, and a value under the key of another one, are noticed: the value counts as missing, and is computed again. A
flipped byte elsewhere in the file hides values, or makes SQLite report damage. Where damage is noticed, the file is
deleted, because everything in it can be computed again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import zstandard
from platformdirs import user_cache_path

from esper.common.domain import VERSION
from esper.common.system.disk import make_directory
from esper.recordings.events import SCHEMA_VERSION
from esper.recordings.events.codec import DECODE_ERRORS

FORMAT = f"{VERSION}/{SCHEMA_VERSION}/5"
"""Version of the values. The number increases when they, or the way they are computed, change."""
MAX_VALUE_BYTES = 1 << 28
_LOCK_TIMEOUT_S = 1.0
"""Seconds to wait for another process that writes to the cache."""
_SCHEMA = """CREATE TABLE IF NOT EXISTS entries
    (kind, directory, run, name, content, PRIMARY KEY (kind, directory, run, name))"""
_DAMAGE = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""Codes of SQLite for a file that is no database, or whose tables are not those of this module."""
_T = TypeVar("_T")

Key: TypeAlias = tuple[str, bytes, bytes, str]
"""Kind of the value, absolute path of the directory of the runs, name of the run, name of the value."""


class _Value(msgspec.Struct, array_like=True):
    format: str
    key: Key
    content: bytes


def default_run_cache() -> Path:
    """Return the path of the cache in the user's cache directory."""
    return user_cache_path("esper-sanctum") / "runs.sqlite"


class RunCache:
    """Values keyed by run, kind and name. Each use opens the file, so that any thread and any process may use it.

    Args:
        path: SQLite file, created when the first value is stored; None for no cache.
    """

    def __init__(self, path: Path | None) -> None:
        self.notice: str | None = None
        """Sentence for the user if the cache cannot be used; then it counts as empty from then on."""
        self._path = path

    def load(self, kind: str, run: Path, name: str = "") -> bytes | None:
        """Return a value; None if there is none, or it is damaged."""
        key = _key(kind, run, name)
        sql = "SELECT content FROM entries WHERE (kind, directory, run, name) = (?, ?, ?, ?)"
        values = self._unpack_all(self._use(lambda database: database.execute(sql, key).fetchall(), []))
        return values[0].content if values and values[0].key == key else None

    def load_all(self, kind: str, directory: Path) -> dict[str, bytes]:
        """Return the values without a name of all runs in a directory, keyed by the name of the run."""
        path = _resolved(directory)
        sql = "SELECT content FROM entries WHERE (kind, directory, name) = (?, ?, '')"
        rows = self._use(lambda database: database.execute(sql, (kind, path)).fetchall(), [])
        return {
            os.fsdecode(run): value.content
            for value in self._unpack_all(rows)
            for found_kind, found_path, run, name in [value.key]
            if (found_kind, found_path, name) == (kind, path, "")
        }

    def store(self, kind: str, values: Mapping[Path, Mapping[str, bytes]]) -> bool:
        """Replace all values of a kind of some runs.

        Args:
            values: Values keyed by name, keyed by run.

        Returns:
            True if they were stored.
        """
        compress = zstandard.ZstdCompressor(level=1, write_checksum=True).compress
        encode = msgspec.msgpack.Encoder().encode
        rows = [
            (*key, compress(encode(_Value(FORMAT, key, content))))
            for run, named in values.items()
            for name, content in named.items()
            for key in [_key(kind, run, name)]
        ]

        def insert(database: sqlite3.Connection) -> bool:
            _delete(database, kind, values)
            database.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", rows)
            return True

        return self._use(insert, False, creates=True)

    def remove(self, kind: str, runs: Iterable[Path]) -> None:
        """Remove the values of a kind of some runs."""
        self._use(lambda database: _delete(database, kind, runs), None)

    def limit(self, kind: str, num_runs: int) -> None:
        """Remove the values of a kind of all runs except those that were stored last."""
        newest = "SELECT directory, run FROM entries WHERE kind = ?1 AND name = '' ORDER BY rowid DESC LIMIT ?2"
        sql = f"DELETE FROM entries WHERE kind = ?1 AND (directory, run) NOT IN ({newest})"
        self._use(lambda database: database.execute(sql, (kind, num_runs)), None)

    def clear(self) -> None:
        """Delete the file, because it is damaged."""
        with suppress(OSError):
            if self._path is not None:
                self._path.unlink(missing_ok=True)

    def _unpack_all(self, rows: list[tuple[Any]]) -> list[_Value]:
        """Return the values of this version in some cells of the table. If one is damaged, the file is deleted."""
        unpack = zstandard.ZstdDecompressor().decompress
        values = [_to_value(content, unpack) for (content,) in rows]
        if None in values:
            self.clear()
        return [value for value in values if value is not None and value.format == FORMAT]

    def _use(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T, *, creates: bool = False) -> _T:
        """Return the result of work with the open database; `otherwise` if there is none, or it cannot be used."""
        if self._path is None or self.notice or not (creates or self._path.exists()):
            return otherwise
        try:
            if creates:
                make_directory(self._path.parent)
            with closing(sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT_S)) as database, database:
                if creates:
                    # Not synced: after a loss of power, damaged values are computed again.
                    database.execute("PRAGMA synchronous = OFF")
                    database.execute(_SCHEMA)
                return work(database)
        except (OSError, sqlite3.Error) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
                self.clear()
                return otherwise
            reason = error.strerror if isinstance(error, OSError) else error
            self.notice = (
                f"cannot use {self._path}, the cache of results of runs ({reason}); every start reads all "
                "runs again until this file can be written"
            )
            return otherwise


def _key(kind: str, run: Path, name: str) -> Key:
    return kind, _resolved(run.parent), os.fsencode(run.name), name


def _resolved(directory: Path) -> bytes:
    return os.fsencode(os.path.realpath(directory))


def _delete(database: sqlite3.Connection, kind: str, runs: Iterable[Path]) -> None:
    keys = [_key(kind, run, "")[:3] for run in runs]
    database.executemany("DELETE FROM entries WHERE (kind, directory, run) = (?, ?, ?)", keys)


def _to_value(content: Any, unpack: Callable[[bytes], bytes]) -> _Value | None:
    """Return the value that a cell of the table contains; None if it is damaged."""
    try:
        if not 0 <= zstandard.frame_content_size(content) <= MAX_VALUE_BYTES:
            return None
        return _decode(unpack(content))
    except (zstandard.ZstdError, TypeError, *DECODE_ERRORS):
        return None


_decode = msgspec.msgpack.Decoder(_Value).decode
