"""A scripted viewer, which can send valid and invalid messages, whole or in pieces."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from esper.common.control import Request, RequestKind, RequestQueue
from esper.recordings.attach.protocol import PROTOCOL_VERSION, SOCKET_NAME, Ask, Reply, encode_message, socket_address

TIMEOUT_S = 60.0
"""Far longer than any reply takes, so that only a missing one fails a test."""
HELLO = Ask(PROTOCOL_VERSION, "ann@box", os.getpid())


def make_ask(kind: RequestKind, path: str | None = None, env: int | None = None) -> Ask:
    return Ask(HELLO.version, HELLO.who, HELLO.pid, kind, path, env)


def no_recording_error() -> None:
    """Return None, like a run whose events can be recorded."""


class Viewer:
    """Viewer that is connected to the socket in a directory, for one message."""

    def __init__(self, directory: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(TIMEOUT_S)
        with socket_address(directory / SOCKET_NAME) as name:
            self.connection.connect(name)

    def send(self, content: bytes) -> None:
        self.connection.sendall(content)

    def receive(self) -> Reply:
        """Return the reply, after which the run has closed the connection."""
        content = b""
        while part := self._receive_part():
            content += part
        assert content.endswith(b"\n"), "the run has closed the connection"
        return msgspec.json.decode(content, type=Reply)

    @property
    def ended(self) -> bool:
        """True if the run has closed the connection without sending more."""
        return self._receive_part() == b""

    def _receive_part(self) -> bytes:
        try:
            return self.connection.recv(1 << 16)
        except ConnectionError:
            return b""


def exchange(directory: Path, message: Ask) -> Reply:
    """Send a message over a new connection, and return the reply."""
    viewer = Viewer(directory)
    viewer.send(encode_message(message))
    return viewer.receive()


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
