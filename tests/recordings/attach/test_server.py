"""Run side of the socket: accepted viewers and requests, and robustness against faulty viewers."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from esper.common.control import Request, RequestKind, RequestQueue
from esper.recordings.attach import server as server_module
from esper.recordings.attach.protocol import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    SOCKET_NAME,
    Acknowledged,
    Ask,
    AttachError,
    Refused,
    encode_message,
)
from esper.recordings.attach.server import MAX_CONNECTIONS, AttachServer
from tests.recordings.attach.viewers import (
    HELLO,
    Viewer,
    drain_requests,
    exchange,
    make_ask,
    no_recording_error,
    wait_until,
)

ORIGIN = f"attach ann@box {os.getpid()}"
PAUSE = make_ask(RequestKind.PAUSE)


@pytest.fixture
def control() -> RequestQueue:
    return RequestQueue()


@pytest.fixture
def server(tmp_path: Path, control: RequestQueue) -> Iterator[AttachServer]:
    with closing(AttachServer(tmp_path, control, no_recording_error)) as listening:
        yield listening


def assert_serves(folder: Path, control: RequestQueue) -> None:
    """Check that a correct viewer can send a request."""
    drain_requests(control)
    assert exchange(folder, HELLO) == Acknowledged(ORIGIN)
    assert exchange(folder, PAUSE) == Acknowledged(ORIGIN)
    assert drain_requests(control) == [Request(RequestKind.PAUSE, ORIGIN)]


def test_acknowledged_request_is_in_the_inbox(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    assert exchange(tmp_path, HELLO) == Acknowledged(ORIGIN)
    assert drain_requests(control) == []
    for kind in RequestKind:
        assert exchange(tmp_path, make_ask(kind, "checkpoints/x", 3)) == Acknowledged(ORIGIN)
        assert drain_requests(control) == [Request(kind, ORIGIN, "checkpoints/x", 3)]


def test_messages_may_arrive_in_any_pieces(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    viewers = [Viewer(tmp_path), Viewer(tmp_path)]
    for byte in encode_message(PAUSE):
        for viewer in viewers:
            viewer.send(bytes([byte]))
    assert [viewer.receive() for viewer in viewers] == [Acknowledged(ORIGIN)] * 2
    assert drain_requests(control) == [Request(RequestKind.PAUSE, ORIGIN)] * 2


def test_incomplete_message_is_not_a_request(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    viewer = Viewer(tmp_path)
    viewer.send(encode_message(PAUSE).rstrip())
    viewer.connection.shutdown(socket.SHUT_WR)
    assert viewer.ended
    assert drain_requests(control) == []


def edited(**fields: object) -> bytes:
    """Return a PAUSE message with other fields."""
    return msgspec.json.encode({**msgspec.to_builtins(PAUSE), **fields}) + b"\n"


WRONG = {
    "noise": (b"noise\n", "not a message of the control protocol: "),
    "empty": (b"\n", "not a message of the control protocol: "),
    "invalid UTF-8": (
        edited(who="ann").replace(b"ann", b"\xff"),
        "not a message of the control protocol: ",
    ),
    "nesting": (b'{"x":' + b"[" * 50_000 + b"\n", "not a message of the control protocol: "),
    "no version": (b'{"kind":"pause"}\n', "not a message of the control protocol: "),
    "a field of another type": (edited(who=3), "not a message of the control protocol: "),
    "an unknown request": (edited(kind="fly"), "not a message of the control protocol: Invalid enum value 'fly'"),
    "too long": (edited(who="x" * MAX_MESSAGE_BYTES), "a message is too long; the limit is 65536 bytes"),
    "no end": (b"x" * (MAX_MESSAGE_BYTES + 1), "a message is too long; the limit is 65536 bytes"),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "not a message of the control protocol: "),
    "a later version": (
        msgspec.json.encode({"version": PROTOCOL_VERSION + 1, "who": 7, "colour": "red"}) + b"\n",
        f"the run uses version {PROTOCOL_VERSION} of the control protocol, the viewer version {PROTOCOL_VERSION + 1}; ",
    ),
    "a restore without a checkpoint": (encode_message(make_ask(RequestKind.RESTORE)), "restore needs the directory of"),
    "an explanation without an env": (
        encode_message(make_ask(RequestKind.EXPLAIN)),
        "explain needs the index of an env",
    ),
}


@pytest.mark.parametrize(("content", "reason"), WRONG.values(), ids=WRONG)
def test_invalid_message_is_refused_with_a_reason(
    content: bytes, reason: str, tmp_path: Path, server: AttachServer, control: RequestQueue
) -> None:
    viewer = Viewer(tmp_path)
    viewer.send(content)
    refused = viewer.receive()
    assert isinstance(refused, Refused)
    assert refused.reason.startswith(reason)
    assert drain_requests(control) == []
    assert_serves(tmp_path, control)


def test_viewer_name_cannot_break_a_log_line(tmp_path: Path, server: AttachServer) -> None:
    reply = exchange(tmp_path, Ask(PROTOCOL_VERSION, "ann\x1b[31m\n" + "x" * 1000, 1))
    assert isinstance(reply, Acknowledged)
    assert reply.origin.isprintable()
    assert len(reply.origin) < 120


def test_viewer_pid_comes_from_the_system(tmp_path: Path, server: AttachServer) -> None:
    assert exchange(tmp_path, Ask(PROTOCOL_VERSION, "ann@box", 1)) == Acknowledged(ORIGIN)


def test_run_accepts_only_viewers_of_its_owner(
    tmp_path: Path, server: AttachServer, control: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert exchange(tmp_path, PAUSE) == Refused("only the owner of a run can control it")
    assert drain_requests(control) == []
    assert_serves(tmp_path, control)


def test_idle_connections_do_not_keep_others_out(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    """The run closes the oldest connection above its limit, with or without a part of a message."""
    idle = [Viewer(tmp_path) for _ in range(2 * MAX_CONNECTIONS)]
    for viewer in idle[::2]:
        with suppress(ConnectionError):  # already closed
            viewer.send(b"{")
    assert_serves(tmp_path, control)
    assert all(viewer.ended for viewer in idle[:MAX_CONNECTIONS])
    idle[-1].send(encode_message(HELLO))
    assert idle[-1].receive() == Acknowledged(ORIGIN)


def test_viewer_that_floods_the_socket_is_dropped(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    with pytest.raises(ConnectionError):
        Viewer(tmp_path).send(encode_message(PAUSE) * 100_000)
    assert_serves(tmp_path, control)


LINGER = """
import sys, time
from pathlib import Path
from tests.recordings.attach.viewers import Viewer
viewer = Viewer(Path(sys.argv[1]))
viewer.send(b"{")
print("attached", flush=True)
time.sleep(1000)
"""


def test_killed_viewer_does_not_affect_others(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    """A viewer that is killed or suspended in the middle of a message does not delay the others."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        process = subprocess.Popen([sys.executable, "-c", LINGER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "attached\n"
        process.send_signal(number)
        assert exchange(tmp_path, PAUSE) == Acknowledged(ORIGIN)
        process.kill()
        process.communicate()
        assert exchange(tmp_path, PAUSE) == Acknowledged(ORIGIN)
    assert [request.origin for request in drain_requests(control)] == [ORIGIN] * 4
    assert_serves(tmp_path, control)


