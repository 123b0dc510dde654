"""Run side of the socket: a thread receives the requests of viewers and puts them into the engine's queue."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from esper.common.control import RequestKind, RequestQueue
from esper.common.system.process import NamedThread
from esper.recordings.attach.protocol import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    SOCKET_NAME,
    Acknowledged,
    Ask,
    AttachError,
    Refused,
    Reply,
    Versioned,
    encode_message,
    socket_address,
)
from esper.recordings.events.codec import DECODE_ERRORS

MAX_CONNECTIONS = 32
"""Maximum number of open connections. A viewer needs one for about a millisecond per request."""
ACCEPT_RETRY_S = 0.1
"""Pause in seconds after a connection could not be accepted, because a busy loop would slow training down."""
MAX_NAME_CHARS = 100
"""Maximum number of characters of a viewer's name; the rest is cut off."""

_UCRED = struct.Struct("3i")
"""Linux's `struct ucred`: pid, uid, gid."""
_decode_version = msgspec.json.Decoder(Versioned).decode
_decode = msgspec.json.Decoder(Ask).decode


class AttachServer:
    """Receives requests in a thread, from construction until `close`, and never waits for a viewer.

    Args:
        directory: Run directory. The caller holds its RunLock, so that an existing socket is left from a dead process.
        control: Queue of the engine.
        recording_error: Returns the reason why events cannot be recorded at the moment, or None. Viewers are warned,
            because they would otherwise wait for events.

    Raises:
        AttachError: The socket cannot be created.
    """

    def __init__(self, directory: Path, control: RequestQueue, recording_error: Callable[[], str | None]) -> None:
        self.path = directory / SOCKET_NAME
        self._recording_error = recording_error
        self._control = control
        try:
            with ExitStack() as opened:
                self._listener = opened.enter_context(_listen(self.path))
                self._socket_stat = self.path.stat()
                self._selector = opened.enter_context(selectors.DefaultSelector())
                self._wake_receiver, self._wake_sender = map(opened.enter_context, socket.socketpair())
                for readable in (self._listener, self._wake_receiver):
                    readable.setblocking(False)
                    self._selector.register(readable, selectors.EVENT_READ)
                self._opened = opened.pop_all()
        except OSError as error:
            raise AttachError(f"{SOCKET_NAME}: {error.strerror}") from error
        self._received: dict[socket.socket, bytes] = {}
        """Open connections, the oldest first, each with the received part of its message."""
        self._thread = NamedThread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close all connections, remove the socket and end the thread."""
        self._wake_sender.close()
        self._thread.join()

    def _serve(self) -> None:
        listening = True
        while listening:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_receiver:
                    listening = False
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._received:  # unless it was closed since `select`
                    self._read(key.data)
        with suppress(OSError):  # the lock is released, so another process may have created its socket here
            if os.path.samestat(self.path.stat(), self._socket_stat):
                self.path.unlink()
        for connection in self._received:
            connection.close()
        self._opened.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the viewer has disconnected, or this process has no free descriptor and the viewer waits
            time.sleep(ACCEPT_RETRY_S)
            return
        if len(self._received) == MAX_CONNECTIONS:  # a viewer sends its message at once, so the oldest is idle
            self._close_connection(next(iter(self._received)))
        connection.setblocking(False)
        self._received[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ, connection)

    def _read(self, connection: socket.socket) -> None:
        """Receive a part of a message. Reply to the message and close the connection if this is the last part."""
        try:
            part = connection.recv(MAX_MESSAGE_BYTES)
        except OSError:
            part = b""
        line, newline, _ = (self._received[connection] + part).partition(b"\n")
        if len(line) > MAX_MESSAGE_BYTES:
            reply = Refused(f"a message is too long; the limit is {MAX_MESSAGE_BYTES} bytes")
        elif newline:
            reply = self._handle_message(line, connection)
        elif part:
            self._received[connection] = line
            return
        else:
            reply = None
        if reply:
            with suppress(OSError):  # the viewer has disconnected
                connection.send(encode_message(reply))
        self._close_connection(connection)

    def _handle_message(self, line: bytes, connection: socket.socket) -> Reply:
        pid = None
        if hasattr(socket, "SO_PEERCRED"):
            pid, user, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            if user != os.geteuid():
                return Refused("only the owner of a run can control it")
        try:
            version = _decode_version(line).version
            if version != PROTOCOL_VERSION:
                return Refused(
                    f"the run uses version {PROTOCOL_VERSION} of the control protocol, the viewer version {version}; "
                    "attach with the esper-sanctum that the run was started with"
                )
            ask = _decode(line)
        except DECODE_ERRORS as error:
            return Refused(f"not a message of the control protocol: {error}")
        if ask.kind is RequestKind.RESTORE and ask.path is None:
            return Refused("restore needs the directory of a checkpoint")
        if ask.kind is RequestKind.EXPLAIN and ask.env is None:
            return Refused("explain needs the index of an env")
        name = "".join(letter for letter in ask.who[:MAX_NAME_CHARS] if letter.isprintable())
        origin = f"attach {name} {pid or ask.pid}"
        if ask.kind:
            self._control.put(ask.kind, origin, ask.path, ask.env)
        return Acknowledged(origin, self._recording_error())

    def _close_connection(self, connection: socket.socket) -> None:
        del self._received[connection]
        self._selector.unregister(connection)
        connection.close()


def _listen(path: Path) -> socket.socket:
    """Create a socket that listens at a path. It becomes visible there only after its permissions are set.

    Raises OSError if it cannot be created.
    """
    listener = socket.socket(socket.AF_UNIX)
    partial = path.with_name(path.name + ".part")
    try:
        partial.unlink(missing_ok=True)
        with socket_address(partial) as name:
            listener.bind(name)
        partial.chmod(0o600)
        listener.listen()
        partial.replace(path)
    except OSError:
        listener.close()
        raise
    return listener
