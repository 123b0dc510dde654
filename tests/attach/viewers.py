"""A viewer that says what a test wants it to, whole or in pieces, right or wrong."""

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
    frame,
    socket_address,
)
from esper.control import Request, RequestQueue

PATIENCE = 60.0
"""Seconds: far more than anything takes; what never comes fails the test."""
NO_TEXT = b"\x82\xa4type\xa3Ask\xa4kind\xa1\xff"
"""A message whose text is no UTF-8."""
HELLO = Hello(PROTOCOL_VERSION, "ann@box", os.getpid())


def framed(content: bytes) -> bytes:
    """With its length before it."""
    return len(content).to_bytes(LENGTH_PREFIX_BYTES, "big") + content


def well() -> None:
    """What a run has to say whose events can be recorded."""


_decode = msgspec.msgpack.Decoder(RunMessage).decode


class Viewer:
    """Connected to the socket in a directory."""

    def __init__(self, directory: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(PATIENCE)
        with socket_address(directory / SOCKET_NAME) as name:
            self.connection.connect(name)

    def send(self, content: bytes) -> None:
        self.connection.sendall(content)

    def say(self, message: ViewerMessage) -> RunMessage:
        """Its answer; or why the run had ended the connection already."""
        with suppress(BrokenPipeError):
            self.send(frame(message))
        return self.hear()

    def hear(self) -> RunMessage:
        return _decode(self._receive(int.from_bytes(self._receive(LENGTH_PREFIX_BYTES), "big")))

    @property
    def ended(self) -> bool:
        """Whether the run has closed the connection, with nothing more to say."""
        try:
            return self.connection.recv(1) == b""
        except ConnectionError:
            return True

    def _receive(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = self.connection.recv(size - len(content))
            assert part, "the run has closed the connection"
            content += part
        return content


def asked(control: RequestQueue) -> list[Request]:
    """What is in an inbox; it is emptied."""
    requests: list[Request] = []
    while (request := control.get()) is not None:
        requests.append(request)
    return requests


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
