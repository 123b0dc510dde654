"""The run's end of the socket: a thread that takes requests from viewers and puts them into the engine's inbox."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

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
    frame,
    socket_address,
)
from esper.control import RequestKind, RequestQueue

MAX_VIEWERS = 32
"""At one time."""
ACCEPT_RETRY_S = 0.1
"""Seconds without a look at the socket when a viewer could not be taken in: a busy loop would cost training."""
MAX_NAME_CHARS = 100
"""Characters of a viewer's name that are kept."""

_UCRED = struct.Struct("3i")
_decode = msgspec.msgpack.Decoder(ViewerMessage).decode


class AttachServer:
    """Listens from now on, in a thread of its own. A viewer that does not read its answers is dropped.

    Args:
        directory: of the run; the caller holds its RunLock, so a socket that is there is a dead one's.
        control: the engine's inbox.
        failure: gives why the run cannot be recorded just now, so that a viewer would wait in vain; None where it can.

    Raises:
        ControlError: no socket can be made there.
    """

    def __init__(self, directory: Path, control: RequestQueue, failure: Callable[[], str | None]) -> None:
        self.path = directory / SOCKET_NAME
        self._failure = failure
        self._control = control
        try:
            with ExitStack() as opened:
                self._listener = opened.enter_context(_listen(self.path))
                self._socket_stat = self.path.stat()
                self._selector = opened.enter_context(selectors.DefaultSelector())
                self._awake, self._waker = map(opened.enter_context, socket.socketpair())
                for end in (self._listener, self._awake):
                    end.setblocking(False)
                    self._selector.register(end, selectors.EVENT_READ)
                self._opened = opened.pop_all()
        except OSError as error:
            raise AttachError(f"{self.path}: {error.strerror}") from error
        self._viewers: dict[socket.socket, _ViewerConnection] = {}
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        self._waker.close()
        self._thread.join()

    def _serve(self) -> None:
        listening = True
        while listening:
            for key, _ in self._selector.select():
                if key.fileobj is self._awake:
                    listening = False
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.data)
        with suppress(OSError):  # the run has released its lock: the next one's socket may be there
            if os.path.samestat(self.path.stat(), self._socket_stat):
                self.path.unlink()
        for viewer in self._viewers:
            viewer.close()
        self._opened.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone already; or this process has no descriptor left for it, and it waits
            time.sleep(ACCEPT_RETRY_S)
            return
        connection.setblocking(False)
        viewer = _ViewerConnection(connection)
        self._viewers[connection] = viewer
        self._selector.register(connection, selectors.EVENT_READ, viewer)
        if viewer.is_other_user:
            self._refuse(viewer, "only its owner may control a run")
        elif len(self._viewers) > MAX_VIEWERS:
            self._refuse(viewer, f"{MAX_VIEWERS} viewers are attached already, and no more are taken")

    def _read(self, viewer: _ViewerConnection) -> None:
        """Take in what a viewer says."""
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
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._refuse(viewer, f"that is no message of the control protocol: {error}")
            else:
                self._handle_message(viewer, message)

    def _next_message(self, viewer: _ViewerConnection) -> bytes | None:
        """The next whole message, without its length; None where it has not come yet, or is too long."""
        received = viewer.received
        length = int.from_bytes(received[:LENGTH_PREFIX_BYTES], "big")
        if len(received) < LENGTH_PREFIX_BYTES or (
            length <= MAX_MESSAGE_BYTES and len(received) < LENGTH_PREFIX_BYTES + length
        ):
            return None
        if length > MAX_MESSAGE_BYTES:
            self._refuse(viewer, f"a message of {length} bytes is too long: {MAX_MESSAGE_BYTES} are the most")
            return None
        content = bytes(received[LENGTH_PREFIX_BYTES : LENGTH_PREFIX_BYTES + length])
        del received[: LENGTH_PREFIX_BYTES + length]
        return content

    def _handle_message(self, viewer: _ViewerConnection, message: ViewerMessage) -> None:
        match message:
            case Hello() if message.version != PROTOCOL_VERSION:
                self._refuse(
                    viewer,
                    f"the run speaks version {PROTOCOL_VERSION} of the control protocol, and the viewer version "
                    f"{message.version}: attach with the esper-sanctum that the run was started with",
                )
            case Hello():
                viewer.set_origin(message)
                self._send(viewer, Welcome(viewer.origin, self._failure()))
            case Ask() if not viewer.origin:
                self._refuse(viewer, "a viewer says Hello before it asks")
            case Ask():
                self._send(viewer, self._enqueue_request(message, viewer.origin))

    def _enqueue_request(self, ask: Ask, origin: str) -> Acknowledged | Refused:
        try:
            kind = RequestKind(ask.kind)
        except ValueError:
            return Refused(f"{ask.kind!r} cannot be asked of a run")
        if kind is RequestKind.RESTORE and ask.path is None:
            return Refused("restore needs the directory of a checkpoint")
        self._control.put(kind, origin, ask.path)
        return Acknowledged(self._failure())

    def _refuse(self, viewer: _ViewerConnection, reason: str) -> None:
        """Say why, and end the connection."""
        self._send(viewer, Refused(reason))
        self._close_viewer(viewer)

    def _send(self, viewer: _ViewerConnection, message: RunMessage) -> None:
        """Answers are short: one that does not fit means that many before it were not read."""
        content = frame(message)
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
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        """What is not answered yet: less than two messages."""
        self.origin = ""
        """What events call it; empty until it has said Hello."""
        self._pid: int | None = None
        self.is_other_user = False
        """Whether it is another user's."""
        if hasattr(socket, "SO_PEERCRED"):
            content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            self._pid, user, _ = _UCRED.unpack(content)
            self.is_other_user = user != os.geteuid()

    def set_origin(self, hello: Hello) -> None:
        """Learn its name; its number is better known to the system."""
        name = "".join(letter for letter in hello.who[:MAX_NAME_CHARS] if letter.isprintable())
        self.origin = f"attach {name} {self._pid or hello.pid}"


def _listen(path: Path) -> socket.socket:
    """A socket that listens at a path, open to its owner only from the first moment on.

    Raises ControlError where the system has none, or OSError.
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
