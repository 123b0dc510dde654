"""Viewer side of the socket: a thread sends the requests, so that the screen never waits for the run."""

from __future__ import annotations

import getpass
import os
import socket
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

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
from esper.control import Request, RequestKind
from esper.process import NamedThread
from esper.recording.run_lock import read_holder
from esper.telemetry.codec import DECODE_ERRORS

REPLY_TIMEOUT_S = 5.0
"""Seconds to wait for a reply. A run replies at once, unless its process is suspended."""

_decode = msgspec.msgpack.Decoder(RunMessage).decode


class RemoteRequestQueue:
    """Sends requests to a run in another process; same `put` as `RequestQueue`.

    Args:
        directory: Run directory.
    """

    def __init__(self, directory: Path) -> None:
        self.origin: str | None = None
        """Origin of this viewer's requests in events; None before the run has assigned it."""
        self.unacknowledged: set[RequestKind] = set()
        """Requests that are not acknowledged yet. A consumer of `refusals` removes the refused ones."""
        self.refusals: SimpleQueue[tuple[RequestKind | None, str]] = SimpleQueue()
        """Refused requests, each with a sentence that gives the reason. None instead of a kind: every request."""
        self._directory = directory
        self._connection: socket.socket | None = None
        self._outbox: SimpleQueue[Request | None] = SimpleQueue()
        self._thread = NamedThread(target=self._main, name="remote control", daemon=True)

    def start(self) -> None:
        """Start the thread, which connects and sends the requests."""
        self._thread.start()

    def put(self, kind: RequestKind, origin: str, path: str | None = None, env: int | None = None) -> None:
        """Send a request without waiting for the reply.

        Args:
            kind: Kind of request.
            origin: Not sent: the run uses the origin that it has assigned to this viewer.
            path: Checkpoint directory, for RESTORE only.
            env: Index of an env, for EXPLAIN only.
        """
        self.unacknowledged.add(kind)
        self._outbox.put(Request(kind, origin, path, env))

    def close(self) -> None:
        """End the thread after the requests that are already queued."""
        self._outbox.put(None)

    # All methods below run in the thread.

    def _main(self) -> None:
        try:
            self._connect()
        except AttachError as error:
            self.refusals.put((None, f"This run cannot be controlled: {error}."))
        while (request := self._outbox.get()) is not None:
            kind = request.kind
            try:
                self._send_with_reconnect(Ask(kind.value, request.path, request.env))
            except AttachError as error:
                self.refusals.put((kind, f"No {kind.value}: {error}."))
            else:
                self.unacknowledged.discard(kind)
        self._disconnect()

    def _send_with_reconnect(self, ask: Ask) -> None:
        """Send a request over the open connection, or over a new one if there is none or the run has closed it.

        Raises:
            AttachError: The run cannot be reached, does not reply, or refuses the request.
        """
        reply: RunMessage | None = None
        if self._connection is not None:
            try:
                reply = self._exchange(self._connection, ask)
            except (ConnectionError, EOFError):  # not received: a run reads everything before it closes a connection
                self._disconnect()
        if reply is None:
            reply = self._exchange_or_fail(self._connect(), ask)
        if isinstance(reply, Refused):
            raise AttachError(f"refused by the run: {reply.reason}")
        if not isinstance(reply, Acknowledged):
            raise AttachError(f"unexpected reply from the run: {reply}")
        self._queue_recording_warning(reply.failure)

    def _connect(self) -> socket.socket:
        """Connect to the run and exchange greetings. Raises AttachError."""
        connection = create_socket()
        connection.settimeout(REPLY_TIMEOUT_S)
        try:
            with socket_address(self._directory / SOCKET_NAME) as name:
                connection.connect(name)
        except OSError as error:
            connection.close()
            raise AttachError(self._connect_error(error)) from error
        self._connection = connection
        reply = self._exchange_or_fail(connection, Hello(PROTOCOL_VERSION, _viewer_name(), os.getpid()))
        if isinstance(reply, Refused):
            self._disconnect()
            raise AttachError(f"refused by the run: {reply.reason}")
        if not isinstance(reply, Welcome):
            self._disconnect()
            raise AttachError(f"unexpected reply from the run: {reply}")
        self.origin = reply.origin
        self._queue_recording_warning(reply.failure)
        return connection

    def _queue_recording_warning(self, failure: str | None) -> None:
        """Report that the run cannot record events, so that the screen shows an old state."""
        if failure:
            self.refusals.put((None, f"The run is held, and no new events appear until it can record: {failure}."))

    def _exchange_or_fail(self, connection: socket.socket, message: ViewerMessage) -> RunMessage:
        """Send a message and wait for the reply, as `_exchange`. A closed connection raises AttachError too."""
        try:
            return self._exchange(connection, message)
        except (ConnectionError, EOFError):
            self._disconnect()
            raise AttachError("the run has closed the connection") from None

    def _exchange(self, connection: socket.socket, message: ViewerMessage) -> RunMessage:
        """Send a message and wait for the reply.

        Raises:
            AttachError: No reply arrives in time, or the reply cannot be decoded.
            ConnectionError: The connection was reset.
            EOFError: The connection was closed.
        """
        try:
            with suppress(BrokenPipeError):  # a run that refuses a viewer sends the reason, then closes without reading
                connection.sendall(encode_message(message))
            length = int.from_bytes(_receive_exactly(connection, LENGTH_PREFIX_BYTES), "big")
            return _decode(_receive_exactly(connection, min(length, MAX_MESSAGE_BYTES)))
        except TimeoutError:
            self._disconnect()
            raise AttachError(
                f"no reply from the run for {REPLY_TIMEOUT_S:g} s; it may still carry out the request"
            ) from None
        except DECODE_ERRORS as error:
            self._disconnect()
            raise AttachError(f"unexpected reply from the run: {error}") from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect_error(self, error: OSError) -> str:
        holder = read_holder(self._directory)
        if holder and holder.host != socket.gethostname():
            return f"the run is on {holder.host}; attach on that machine to control it"
        path = self._directory / SOCKET_NAME
        return f"the run does not listen at {path} ({error.strerror}); see the log of the run for the reason"


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes. Raises EOFError if the connection is closed before."""
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise EOFError
        content += part
    return content


def _viewer_name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # some containers run as a user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
