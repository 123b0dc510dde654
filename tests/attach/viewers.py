"""A scripted viewer, which can send valid and invalid messages, whole or in pieces."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from esper.attach.protocol import (
    LENGTH_PREFIX_BYTES,
    PROTOCOL_VERSION,
    SOCKET_NAME,
    Hello,
    RunMessage,
    ViewerMessage,
    encode_message,
    socket_address,
)
from esper.control import Request, RequestQueue

TIMEOUT_S = 60.0
"""Far longer than any reply takes, so that only a missing one fails a test."""
INVALID_UTF8 = b"\x82\xa4type\xa3Ask\xa4kind\xa1\xff"
"""An Ask message whose text is not valid UTF-8."""
HELLO = Hello(PROTOCOL_VERSION, "ann@box", os.getpid())


def with_length(content: bytes) -> bytes:
    """Put the length prefix before a message."""
    return len(content).to_bytes(LENGTH_PREFIX_BYTES, "big") + content


def no_recording_error() -> None:
    """Return None, like a run whose events can be recorded."""


_decode = msgspec.msgpack.Decoder(RunMessage).decode


class Viewer:
    """Viewer that is connected to the socket in a directory."""

    def __init__(self, directory: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(TIMEOUT_S)
        with socket_address(directory / SOCKET_NAME) as name:
            self.connection.connect(name)

    def send(self, content: bytes) -> None:
        self.connection.sendall(content)

    def exchange(self, message: ViewerMessage) -> RunMessage:
        """Send a message and return the reply, or the refusal that was sent before the run closed the connection."""
        with suppress(BrokenPipeError):
            self.send(encode_message(message))
        return self.receive()

    def receive(self) -> RunMessage:
        return _decode(self._receive_exactly(int.from_bytes(self._receive_exactly(LENGTH_PREFIX_BYTES), "big")))

    @property
    def ended(self) -> bool:
        """True if the run has closed the connection without sending more."""
        try:
            return self.connection.recv(1) == b""
        except ConnectionError:
            return True

    def _receive_exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = self.connection.recv(size - len(content))
            assert part, "the run has closed the connection"
            content += part
        return content


def drain_requests(control: RequestQueue) -> list[Request]:
    """Remove and return all requests of a queue."""
    requests: list[Request] = []
    while (request := control.get()) is not None:
        requests.append(request)
    return requests


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
