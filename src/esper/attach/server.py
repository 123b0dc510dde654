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
from typing import assert_never

import msgspec

from esper.attach.protocol import (
    LENGTH_PREFIX_BYTES,
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    SOCKET_NAME,
    Acknowledged,
    Ask,
    AttachError,
    Hello,
    Refused,
    RunMessage,
    ViewerMessage,
    Welcome,
    create_socket,
    encode_message,
    socket_address,
)
from esper.control import RequestKind, RequestQueue
from esper.process import NamedThread
from esper.telemetry.codec import DECODE_ERRORS

MAX_VIEWERS = 32
"""Maximum number of viewers at a time."""
ACCEPT_RETRY_S = 0.1
"""Pause in seconds after a connection could not be accepted, because a busy loop would slow training down."""
MAX_NAME_CHARS = 100
"""Maximum number of characters of a viewer's name; the rest is cut off."""

_UCRED = struct.Struct("3i")
"""Linux's `struct ucred`: pid, uid, gid."""
_decode = msgspec.msgpack.Decoder(ViewerMessage).decode


class AttachServer:
    """Accepts viewers in a thread, from construction until `close`. Disconnects viewers that do not read replies.

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
            raise AttachError(f"{self.path}: {error.strerror}") from error
        self._viewers: dict[socket.socket, _ViewerConnection] = {}
        self._thread = NamedThread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect all viewers, remove the socket and end the thread."""
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
                else:
                    self._read(key.data)
        with suppress(OSError):  # the lock is released, so another process may have created its socket here
            if os.path.samestat(self.path.stat(), self._socket_stat):
                self.path.unlink()
        for viewer in self._viewers:
            viewer.close()
        self._opened.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the viewer has disconnected, or this process has no free descriptor and the viewer waits
            time.sleep(ACCEPT_RETRY_S)
            return
        connection.setblocking(False)
        viewer = _ViewerConnection(connection)
        self._viewers[connection] = viewer
        self._selector.register(connection, selectors.EVENT_READ, viewer)
        if viewer.is_other_user:
            self._refuse(viewer, "only the owner of a run can control it")
        elif len(self._viewers) > MAX_VIEWERS:
            self._refuse(viewer, f"{MAX_VIEWERS} viewers are attached already, which is the limit")

    def _read(self, viewer: _ViewerConnection) -> None:
        """Receive data of a viewer, and handle every complete message."""
        try:
            received = viewer.connection.recv(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._close_viewer(viewer)
            return
        viewer.received += received
        while viewer.connection in self._viewers and (content := self._next_message(viewer)) is not None:
            try:
                message = _decode(content)
            except DECODE_ERRORS as error:
                self._refuse(viewer, f"not a message of the control protocol: {error}")
            else:
                self._handle_message(viewer, message)

    def _next_message(self, viewer: _ViewerConnection) -> bytes | None:
        """Remove and return the next complete message, without its length prefix.

        Returns:
            None if the message is incomplete, or too long, in which case the viewer is refused.
        """
        received = viewer.received
        length = int.from_bytes(received[:LENGTH_PREFIX_BYTES], "big")
        if len(received) < LENGTH_PREFIX_BYTES or (
            length <= MAX_MESSAGE_BYTES and len(received) < LENGTH_PREFIX_BYTES + length
        ):
            return None
        if length > MAX_MESSAGE_BYTES:
            self._refuse(viewer, f"a message of {length} bytes is too long; the limit is {MAX_MESSAGE_BYTES}")
            return None
        content = bytes(received[LENGTH_PREFIX_BYTES : LENGTH_PREFIX_BYTES + length])
        del received[: LENGTH_PREFIX_BYTES + length]
        return content

    def _handle_message(self, viewer: _ViewerConnection, message: ViewerMessage) -> None:
        match message:
            case Hello() if message.version != PROTOCOL_VERSION:
                self._refuse(
                    viewer,
                    f"the run uses version {PROTOCOL_VERSION} of the control protocol, the viewer version "
                    f"{message.version}; attach with the esper-sanctum that the run was started with",
                )
            case Hello():
                viewer.set_origin(message)
                self._send(viewer, Welcome(viewer.origin, self._recording_error()))
            case Ask() if not viewer.origin:
                self._refuse(viewer, "expected Hello before Ask")
            case Ask():
                self._send(viewer, self._enqueue_request(message, viewer.origin))
            case _:
                assert_never(message)

    def _enqueue_request(self, ask: Ask, origin: str) -> Acknowledged | Refused:
        try:
            kind = RequestKind(ask.kind)
        except ValueError:
            return Refused(f"unknown request {ask.kind!r}")
        if kind is RequestKind.RESTORE and ask.path is None:
            return Refused("restore needs the directory of a checkpoint")
        if kind is RequestKind.EXPLAIN and ask.env is None:
            return Refused("explain needs the index of an env")
        self._control.put(kind, origin, ask.path, ask.env)
        return Acknowledged(self._recording_error())

    def _refuse(self, viewer: _ViewerConnection, reason: str) -> None:
        """Send the reason and close the connection."""
        self._send(viewer, Refused(reason))
        self._close_viewer(viewer)

    def _send(self, viewer: _ViewerConnection, message: RunMessage) -> None:
        """Send a reply without blocking. Replies are short, so one that does not fit follows many unread ones."""
        content = encode_message(message)
        try:
            sent = viewer.connection.send(content)
        except OSError:
            sent = 0
        if sent < len(content):
            self._close_viewer(viewer)

    def _close_viewer(self, viewer: _ViewerConnection) -> None:
        if self._viewers.pop(viewer.connection, None):
            self._selector.unregister(viewer.connection)
            viewer.connection.close()


class _ViewerConnection:
    """Connection of one viewer."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        """Bytes that are not handled yet, less than two messages."""
        self.origin = ""
        """Origin of its requests in events; empty before its Hello."""
        self._pid: int | None = None
        """Process id according to the system; None if the system does not report it."""
        self.is_other_user = False
        """True if the viewer's process belongs to another user. Always False if the system does not report it."""
        if hasattr(socket, "SO_PEERCRED"):
            content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            self._pid, user, _ = _UCRED.unpack(content)
            self.is_other_user = user != os.geteuid()

    def set_origin(self, hello: Hello) -> None:
        """Set the origin from the name in Hello and the process id, preferably as reported by the system."""
        name = "".join(letter for letter in hello.who[:MAX_NAME_CHARS] if letter.isprintable())
        self.origin = f"attach {name} {self._pid or hello.pid}"


def _listen(path: Path) -> socket.socket:
    """Create a socket that listens at a path. It becomes visible there only after its permissions are set.

    Raises:
        AttachError: The system has no Unix sockets.
        OSError: The socket cannot be created at the path.
    """
    listener = create_socket()
    partial = path.with_name(path.name + ".part")
    try:
        partial.unlink(missing_ok=True)
        with socket_address(partial) as name:
            listener.bind(name)
        partial.chmod(0o600)
        listener.listen(MAX_VIEWERS)
        partial.replace(path)
    except OSError:
        listener.close()
        raise
    return listener
