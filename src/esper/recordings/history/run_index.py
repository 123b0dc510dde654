"""Index of all runs of a telemetry directory, with a cache between two starts of the program."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter

import msgspec

from esper.recordings.events.codec import DECODE_ERRORS
from esper.recordings.files.notes import NOTES_FILE
from esper.recordings.files.segments import is_segment_name
from esper.recordings.history.measures import listed_measures
from esper.recordings.history.run_cache import RunCache
from esper.recordings.history.run_info import READING_STATE, RunEnd, RunInfo, directory_bytes, read_run_info, with_notes
from esper.recordings.history.run_status import LIVE_STATES, is_being_written

LIVE_READ_INTERVAL_S = 2.0
"""Minimum seconds between two reads of the recording of a live run."""
SCAN_INTERVAL_S = 1.0
"""Minimum seconds between two scans of the directory, unless a poll has no time limit."""
SAVE_INTERVAL_S = 2.0
"""Minimum seconds between two writes to the cache while runs are being read."""
INFO = "info"
"""Kind of the values in the cache."""


class _RunFiles(msgspec.Struct, frozen=True, array_like=True):
    """Files of a run as they were found: the same files give the same information."""

    events: tuple[tuple[str, int, int], ...]
    """Name, size and time of the last write (ns) of each segment and of the manifest."""
    is_live: bool
    notes: tuple[int, int] | None
    """Size and time of the last write (ns); None without notes."""
    others: tuple[int, tuple[tuple[str, int], ...]]
    """Total size of the other files, and name and time (ns) of each directory."""

    @property
    def written(self) -> float:
        """Time of the last write to the events, in seconds since the epoch."""
        return max(written for _, _, written in self.events) / 1e9


class _CachedRun(msgspec.Struct, array_like=True):
    """Value of a run in the cache: the information, and the files from which it was read."""

    files: _RunFiles
    info: RunInfo
    measures: list[str]
    """Names of the measures that lists had when the run was read."""


@dataclass
class _Run:
    """A run in the index."""

    info: RunInfo
    files: _RunFiles
    """Files that were found last."""
    read_files: _RunFiles | None = None
    """Files from which the information was read; None before."""
    read_at: float = -math.inf
    """Monotonic time of the last read, seconds."""
    end: RunEnd | None = None
    """Reader of the recording while the run is live."""
    is_saved: bool = False
    """The cache has this information."""

    @property
    def has_new_events(self) -> bool:
        """True if the recording was written to, or the run began or ended, since it was read."""
        before, files = self.read_files, self.files
        return before is None or (before.events, before.is_live) != (files.events, files.is_live)

    def is_due(self, now: float) -> bool:
        """Return True if something of the run must be read at a monotonic time in seconds."""
        if self.read_files is None or not self.must_wait(now):
            return self.read_files != self.files
        return self.read_files.notes != self.files.notes

    def must_wait(self, now: float) -> bool:
        """Return True if the run is live, has new events, and they were read a moment before."""
        return self.files.is_live and self.has_new_events and now - self.read_at < LIVE_READ_INTERVAL_S

    def judge_again(self) -> bool:
        """Update the status of a live run without new events, which may be silent. Return True if it has changed."""
        if not self.files.is_live or self.end is None or self.has_new_events:
            return False
        with suppress(OSError):  # the next read reports it
            status = self.end.judge(self.files.written, time.time())
            if status.brief != self.info.health:
                self.info = msgspec.structs.replace(self.info, state=status.name, health=status.brief)
                return True
        return False


class RunIndex:
    """Information about all runs of a directory. `poll` scans the directory and reads the runs that have changed.

    The directory need not exist.

    Args:
        telemetry_dir: Directory that contains the runs.
        cache: Cache with the information of an earlier index.
    """

    def __init__(self, telemetry_dir: Path, cache: RunCache) -> None:
        self._telemetry_dir = telemetry_dir
        self._cache = cache
        self._cached: dict[str, bytes] | None = None
        """Values of the cache that are not in use yet, keyed by run; None before it was read."""
        self._runs: dict[str, _Run] = {}
        self._to_scan: list[str] = []
        """Names of the entries of the directory that the current scan has not reached."""
        self._has_scanned = False
        """The whole directory was scanned at least once."""
        self._scanned_at = -math.inf
        """Monotonic time at which the last scan began, seconds."""
        self._saved_at = -math.inf
        """Monotonic time of the last write to the cache, seconds."""
        self._removed: list[str] = []
        """Runs that the cache has and the directory does not have any more."""
        self._sorted: list[RunInfo] | None = []
        """Value of `runs`; None if it is out of date."""

    @property
    def notices(self) -> list[str]:
        """Sentences for the user about a cache that cannot be used."""
        return [self._cache.notice] if self._cache.notice else []

    @property
    def runs(self) -> list[RunInfo]:
        """All runs, live ones first, then by the time of the last write, newest first."""
        if self._sorted is None:
            self._sorted = sorted(
                (run.info for run in self._runs.values()),
                key=lambda info: (info.state not in LIVE_STATES, -info.written, info.run),
            )
        return self._sorted

    @property
    def is_complete(self) -> bool:
        """True if every run was read, by this index or, if its files are unchanged, by an earlier one."""
        are_read = (run.read_files == run.files or run.read_at > -math.inf for run in self._runs.values())
        return self._has_scanned and all(are_read)

    def refresh(self, run: str) -> None:
        """Scan a run, given its name, at the next poll, because its notes were changed by this program."""
        self._to_scan.append(run)

    def poll(self, within: float = math.inf) -> bool:
        """Scan the directory, and then read the runs that have changed: live ones first, then the newest.

        A live run that grows is read again every LIVE_READ_INTERVAL_S.

        Args:
            within: Seconds after which the method returns, once at least one run was scanned or read.

        Returns:
            True if any information has changed.

        Raises:
            OSError: The directory cannot be read.
        """
        deadline = perf_counter() + within
        changed = self._scan(deadline, is_unlimited=within == math.inf)
        now = monotonic()
        due = [run for run in self._runs.values() if run.is_due(now)] if not self._to_scan else []
        for run in sorted(due, key=lambda run: (not run.files.is_live, -run.files.written)):
            self._read(run, now)
            changed = True
            if perf_counter() > deadline:
                break
        if changed:
            self._sorted = None
        if self.is_complete or monotonic() - self._saved_at >= SAVE_INTERVAL_S:
            self._save()
        return changed

    def _scan(self, deadline: float, *, is_unlimited: bool) -> bool:
        """Continue the scan of the directory, or begin another one if it is due. Return True if a run has changed."""
        changed, now = False, monotonic()
        if self._cached is None:
            self._cached = self._cache.load_all(INFO, self._telemetry_dir)
        if is_unlimited or (not self._to_scan and now - self._scanned_at >= SCAN_INTERVAL_S):
            self._scanned_at = now
            self._to_scan = _list_directories(self._telemetry_dir)
            present = set(self._to_scan)
            gone = [name for name in self._runs if name not in present]
            gone_before = [name for name in self._cached if name not in present]
            changed = bool(gone)
            self._removed += [*gone, *gone_before]
            for name in gone:
                del self._runs[name]
            for name in gone_before:
                del self._cached[name]
        while self._to_scan:
            changed |= self._scan_run(self._to_scan.pop())
            if perf_counter() > deadline:
                break
        self._has_scanned |= not self._to_scan
        return changed

    def _scan_run(self, name: str) -> bool:
        """Look at the files of a run. Return True if it is new, gone, or its cached information is used now."""
        directory = self._telemetry_dir / name
        known = self._runs.get(name)
        files = _find_files(directory)
        if files is None:
            return self._runs.pop(name, None) is not None
        if known is not None:
            known.files = files
            return known.judge_again()
        cached = self._load(name)
        if cached is None:
            info = RunInfo(run=name, path=str(directory), state=READING_STATE, written=files.written)
            self._runs[name] = _Run(with_notes(info) if files.notes else info, files)
        else:
            info = msgspec.structs.replace(cached.info, path=str(directory))
            self._runs[name] = _Run(info, files, cached.files, is_saved=cached.files == files)
        return True

    def _read(self, run: _Run, now: float) -> None:
        """Read those parts of a run that have changed: its recording, its notes, or the size of its files."""
        before, files = run.read_files, run.files
        directory = Path(run.info.path)
        if before is not None and run.must_wait(now):
            files = msgspec.structs.replace(before, notes=files.notes)
            run.info = with_notes(run.info)
        elif before is None or run.has_new_events:
            run.end = run.end or RunEnd(directory)
            run.info = read_run_info(directory, files.written, time.time(), run.end)
            run.read_at = monotonic()
        else:
            if before.others != files.others:
                run.info = msgspec.structs.replace(run.info, bytes=directory_bytes(directory))
            run.info = with_notes(run.info) if before.notes != files.notes else run.info
        if not files.is_live:
            run.end = None
        run.read_files, run.is_saved = files, False

    def _load(self, name: str) -> _CachedRun | None:
        """Return what the cache has of a run, and forget it here; None if it has nothing, damage, or other measures."""
        assert self._cached is not None
        with suppress(*DECODE_ERRORS):
            cached = _decode_cached(self._cached.pop(name, b""))
            return cached if cached.measures == [*listed_measures()] else None
        return None

    def _save(self) -> None:
        """Write changed information to the cache."""
        self._saved_at = monotonic()
        unsaved = {name: run for name, run in self._runs.items() if not run.is_saved and _can_be_saved(run)}
        if self._removed:
            self._cache.remove(INFO, [self._telemetry_dir / name for name in self._removed])
        if unsaved:
            encode = msgspec.msgpack.Encoder().encode
            measures = [*listed_measures()]
            values = {
                self._telemetry_dir / name: {
                    "": encode(_CachedRun(run.files, msgspec.structs.replace(run.info, path=""), measures))
                }
                for name, run in unsaved.items()
            }
            self._cache.store(INFO, values)
        self._removed = []
        for run in unsaved.values():
            run.is_saved = True


_decode_cached = msgspec.msgpack.Decoder(_CachedRun).decode


def _can_be_saved(run: _Run) -> bool:
    """Return True if the information stays valid until files of the run change, and its text can be encoded."""
    is_current = run.read_files == run.files and not run.files.is_live
    return is_current and run.info.problem is None and run.info.run.isprintable()


def _list_directories(telemetry_dir: Path) -> list[str]:
    """Return the names of the directories in a directory; empty if it does not exist. Raises OSError."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(telemetry_dir) as entries:
        return [entry.name for entry in entries if os.path.isdir(entry)]  # `entry.is_dir()` fails for a loop of links
    return []


def _find_files(directory: Path) -> _RunFiles | None:
    """Return the files of a run; None if the directory is no run, is deleted, or cannot be read by this user."""
    events: list[tuple[str, int, int]] = []
    directories: list[tuple[str, int]] = []
    notes, others_bytes = None, 0
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                name, found = entry.name, entry.stat(follow_symlinks=False)
                if is_segment_name(name) or name == "run.json":
                    found = found if not entry.is_symlink() else entry.stat()
                    events.append((name, found.st_size, found.st_mtime_ns))
                elif name == NOTES_FILE:
                    notes = found.st_size, found.st_mtime_ns
                elif entry.is_dir(follow_symlinks=False):
                    directories.append((name, found.st_mtime_ns))
                else:
                    others_bytes += found.st_size
    if not events:
        return None
    files = _RunFiles(tuple(sorted(events)), False, notes, (others_bytes, tuple(sorted(directories))))
    try:
        is_live = is_being_written(directory, files.written, time.time())
    except OSError:  # `read_run_info` reports it
        is_live = False
    return msgspec.structs.replace(files, is_live=is_live) if is_live else files
