"""Places in a recording from which to read on: what a History keeps, so that any moment is near."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import zstandard

from esper.telemetry.merged import Source
from esper.telemetry.state import RunState

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RunState).decode
_pack = zstandard.ZstdCompressor(level=1).compress
_unpack = zstandard.ZstdDecompressor().decompress


class Block(NamedTuple):
    """A place from which to read on, and the state there."""

    position: int
    seq: int
    elapsed: float
    segment: Source
    offset: int
    envs: int
    opens: bool
    """A file begins here, or a Keyframe, and what is read before it does not reach across."""
    state: bytes

    def open(self) -> RunState:
        """The state, a fresh one."""
        return _decode(_unpack(self.state))


def pack_state(state: RunState) -> bytes:
    """A state as a block keeps it."""
    return _pack(_encode(state))
