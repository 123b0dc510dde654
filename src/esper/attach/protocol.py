"""Messages between viewer and run: a big-endian length of four bytes, then a MessagePack map of that length.

A viewer sends Hello, and the run replies with Welcome or Refused. Then the viewer sends Ask messages, and the run
replies to each with Acknowledged or Refused. Acknowledged means that the request is queued until the end of the current
step. The recording holds an event for each
request that the engine receives, and one for its result.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Generator
from pathlib import Path
from typing import TypeAlias

import msgspec

PROTOCOL_VERSION = 1
"""Version of the protocol, increased when the meaning of a message changes. Hello and Refused never change."""
SOCKET_NAME = "control.sock"
"""Name of the socket in the run directory."""
MAX_MESSAGE_BYTES = 1 << 16
"""Maximum size of a message, without the length prefix."""
LENGTH_PREFIX_BYTES = 4

_MAX_SOCKET_PATH_BYTES = 100
"""Maximum path length for a socket address on every system: Linux allows 107 bytes, macOS 103."""


class AttachError(Exception):
    """A run cannot be controlled. The text is a sentence for the user, or the end of one."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First message of a viewer."""

    version: int
    who: str
    """`user@host`."""
    pid: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Reply to Hello: the viewer may send requests."""

    origin: str
    """Origin of the viewer's requests in events."""
    failure: str | None = None
    """Reason, as a sentence for the user, why events cannot be recorded at the moment; None if they can."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A request of a viewer. The run adds the origin."""

    kind: str
    """A value of `RequestKind`."""
    path: str | None = None
    """Checkpoint directory of a restore request."""
    env: int | None = None
    """Index of the env of an explain request."""


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """Reply to Ask: the request is in the engine's queue."""

    failure: str | None = None
    """As in Welcome. The result of the request is visible only after events can be recorded again."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Reply to a viewer or a request that the run does not accept."""

    reason: str


ViewerMessage: TypeAlias = Hello | Ask
RunMessage: TypeAlias = Welcome | Acknowledged | Refused

_encode = msgspec.msgpack.Encoder().encode


def encode_message(message: ViewerMessage | RunMessage) -> bytes:
    """Encode a message with its length prefix."""
    content = _encode(message)
    return len(content).to_bytes(LENGTH_PREFIX_BYTES, "big") + content


def has_unix_sockets() -> bool:
    """Return True if this system has Unix sockets."""
    return hasattr(socket, "AF_UNIX")


def create_socket() -> socket.socket:
    """Create a Unix socket without an address. Raises AttachError if the system has no Unix sockets."""
    if not has_unix_sockets():
        raise AttachError("this system has no Unix sockets")
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


@contextlib.contextmanager
def socket_address(path: Path) -> Generator[str]:
    """Yield a path as a socket address, valid within the context.

    A path that is too long for an address is replaced by a short one through /proc and a descriptor of its directory.

    Raises:
        OSError: The path is too long and the system has no /proc, or the directory cannot be opened.
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
