"""Log index: all log lines of a recording, compressed in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec
import zstandard

from esper.telemetry.log_lines import LogLine

BLOCK_LINES = 256
"""Number of log lines that are compressed together, and unpacked to read one of them."""
MAX_UNPACKED_BLOCKS = 64
"""Number of blocks that are kept unpacked, because a screen draws the same lines again and again."""
NO_ENV = 0xFFFF
"""Entry of `LogIndex.envs` for a line that is not about an env."""


class LogClass(NamedTuple):
    """Properties that equal log lines share."""

    kind: str
    severity: str
    group: str


class LogIndex:
    """Log lines in order. Filters use properties that are kept unpacked, 10 bytes a line."""

    def __init__(self) -> None:
        self.classes: list[LogClass] = []
        """The different classes of lines."""
        self.class_numbers = array("I")
        """Index in `classes` of each line."""
        self.envs = array("H")
        """Env of each line; `NO_ENV` if it has none."""
        self.steps = array("I")
        """Number of each line's step. Lines of one step have equal numbers, which are not those of the run."""
        self.num_truncations = 0
        """Number of times that lines were dropped."""
        self._number_of_class: dict[LogClass, int] = {}
        self._packed: list[_PackedBlock] = []
        self._rest: list[LogLine] = []
        """Last lines, which do not fill a block."""
        self._unpacked: OrderedDict[int, list[LogLine]] = OrderedDict()
        """Blocks by number, the one that was used last at the end."""
        self._last: LogLine | None = None

    def __len__(self) -> int:
        return len(self.class_numbers)

    @property
    def last_seq(self) -> int:
        """Event number of the last line; 0 if there are no lines."""
        return self._last.seq if self._last is not None else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the compressed lines and their properties take."""
        columns = (self.class_numbers, self.envs, self.steps)
        return sum(len(block.lines) for block in self._packed) + sum(len(c) * c.itemsize for c in columns)

    def append(self, line: LogLine) -> None:
        """Add a line after the last one."""
        log_class = LogClass(line.kind, line.severity, line.group)
        number = self._number_of_class.get(log_class)
        if number is None:
            number = self._number_of_class[log_class] = len(self.classes)
            self.classes.append(log_class)
        is_new_step = self._last is not None and line.step != self._last.step
        self.steps.append((self.steps[-1] if self.steps else 0) + is_new_step)
        self.class_numbers.append(number)
        # A damaged line may name any number.
        self.envs.append(line.env if line.env is not None and 0 <= line.env < NO_ENV else NO_ENV)
        self._rest.append(line)
        self._last = line
        if len(self._rest) == BLOCK_LINES:
            self._packed.append(_PackedBlock(self._rest[0].seq, _pack(_encode(self._rest))))
            self._rest = []

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add the lines whose events follow that of the last line."""
        for line in lines:
            if line.seq > self.last_seq:
                self.append(line)

    def truncate_after(self, seq: int) -> None:
        """Drop the lines of events after number `seq`, because these events were undone."""
        kept = self.count_until(seq)
        if kept == len(self):
            return
        block = kept // BLOCK_LINES
        self._rest = self.block(block)[: kept % BLOCK_LINES]
        del self._packed[block:]
        for column in (self.class_numbers, self.envs, self.steps):
            del column[kept:]
        self._unpacked.clear()
        self.num_truncations += 1
        self._last = self.line(kept - 1) if kept else None

    def count_until(self, seq: int) -> int:
        """Return the number of lines of events up to number `seq`."""
        if seq >= self.last_seq:
            return len(self)
        blocks = bisect_right(self._packed, seq, key=attrgetter("first_seq"))
        number = blocks if self._rest and self._rest[0].seq <= seq else blocks - 1
        if number < 0:
            return 0
        return number * BLOCK_LINES + bisect_right(self.block(number), seq, key=attrgetter("seq"))

    def line(self, number: int) -> LogLine:
        """Return a line, given its number from 0."""
        return self.block(number // BLOCK_LINES)[number % BLOCK_LINES]

    def block(self, number: int) -> list[LogLine]:
        """Return the lines of a block, given its number from 0. The caller must not change the list."""
        if number == len(self._packed):
            return self._rest
        lines = self._unpacked.pop(number, None)
        if lines is None:
            lines = _decode(_unpack(self._packed[number].lines))
            if len(self._unpacked) == MAX_UNPACKED_BLOCKS:
                self._unpacked.popitem(last=False)
        self._unpacked[number] = lines
        return lines


class _PackedBlock(NamedTuple):
    """Compressed lines."""

    first_seq: int
    """Event number of the first line."""
    lines: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[LogLine]).decode
_pack = partial(zstandard.compress, level=1)  # with a compressor of its own per call: threads cannot share one
_unpack = zstandard.decompress
