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
    LENGTH,
    LONGEST,
    SOCKET,
    VERSION,
    Acknowledged,
    Ask,
    ControlError,
    Hello,
    Refused,
    ToRun,
    ToViewer,
    Welcome,
    address,
    frame,
    unix_socket,
)
from esper.control import Kind
from esper.recording.run_lock import read_holder

PATIENCE = 5.0
"""Seconds in which a run answers: it does at once, unless it is stopped by a signal."""

_decode = msgspec.msgpack.Decoder(ToViewer).decode


class RemoteControl:
    """Asks a run in another process, with the face of a Control.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.origin: str | None = None
        """What the events call this viewer; None until the run has said so."""
        self.unheard: set[Kind] = set()
        """What was asked and is not acknowledged; who takes a refusal takes it out."""
        self.refusals: SimpleQueue[tuple[Kind | None, str]] = SimpleQueue()
        """What could not be asked, and why: sentences for people. None: it concerns all that may be asked."""
        self._directory = directory
        self._connection: socket.socket | None = None
        self._outbox: SimpleQueue[tuple[Kind, str | None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="remote control", daemon=True)

    def start(self) -> None:
        """Connect, and carry what is asked."""
        self._thread.start()

    def ask(self, kind: Kind, origin: str, path: str | None = None) -> None:  # noqa: ARG002 (the run knows who we are)
        """Send a request, without waiting for its answer."""
        self.unheard.add(kind)
        self._outbox.put((kind, path))

    def close(self) -> None:
        """Ask nothing more."""
        self._outbox.put(None)

    # What follows runs in the thread.

    def _main(self) -> None:
        try:
            self._connect()
        except ControlError as error:
            self.refusals.put((None, f"This run cannot be controlled: {error}."))
        while (request := self._outbox.get()) is not None:
            kind, path = request
            try:
                self._ask_once_more(Ask(kind.value, path))
            except ControlError as error:
                self.refusals.put((kind, f"No {kind.value}: {error}."))
            else:
                self.unheard.discard(kind)
        self._disconnect()

    def _ask_once_more(self, ask: Ask) -> None:
        """Over the connection that there is, if it still holds; else over a new one. Raises ControlError."""
        answer: ToViewer | None = None
        if self._connection is not None:
            try:
                answer = self._exchange(self._connection, ask)
            except (ConnectionError, EOFError):  # not sent, then: a run that closes a connection has read all of it
                self._disconnect()
        if answer is None:
            answer = self._insist(self._connect(), ask)
        if isinstance(answer, Refused):
            raise ControlError(f"the run refuses: {answer.reason}")
        if not isinstance(answer, Acknowledged):
            raise ControlError(f"the run gave an answer that makes no sense: {answer}")
        self._warn(answer.failure)

    def _connect(self) -> socket.socket:
        """Raises ControlError, with the reason."""
        connection = unix_socket()
        connection.settimeout(PATIENCE)
        try:
            with address(self._directory / SOCKET) as name:
                connection.connect(name)
        except OSError as error:
            connection.close()
            raise ControlError(self._unreachable(error)) from error
        self._connection = connection
        answer = self._insist(connection, Hello(VERSION, _name(), os.getpid()))
        if not isinstance(answer, Welcome):
            self._disconnect()
            reason = answer.reason if isinstance(answer, Refused) else f"it answers {answer}"
            raise ControlError(f"the run refuses: {reason}")
        self.origin = answer.origin
        self._warn(answer.failure)
        return connection

    def _warn(self, failure: str | None) -> None:
        """That what is shown is old, if it is."""
        if failure:
            self.refusals.put((None, f"The run holds, and shows nothing new until it can be recorded: {failure}."))

    def _insist(self, connection: socket.socket, message: ToRun) -> ToViewer:
        """Raises ControlError where no answer comes."""
        try:
            return self._exchange(connection, message)
        except (ConnectionError, EOFError):
            self._disconnect()
            raise ControlError("the run has closed the connection") from None

    def _exchange(self, connection: socket.socket, message: ToRun) -> ToViewer:
        """Send a message and wait for its answer.

        Raises ControlError if none comes in time, or none that can be read; ConnectionError or EOFError if the
        connection ends.
        """
        try:
            with suppress(BrokenPipeError):  # a run that refuses a viewer ends it unheard, and has said why
                connection.sendall(frame(message))
            length = int.from_bytes(_receive(connection, LENGTH), "big")
            return _decode(_receive(connection, min(length, LONGEST)))
        except TimeoutError:
            self._disconnect()
            raise ControlError(
                f"the run has not answered for {PATIENCE:g} s; it may still do what it was asked"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._disconnect()
            raise ControlError(f"the run gave an answer that makes no sense: {error}") from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _unreachable(self, error: OSError) -> str:
        holder = read_holder(self._directory)
        if holder and holder.host != socket.gethostname():
            return f"the run is on {holder.host}: attach there to control it"
        return f"the run does not listen at {self._directory / SOCKET} ({error.strerror}); its log says why"


def _receive(connection: socket.socket, size: int) -> bytes:
    """So many bytes. Raises EOFError if the connection ends before."""
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise EOFError
        content += part
    return content


def _name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
