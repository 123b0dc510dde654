"""What viewer and run say to each other: a length of four bytes, big-endian, and a MessagePack map of that length.

A viewer says Hello, and is answered by Welcome or Refused; then it Asks, and each Ask is answered by Acknowledged or
Refused. Acknowledged means that the engine will take the request at the end of its step; that it has taken it, and what
came of it, are events in the recording.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

PROTOCOL_VERSION = 1
"""Raised when a message changes its meaning. Hello and Refused keep their form in every version."""
SOCKET_NAME = "control.sock"
"""Name of the socket in the run's directory."""
MAX_MESSAGE_BYTES = 1 << 16
"""Bytes of a message, its length not counted."""
LENGTH_PREFIX_BYTES = 4
"""Bytes of the length before it."""

_MAX_SOCKET_PATH_BYTES = 100
"""Bytes of a path that any system takes as the address of a socket: Linux takes 107, macOS 103."""


class AttachError(Exception):
    """Why a run cannot be asked for anything. One sentence, or the end of one, for people."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A viewer introduces itself."""

    version: int
    who: str
    """`user@host`."""
    pid: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The run takes the viewer in."""

    origin: str
    """What the events call the viewer."""
    failure: str | None = None
    """Why no event can be recorded just now: a sentence for people."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A request. The run adds who asks."""

    kind: str
    """A value of `control.Kind`."""
    path: str | None = None
    """restore: the directory of the checkpoint."""


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """The request is in the engine's inbox."""

    failure: str | None = None
    """As in Welcome: what comes of the request cannot be seen before that is mended."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The viewer, or its request, is turned down."""

    reason: str


ViewerMessage: TypeAlias = Hello | Ask
RunMessage: TypeAlias = Welcome | Acknowledged | Refused

_encode = msgspec.msgpack.Encoder().encode


def frame(message: ViewerMessage | RunMessage) -> bytes:
    """A message as it is sent."""
    content = _encode(message)
    return len(content).to_bytes(LENGTH_PREFIX_BYTES, "big") + content


def has_unix_sockets() -> bool:
    """Whether this system has Unix sockets."""
    return hasattr(socket, "AF_UNIX")


def create_socket() -> socket.socket:
    """A new socket, without an address. Raises ControlError where the system has none."""
    if not has_unix_sockets():
        raise AttachError("this system has no Unix sockets")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """The path as the address of a socket, good for as long as the context lasts.

    Addresses are short. A longer path is reached through its directory, opened, where the system has /proc. Raises
    OSError (ENAMETOOLONG) where it has not, or if the directory cannot be opened.
    """
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        short = Path(f"/proc/self/fd/{directory}")
        if not short.exists():
            raise OSError(
                errno.ENAMETOOLONG, f"more than {_MAX_SOCKET_PATH_BYTES} bytes long: use a shorter --telemetry-dir"
            )
        yield str(short / path.name)
    finally:
        os.close(directory)
