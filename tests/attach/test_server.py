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
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from esper.attach import server as server_module
from esper.attach.protocol import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    SOCKET_NAME,
    Acknowledged,
    Ask,
    AttachError,
    Hello,
    Refused,
    Welcome,
    encode_message,
)
from esper.attach.server import MAX_VIEWERS, AttachServer
from esper.control import Request, RequestKind, RequestQueue
from tests.attach.viewers import (
    HELLO,
    INVALID_UTF8,
    Viewer,
    drain_requests,
    no_recording_error,
    wait_until,
    with_length,
)

ORIGIN = f"attach ann@box {os.getpid()}"
PAUSE = Ask("pause")


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
    viewer = Viewer(folder)
    assert viewer.exchange(HELLO) == Welcome(ORIGIN)
    assert viewer.exchange(PAUSE) == Acknowledged()
    assert drain_requests(control) == [Request(RequestKind.PAUSE, ORIGIN)]


def test_acknowledged_request_is_in_the_inbox(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    viewer = Viewer(tmp_path)
    assert viewer.exchange(HELLO) == Welcome(ORIGIN)
    assert drain_requests(control) == []
    for kind in RequestKind:
        assert viewer.exchange(Ask(kind.value, "checkpoints/x", 3)) == Acknowledged()
        assert drain_requests(control) == [Request(kind, ORIGIN, "checkpoints/x", 3)]


def test_messages_may_arrive_in_any_pieces(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    viewer = Viewer(tmp_path)
    for byte in encode_message(HELLO) + encode_message(PAUSE):
        viewer.send(bytes([byte]))
    assert [viewer.receive(), viewer.receive()] == [Welcome(ORIGIN), Acknowledged()]
    viewer.send(encode_message(Ask("resume")) + encode_message(Ask("step")))
    assert [viewer.receive(), viewer.receive()] == [Acknowledged()] * 2
    assert [request.kind for request in drain_requests(control)] == [
        RequestKind.PAUSE,
        RequestKind.RESUME,
        RequestKind.STEP,
    ]


def packed(value: object) -> bytes:
    return with_length(msgspec.msgpack.encode(value))


WRONG = {
    "noise": (b"\x00\x00\x00\x05noise", "not a message of the control protocol: "),
    "empty": (b"\x00\x00\x00\x00", "not a message of the control protocol: "),
    "invalid UTF-8": (with_length(INVALID_UTF8), "not a message of the control protocol: "),
    "no end": (with_length(b"\x91" * 5000), "not a message of the control protocol: "),
    "an unknown message": (packed({"type": "Obey"}), "not a message of the control protocol: "),
    "a field of another type": (packed({"type": "Ask", "kind": 3}), "not a message of the control protocol: "),
    "too long": (
        (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"),
        f"a message of {MAX_MESSAGE_BYTES + 1} bytes is too long; the limit is {MAX_MESSAGE_BYTES}",
    ),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "a message of 1195725856 bytes is too long"),
    "no Hello": (encode_message(PAUSE), "expected Hello before Ask"),
    "a later version": (
        packed({"type": "Hello", "version": PROTOCOL_VERSION + 1, "who": "ann", "pid": 1, "colour": "red"}),
        f"the run uses version {PROTOCOL_VERSION} of the control protocol, the viewer version {PROTOCOL_VERSION + 1}; ",
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
    assert viewer.ended
    assert drain_requests(control) == []
    assert_serves(tmp_path, control)


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (Ask("fly"), "unknown request 'fly'"),
        (Ask("restore"), "restore needs the directory of a checkpoint"),
        (Ask("explain"), "explain needs the index of an env"),
    ],
)
def test_invalid_request_is_refused_and_next_is_accepted(
    ask: Ask, reason: str, tmp_path: Path, server: AttachServer, control: RequestQueue
) -> None:
    viewer = Viewer(tmp_path)
    viewer.exchange(HELLO)
    assert viewer.exchange(ask) == Refused(reason)
    assert viewer.exchange(PAUSE) == Acknowledged()
    assert [request.kind for request in drain_requests(control)] == [RequestKind.PAUSE]


def test_viewer_name_cannot_break_a_log_line(tmp_path: Path, server: AttachServer) -> None:
    welcome = Viewer(tmp_path).exchange(Hello(PROTOCOL_VERSION, "ann\x1b[31m\n" + "x" * 1000, 1))
    assert isinstance(welcome, Welcome)
    assert welcome.origin.isprintable()
    assert len(welcome.origin) < 120


def test_viewer_pid_comes_from_the_system(tmp_path: Path, server: AttachServer) -> None:
    assert Viewer(tmp_path).exchange(Hello(PROTOCOL_VERSION, "ann@box", 1)) == Welcome(ORIGIN)


def test_run_accepts_only_viewers_of_its_owner(
    tmp_path: Path, server: AttachServer, control: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        viewer = Viewer(tmp_path)
        assert viewer.receive() == Refused("only the owner of a run can control it")
        assert viewer.ended
    assert_serves(tmp_path, control)


def test_viewers_above_the_limit_are_refused(tmp_path: Path, server: AttachServer) -> None:
    viewers = [Viewer(tmp_path) for _ in range(MAX_VIEWERS)]
    assert all(isinstance(viewer.exchange(HELLO), Welcome) for viewer in viewers)
    refused = Viewer(tmp_path).receive()
    assert isinstance(refused, Refused)
    assert f"{MAX_VIEWERS} viewers are attached already" in refused.reason
    viewers.pop().connection.close()
    wait_until(lambda: isinstance(Viewer(tmp_path).exchange(HELLO), Welcome))


def test_viewer_that_does_not_read_is_dropped(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    unreading = Viewer(tmp_path)
    unreading.send(encode_message(HELLO))
    with pytest.raises(ConnectionError):
        unreading.send(encode_message(PAUSE) * 100_000)
    assert_serves(tmp_path, control)


LINGER = """
import sys, time
from pathlib import Path
from tests.attach.viewers import HELLO, Viewer
viewer = Viewer(Path(sys.argv[1]))
viewer.exchange(HELLO)
viewer.send(b"\\x00\\x00")
print("attached", flush=True)
time.sleep(1000)
"""


def test_killed_viewer_does_not_affect_others(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    """A viewer that is killed or suspended in the middle of a message does not delay the others."""
    left = Viewer(tmp_path)
    left.exchange(HELLO)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        process = subprocess.Popen([sys.executable, "-c", LINGER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "attached\n"
        process.send_signal(number)
        assert left.exchange(PAUSE) == Acknowledged()
        process.kill()
        process.communicate()
        assert left.exchange(PAUSE) == Acknowledged()
    assert [request.origin for request in drain_requests(control)] == [ORIGIN] * 4
    assert_serves(tmp_path, control)


# The socket itself


def test_socket_is_removed_when_the_run_ends(tmp_path: Path, control: RequestQueue) -> None:
    server = AttachServer(tmp_path, control, no_recording_error)
    viewer = Viewer(tmp_path)
    viewer.exchange(HELLO)
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


def test_server_without_unix_sockets_gives_the_reason(
    tmp_path: Path, control: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(AttachError, match="this system has no Unix sockets"):
        AttachServer(tmp_path, control, no_recording_error)


def test_directory_without_socket_support_gives_the_reason(tmp_path: Path, control: RequestQueue) -> None:
    with pytest.raises(AttachError, match=r"gone/control.sock: No such file or directory"):
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
