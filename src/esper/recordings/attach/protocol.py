"""Messages between viewer and run, each one line of JSON of at most 64 KiB.

A viewer connects for each request: it sends one Ask, the run replies with Acknowledged or Refused and closes the
connection. Acknowledged means that the request is queued until the end of the current step. The recording holds an
event for each request that the engine receives, and one for its result.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path
from typing import TypeAlias

import msgspec

from esper.common.control import RequestKind
from esper.recordings.events.codec import encode_json

PROTOCOL_VERSION = 1
"""Version of the protocol, increased when a message changes. Versioned and Refused never change."""
SOCKET_NAME = "control.sock"
"""Name of the socket in the run directory."""
MAX_MESSAGE_BYTES = 1 << 16
"""Maximum size of a message, without its newline."""

_MAX_SOCKET_PATH_BYTES = 100
"""Maximum path length for a socket address on every system: Linux allows 107 bytes, macOS 103."""


class AttachError(Exception):
    """A run cannot be controlled. The text is a sentence for the user, or the end of one."""


class Versioned(msgspec.Struct, frozen=True):
    """The part of a viewer's message that the run decodes first."""

    version: int
    """`PROTOCOL_VERSION` of the viewer."""


class Ask(Versioned, frozen=True):
    """A viewer introduces itself and may send a request. The run adds the origin."""

    who: str
    """`user@host`."""
    pid: int
    kind: RequestKind | None = None
    """None if the viewer only checks that the run accepts its requests."""
    path: str | None = None
    """Checkpoint directory of a restore request."""
    env: int | None = None
    """Index of the env of an explain request."""


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """Reply to Ask: the run accepts the viewer, and its request is in the engine's queue."""

    origin: str
    """Origin of the viewer's requests in events."""
    failure: str | None = None
    """Reason, as a sentence for the user, why events cannot be recorded at the moment; None if they can. The result of
    a request is visible only after events can be recorded again."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Reply to a viewer or a request that the run does not accept."""

    reason: str


Reply: TypeAlias = Acknowledged | Refused


def encode_message(message: Ask | Reply) -> bytes:
    """Encode a message as a line."""
    return encode_json(message) + b"\n"


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
