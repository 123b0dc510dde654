"""Journals of evaluations: finished results on disk, and the ledger of used random seeds.

An interrupted evaluation continues from its journal.

The directory `evaluations` beside the runs has one file for each evaluation: a header, written when its episodes begin,
then one line for each finished part. Episodes that were used to choose something are no longer held out, so that each
new evaluation takes a random seed that no header has. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from esper.common.configuration.config import ConfigError
from esper.common.system.disk import make_directory, write_replaced
from esper.recordings.checkpoints.manifest import digest
from esper.recordings.events.codec import DECODE_ERRORS, encode_json, make_decoder
from esper.recordings.files.result_file import append_result, read_results, remove_partial_line

T = TypeVar("T")

FIRST_SEED = 1000
"""Random seed of the first evaluation; lower ones are for tests and development."""
MAX_HEADER_BYTES = 1 << 20
"""Maximum size of a header."""


class EvaluationKey(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that determine the results of an evaluation, besides the random seed and the policies."""

    task: str
    episodes: int
    checkpoints: list[str]
    """Digest of each manifest."""
    code: dict[str, str]
    """Digests of the task's files, keyed by path; empty for a built-in task."""
    package: str
    """Result of `package_digest`."""
    torch: str
    """Version of torch."""
    devices: list[str]
    """Kinds of the devices (`device_kinds`), on which rounding depends."""


class _Header(msgspec.Struct, kw_only=True):
    key: EvaluationKey
    seed: int
    started: datetime


class _Part(msgspec.Struct):
    part: str
    value: msgspec.Raw


class EvaluationJournal:
    """The journal of one evaluation. Every added part is on the disk when `recall` returns.

    Args:
        path: File of the journal; `begin` creates it.

    Attributes:
        seed: Random seed of the episodes.

    Raises:
        ConfigError: The file is damaged or is not a journal.
        OSError: The file cannot be read or written.
    """

    def __init__(self, path: Path, header: _Header) -> None:
        self.seed = header.seed
        self.path = path
        self._header = header
        self._parts: dict[str, msgspec.Raw] = {}
        if not path.exists():
            return
        remove_partial_line(path)
        for part in read_results(path, _Part, self._refuse):
            self._parts.pop(part.part, None)  # so that the order is that of the lines
            self._parts[part.part] = part.value

    def _refuse(self, number: int) -> None:
        if number > 1:  # the first line is the header
            raise ConfigError(f"{self.path} is damaged in line {number}; delete it to evaluate again")

    @property
    def is_new(self) -> bool:
        """True if no part is finished."""
        return not self._parts

    def begin(self) -> None:
        """Create the missing file: from now on, no new evaluation takes this random seed. Raises OSError."""
        if not self.path.exists():
            make_directory(self.path.parent)
            write_replaced(self.path, encode_json(self._header) + b"\n")

    def has(self, part: str) -> bool:
        """Return True if a part is finished."""
        return part in self._parts

    @property
    def is_finished(self) -> bool:
        """True if the evaluation was finished, and no part was added since."""
        return next(reversed(self._parts), "") == _FINISHED

    def recall(self, part: str, kind: type[T], compute: Callable[[], T]) -> T:
        """Return the value of a part: the stored one, or else the result of `compute`, which is stored.

        Args:
            kind: Type of its value, one that msgspec can encode.
            compute: Called if the part is missing.

        Raises:
            ConfigError: The stored value has another type.
            OSError: The value cannot be written.
        """
        if part in self._parts:
            try:
                return make_decoder(kind).decode(self._parts[part])
            except DECODE_ERRORS:
                raise ConfigError(f"{self.path} has a damaged part {part!r}; delete it to evaluate again") from None
        value = compute()
        self._store(part, value)
        return value

    def finish(self) -> None:
        """Mark the evaluation as finished: the next one without a random seed takes another one. Raises OSError."""
        self._parts.pop(_FINISHED, None)
        self._store(_FINISHED, True)

    def _store(self, part: str, value: object) -> None:
        encoded = msgspec.Raw(encode_json(value))
        self.begin()
        append_result(self.path, _Part(part, encoded))
        self._parts[part] = encoded


_FINISHED = "finished"


def open_journal(directory: Path, key: EvaluationKey, seed: int | None) -> EvaluationJournal:
    """Open the journal of an evaluation.

    Args:
        seed: Random seed of the episodes. None: that of an unfinished evaluation with this key; else the first seed
            above all used ones.

    Raises:
        ConfigError: A journal is damaged.
        OSError: The journal cannot be read or written.
    """
    used = _read_headers(directory)
    if seed is None:
        for header in used:
            if header.key == key:
                journal = EvaluationJournal(_path(directory, header), header)
                if not journal.is_finished:
                    return journal
        seed = max((header.seed + 1 for header in used), default=FIRST_SEED)
        seed = max(seed, FIRST_SEED)
    header = _Header(key=key, seed=seed, started=datetime.now().astimezone())
    return EvaluationJournal(_path(directory, header), header)


def open_search_journal(directory: Path, policy: str, key: EvaluationKey) -> EvaluationJournal:
    """Open the journal of a search, whose result does not depend on the held-out episodes.

    Args:
        key: Inputs that determine the result; `episodes` is the number of episodes of the search.
    """
    header = _Header(key=key, seed=0, started=datetime.now().astimezone())
    return EvaluationJournal(directory / f"{policy}-{_digest(key)}.jsonl", header)


def _path(directory: Path, header: _Header) -> Path:
    return directory / f"seed-{header.seed}-{_digest(header.key)}.jsonl"


def _digest(key: EvaluationKey) -> str:
    return digest(encode_json(key))[:12]


def _read_headers(directory: Path) -> Sequence[_Header]:
    """Return the headers of all journals, in the order of their random seeds."""
    headers: list[_Header] = []
    for path in directory.glob("seed-*.jsonl"):
        with path.open("rb") as file:
            line = file.readline(MAX_HEADER_BYTES)
        try:
            headers.append(msgspec.json.decode(line, type=_Header))
        except DECODE_ERRORS:
            raise ConfigError(f"{path} is not the journal of an evaluation, or is damaged; move it away") from None
    return sorted(headers, key=lambda header: header.seed)
