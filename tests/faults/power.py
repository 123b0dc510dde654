"""A model of a disk that loses power: records file operations, and builds the states that a crash may leave.

After ALICE (Pillai et al., 2014) and CrashMonkey (Mohan et al., 2018). An operation on a directory (create, rename,
remove) may be lost until the directory is synced, alone or with others, in any order. The content of a file may be lost
until the file is synced, all of it or its end.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = 0
"""Number of the root directory of the disk."""
Entries = dict[int, dict[str, int]]
"""Numbers of the files and directories in each directory, keyed by name."""
CrashState = dict[str, bytes | None]
"""Content of each file, keyed by path; None for a directory."""


@dataclass(frozen=True)
class Change:
    """A name that is removed from a directory, added to one, or both (a rename)."""

    node: int
    """Number of the file or directory."""
    removed: tuple[int, str] | None
    """Directory and name."""
    added: tuple[int, str] | None

    def apply(self, entries: Entries) -> None:
        """Change the entries of the directories."""
        if self.removed is not None:
            directory, name = self.removed
            if entries.setdefault(directory, {}).get(name) == self.node:
                del entries[directory][name]
        if self.added is not None:
            directory, name = self.added
            entries.setdefault(directory, {})[name] = self.node

    def is_in(self, directory: int) -> bool:
        """True if the change is one of the directory."""
        return directory in {place[0] for place in (self.removed, self.added) if place}


@dataclass
class Disk:
    """Durable and volatile state of a disk at one moment."""

    durable: Entries = field(default_factory=dict[int, dict[str, int]])
    pending: list[Change] = field(default_factory=list[Change])
    """Changes whose directory was not synced since, in order."""
    synced: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Content of each file at its last sync."""
    content: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Current content of each file."""

    def copy(self) -> Disk:
        """Return a copy that later operations do not change."""
        durable = {directory: dict(names) for directory, names in self.durable.items()}
        return Disk(durable, list(self.pending), dict(self.synced), dict(self.content))

    def sync_directory(self, directory: int) -> None:
        """Make the entries of a directory durable."""
        for change in self.pending:
            if change.is_in(directory):
                change.apply(self.durable)
        self.pending = [change for change in self.pending if not change.is_in(directory)]

    def crash_states(self, generator: random.Random) -> Iterator[CrashState]:
        """Yield the different states that a crash may leave."""
        number = range(len(self.pending))
        prefixes = [list(number[:n]) for n in range(len(number) + 1)]
        single = [[index] for index in number]
        all_but_one = [[i for i in number if i != index] for index in number]
        mixed = [[i for i in number if generator.random() < 0.5] for _ in number[:4]]
        seen: set[str] = set()
        for chosen in [*prefixes, *single, *all_but_one, *mixed]:
            entries = self.copy().durable
            for index in chosen:
                self.pending[index].apply(entries)
            for survives in (_lost, _kept, _torn):
                state = dict(self._walk(entries, ROOT, "", survives))
                if repr(state) not in seen:
                    seen.add(repr(state))
                    yield state

    def _walk(
        self, entries: Entries, directory: int, prefix: str, survives: Callable[[bytes, bytes], bytes]
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, node in entries.get(directory, {}).items():
            if node in self.content:
                yield prefix + name, survives(self.synced.get(node, b""), self.content[node])
            else:
                yield prefix + name, None
                yield from self._walk(entries, node, f"{prefix}{name}/", survives)


def _lost(synced: bytes, _: bytes) -> bytes:
    return synced


def _kept(_: bytes, content: bytes) -> bytes:
    return content


def _torn(synced: bytes, content: bytes) -> bytes:
    """Return the content without the last half of its unsynced end."""
    return content[: (len(synced) + len(content)) // 2] if content.startswith(synced) else synced


def write_state(state: CrashState, directory: Path) -> None:
    """Write a crash state to a directory."""
    directory.mkdir()
    for name, content in state.items():
        if content is None:
            (directory / name).mkdir()
        else:
            (directory / name).write_bytes(content)


class PowerRecorder:
    """Records every operation of this process on the files below a directory, and the disk before each.

    Content is read back at each operation, so writes need not be intercepted.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moments: list[Disk] = []
        """The disk before each operation."""
        self.promises: list[tuple[int, str, int]] = []
        """Promises of the program: number of operations before each, and its name and number."""
        self._disk = Disk()
        self._nodes: dict[Path, int] = {root: ROOT}
        self._numbers = count(ROOT + 1)
        self._lock = threading.RLock()

    def promise(self, name: str, number: int) -> None:
        """Record a promise: no crash after it may break it."""
        with self._lock:
            self.promises.append((len(self.moments), name, number))

    def durable_files(self) -> dict[str, bytes]:
        """Return the files that survive a loss of power in any case, with the content that does, keyed by path."""
        with self._lock:
            disk = self._disk.copy()
        disk.pending, disk.content = [], {node: disk.synced.get(node, b"") for node in disk.content}
        state = next(disk.crash_states(random.Random(0)))
        return {name: content for name, content in state.items() if content is not None}

    @contextmanager
    def recording(self) -> Generator[None]:
        """Intercept the operations."""
        with mock.patch.multiple(
            os,
            fsync=self._wrap(os.fsync, self._after_fsync),
            rename=self._wrap(os.rename, self._after_rename),
            replace=self._wrap(os.replace, self._after_rename),
            unlink=self._wrap(os.unlink),
            mkdir=self._wrap(os.mkdir),
            rmdir=self._wrap(os.rmdir),
        ):
            yield

    def _wrap(self, function: Callable[..., Any], after: Callable[..., None] | None = None) -> Callable[..., Any]:
        def intercepted(*args: Any, **options: Any) -> Any:
            with self._lock:
                self._observe()
                self.moments.append(self._disk.copy())
                result = function(*args, **options)
                if after:
                    after(*args)
                self._observe()
                return result

        return intercepted

    def _after_fsync(self, descriptor: int) -> None:
        node = self._nodes.get(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        if node is None:
            return
        if node in self._disk.content:
            self._disk.synced[node] = self._disk.content[node]
        else:
            self._disk.sync_directory(node)

    def _after_rename(self, source: str | Path, target: str | Path) -> None:
        # A run writes to /proc/self/fd/N/NAME.
        source, target = (path.parent.resolve() / path.name for path in (Path(source), Path(target)))
        if source not in self._nodes:
            return
        places = [(self._nodes[path.parent], path.name) for path in (source, target)]
        self._disk.pending.append(Change(self._nodes[source], places[0], places[1]))
        for path in [path for path in self._nodes if path == source or path.is_relative_to(source)]:
            self._nodes[target / path.relative_to(source)] = self._nodes.pop(path)

    def _observe(self) -> None:
        """Add the entries that were created or removed since the last call, and read every file."""
        found = {self.root, *self.root.rglob("*")}
        for path in sorted(self._nodes.keys() - found, reverse=True):  # the content of a directory before itself
            self._disk.pending.append(Change(self._nodes[path], (self._nodes[path.parent], path.name), None))
        self._nodes = {path: node for path, node in self._nodes.items() if path in found}
        for path in sorted(found):
            if path not in self._nodes:
                node = self._nodes[path] = next(self._numbers)
                self._disk.pending.append(Change(node, None, (self._nodes[path.parent], path.name)))
            if path.is_file():
                self._disk.content[self._nodes[path]] = path.read_bytes()