# The socket itself


def test_socket_is_removed_when_the_run_ends(tmp_path: Path, control: RequestQueue) -> None:
    server = AttachServer(tmp_path, control, no_recording_error)
    viewer = Viewer(tmp_path)
    assert exchange(tmp_path, HELLO) == Acknowledged(ORIGIN)
    assert [path.name for path in tmp_path.iterdir()] == [SOCKET_NAME]
    server.close()
    assert viewer.ended
    assert list(tmp_path.iterdir()) == []


def test_socket_of_a_dead_run_is_replaced(tmp_path: Path, control: RequestQueue) -> None:
    for name in (SOCKET_NAME, f"{SOCKET_NAME}.part"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
            dead.bind(str(tmp_path / name))
    with pytest.raises(ConnectionRefusedError):
        Viewer(tmp_path)
    with closing(AttachServer(tmp_path, control, no_recording_error)):
        assert_serves(tmp_path, control)
        assert [path.name for path in tmp_path.iterdir()] == [SOCKET_NAME]


def test_socket_path_may_exceed_the_address_limit(tmp_path: Path, control: RequestQueue) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    files = len(os.listdir("/proc/self/fd"))
    server = AttachServer(deep, control, no_recording_error)
    assert stat.S_IMODE((deep / SOCKET_NAME).stat().st_mode) == 0o600
    assert_serves(deep, control)
    server.close()
    assert not (deep / SOCKET_NAME).exists()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == files)


def test_long_socket_path_without_proc_is_refused(
    tmp_path: Path, control: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(Path, "exists", lambda path: not str(path).startswith("/proc"))
    with pytest.raises(AttachError, match=r"control.sock: .* bytes long: use a shorter --telemetry-dir"):
        AttachServer(deep, control, no_recording_error)


def test_directory_without_socket_support_gives_the_reason(tmp_path: Path, control: RequestQueue) -> None:
    with pytest.raises(AttachError, match=r"control.sock: No such file or directory"):
        AttachServer(tmp_path / "gone", control, no_recording_error)


def test_closing_keeps_the_socket_of_the_next_run(tmp_path: Path, control: RequestQueue) -> None:
    """A run releases its lock before it closes its server, so the next run may already have a socket."""
    server = AttachServer(tmp_path, control, no_recording_error)
    with closing(AttachServer(tmp_path, control, no_recording_error)):
        server.close()
        assert_serves(tmp_path, control)


@pytest.mark.parametrize("call", ["socket.socket", "socket.socketpair", "selectors.DefaultSelector"])
def test_server_without_descriptors_gives_the_reason(
    call: str, tmp_path: Path, control: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    files = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(call, refuse)
    with pytest.raises(AttachError, match=r"control.sock: Too many open files"):
        AttachServer(tmp_path, control, no_recording_error)
    assert len(os.listdir("/proc/self/fd")) == files


def test_server_waits_for_a_free_descriptor(
    tmp_path: Path, server: AttachServer, control: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer that cannot be accepted now is accepted later."""
    pauses: list[float] = []
    refusals = iter([True, True])
    accept = socket.socket.accept

    def scarce(listener: socket.socket) -> tuple[socket.socket, object]:
        if next(refusals, False):
            raise OSError(24, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", scarce)
    monkeypatch.setattr(server_module.time, "sleep", pauses.append)
    assert_serves(tmp_path, control)
    assert pauses == [server_module.ACCEPT_RETRY_S] * 2
