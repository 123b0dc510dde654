"""The viewer's end of the socket: a thread that carries requests to the run, so that no screen waits for it."""

from __future__ import annotations

import getpass
import os
import socket
import threading
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
    frame,
    socket_address,
)
from esper.control import RequestKind
from esper.recording.run_lock import read_holder

REPLY_TIMEOUT_S = 5.0
"""Seconds in which a run answers: it does at once, unless it is stopped by a signal."""

_decode = msgspec.msgpack.Decoder(RunMessage).decode


class RemoteRequestQueue:
    """Asks a run in another process, with the face of a Control.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.origin: str | None = None
        """What the events call this viewer; None until the run has said so."""
        self.unacknowledged: set[RequestKind] = set()
        """What was asked and is not acknowledged; who takes a refusal takes it out."""
        self.refusals: SimpleQueue[tuple[RequestKind | None, str]] = SimpleQueue()
        """What could not be asked, and why: sentences for people. None: it concerns all that may be asked."""
        self._directory = directory
        self._connection: socket.socket | None = None
        self._outbox: SimpleQueue[tuple[RequestKind, str | None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="remote control", daemon=True)

    def start(self) -> None:
        """Connect, and carry what is asked."""
        self._thread.start()

    def put(self, kind: RequestKind, origin: str, path: str | None = None) -> None:  # noqa: ARG002 (the run knows who we are)
        """Send a request, without waiting for its answer."""
        self.unacknowledged.add(kind)
        self._outbox.put((kind, path))

    def close(self) -> None:
        """Ask nothing more."""
        self._outbox.put(None)

    # What follows runs in the thread.

    def _main(self) -> None:
        try:
            self._connect()
        except AttachError as error:
            self.refusals.put((None, f"This run cannot be controlled: {error}."))
        while (request := self._outbox.get()) is not None:
            kind, path = request
            try:
                self._send_with_reconnect(Ask(kind.value, path))
            except AttachError as error:
                self.refusals.put((kind, f"No {kind.value}: {error}."))
            else:
                self.unacknowledged.discard(kind)
        self._disconnect()

    def _send_with_reconnect(self, ask: Ask) -> None:
        """Over the connection that there is, if it still holds; else over a new one. Raises ControlError."""
        answer: RunMessage | None = None
        if self._connection is not None:
            try:
                answer = self._exchange(self._connection, ask)
            except (ConnectionError, EOFError):  # not sent, then: a run that closes a connection has read all of it
                self._disconnect()
        if answer is None:
            answer = self._exchange_or_fail(self._connect(), ask)
        if isinstance(answer, Refused):
            raise AttachError(f"the run refuses: {answer.reason}")
        if not isinstance(answer, Acknowledged):
            raise AttachError(f"the run gave an answer that makes no sense: {answer}")
        self._queue_recording_warning(answer.failure)

    def _connect(self) -> socket.socket:
        """Raises ControlError, with the reason."""
        connection = create_socket()
        connection.settimeout(REPLY_TIMEOUT_S)
        try:
            with socket_address(self._directory / SOCKET_NAME) as name:
                connection.connect(name)
        except OSError as error:
            connection.close()
            raise AttachError(self._connect_error(error)) from error
        self._connection = connection
        answer = self._exchange_or_fail(connection, Hello(PROTOCOL_VERSION, _viewer_name(), os.getpid()))
        if not isinstance(answer, Welcome):
            self._disconnect()
            reason = answer.reason if isinstance(answer, Refused) else f"it answers {answer}"
            raise AttachError(f"the run refuses: {reason}")
        self.origin = answer.origin
        self._queue_recording_warning(answer.failure)
        return connection

    def _queue_recording_warning(self, failure: str | None) -> None:
        """That what is shown is old, if it is."""
        if failure:
            self.refusals.put((None, f"The run holds, and shows nothing new until it can be recorded: {failure}."))

    def _exchange_or_fail(self, connection: socket.socket, message: ViewerMessage) -> RunMessage:
        """Raises ControlError where no answer comes."""
        try:
            return self._exchange(connection, message)
        except (ConnectionError, EOFError):
            self._disconnect()
            raise AttachError("the run has closed the connection") from None

    def _exchange(self, connection: socket.socket, message: ViewerMessage) -> RunMessage:
        """Send a message and wait for its answer.

        Raises ControlError if none comes in time, or none that can be read; ConnectionError or EOFError if the
        connection ends.
        """
        try:
            with suppress(BrokenPipeError):  # a run that refuses a viewer ends it unheard, and has said why
                connection.sendall(frame(message))
            length = int.from_bytes(_receive_exactly(connection, LENGTH_PREFIX_BYTES), "big")
            return _decode(_receive_exactly(connection, min(length, MAX_MESSAGE_BYTES)))
        except TimeoutError:
            self._disconnect()
            raise AttachError(
                f"the run has not answered for {REPLY_TIMEOUT_S:g} s; it may still do what it was asked"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._disconnect()
            raise AttachError(f"the run gave an answer that makes no sense: {error}") from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect_error(self, error: OSError) -> str:
        holder = read_holder(self._directory)
        if holder and holder.host != socket.gethostname():
            return f"the run is on {holder.host}: attach there to control it"
        return f"the run does not listen at {self._directory / SOCKET_NAME} ({error.strerror}); its log says why"


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes. Raises EOFError if the connection ends before."""
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
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
