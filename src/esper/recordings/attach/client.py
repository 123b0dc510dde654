"""Viewer side of the socket: a thread sends the requests, so that the screen never waits for the run."""

from __future__ import annotations

import getpass
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import msgspec

from esper.common.control import Request, RequestKind
from esper.common.system.process import NamedThread
from esper.recordings.attach.protocol import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    SOCKET_NAME,
    Ask,
    AttachError,
    Refused,
    Reply,
    encode_message,
    socket_address,
)
from esper.recordings.events.codec import DECODE_ERRORS
from esper.recordings.files.run_lock import is_starting, read_holder

REPLY_TIMEOUT_S = 5.0
"""Seconds to wait for a reply. A run replies at once, unless its process is suspended."""
START_POLL_S = 0.2
"""Seconds between two looks at a run that is starting: until it trains, it accepts no requests."""

_decode = msgspec.json.Decoder(Reply).decode


class RemoteRequestQueue:
    """Sends requests to a run in another process; same `put` as `RequestQueue`.

    Args:
        directory: Run directory.
    """

    def __init__(self, directory: Path) -> None:
        self.origin: str | None = None
        """Origin of this viewer's requests in events; None before the run has assigned it."""
        self.unacknowledged: set[RequestKind] = set()
        """Requests that are not acknowledged yet. A refused one remains until `pop_refusals` returns it."""
        self.refusals: SimpleQueue[tuple[RequestKind | None, str]] = SimpleQueue()
        """Refused requests, each with a sentence that gives the reason. None instead of a kind: every request."""
        self._directory = directory
        self._is_closed = False
        self._outbox: SimpleQueue[Request | None] = SimpleQueue()
        self._thread = NamedThread(target=self._main, name="remote control", daemon=True)

    def start(self) -> None:
        """Start the thread, which introduces this viewer to the run and sends the requests."""
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

    def pop_refusals(self) -> list[tuple[RequestKind | None, str]]:
        """Return the refused requests since the last call, as in `refusals`. They no longer wait for the run."""
        refused: list[tuple[RequestKind | None, str]] = []
        while not self.refusals.empty():
            refused.append(self.refusals.get())
        self.unacknowledged -= {kind for kind, _ in refused if kind is not None}
        return refused

    def close(self) -> None:
        """End the thread after the requests that are already queued, unless the run is still starting."""
        self._is_closed = True
        self._outbox.put(None)

    # All methods below run in the thread.

    def _main(self) -> None:
        try:
            self._send()
        except AttachError as error:
            self.refusals.put((None, f"This run cannot be controlled: {error}."))
        while (request := self._outbox.get()) is not None:
            kind = request.kind
            try:
                self._send(kind, request.path, request.env)
            except AttachError as error:
                self.refusals.put((kind, f"No {kind.value}: {error}."))
            else:
                self.unacknowledged.discard(kind)

    def _send(self, kind: RequestKind | None = None, path: str | None = None, env: int | None = None) -> None:
        """Send a request, or without a kind only introduce this viewer.

        Raises:
            AttachError: The run cannot be reached, does not reply, or refuses the request.
        """
        with suppress(OSError):  # the connection reports it
            while is_starting(self._directory) and not self._is_closed:
                time.sleep(START_POLL_S)
        reply = self._exchange(Ask(PROTOCOL_VERSION, _viewer_name(), os.getpid(), kind, path, env))
        if isinstance(reply, Refused):
            raise AttachError(f"refused by the run: {reply.reason}")
        self.origin = reply.origin
        if reply.failure:  # the screen shows an old state
            reason = f"The run is held, and no new events appear until it can record: {reply.failure}."
            self.refusals.put((None, reason))

    def _exchange(self, ask: Ask) -> Reply:
        """Connect to the run, send a message and return the reply. Raises AttachError."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(REPLY_TIMEOUT_S)
            try:
                with socket_address(self._directory / SOCKET_NAME) as name:
                    connection.connect(name)
            except OSError as error:
                raise AttachError(self._connect_error(error)) from error
            try:
                connection.sendall(encode_message(ask))
                with connection.makefile("rb") as lines:
                    line = lines.readline(MAX_MESSAGE_BYTES)
            except TimeoutError:
                raise AttachError(
                    f"no reply from the run for {REPLY_TIMEOUT_S:g} s; it may still carry out the request"
                ) from None
            except ConnectionError:
                line = b""
        if not line:
            raise AttachError("the run has closed the connection")
        try:
            return _decode(line)
        except DECODE_ERRORS as error:
            raise AttachError(f"unexpected reply from the run: {error}") from error

    def _connect_error(self, error: OSError) -> str:
        holder = read_holder(self._directory)
        if holder and holder.host != socket.gethostname():
            return f"the run is on {holder.host}; attach on that machine to control it"
        path = self._directory / SOCKET_NAME
        return f"the run does not listen at {path} ({error.strerror}); see the log of the run for the reason"


def _viewer_name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # some containers run as a user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
