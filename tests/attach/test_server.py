"""The run's end of the socket: who is let in, what is taken, and what no viewer can do to it."""

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
    frame,
)
from esper.attach.server import MAX_VIEWERS, AttachServer
from esper.control import Request, RequestKind, RequestQueue
from tests.attach.viewers import HELLO, NO_TEXT, Viewer, asked, framed, wait_until, well

ORIGIN = f"attach ann@box {os.getpid()}"
PAUSE = Ask("pause")


@pytest.fixture
def control() -> RequestQueue:
    return RequestQueue()


@pytest.fixture
def server(tmp_path: Path, control: RequestQueue) -> Iterator[AttachServer]:
    with closing(AttachServer(tmp_path, control, well)) as listening:
        yield listening


def assert_serves(folder: Path, control: RequestQueue) -> None:
    """A viewer that does everything right gets what it wants."""
    asked(control)
    viewer = Viewer(folder)
    assert viewer.say(HELLO) == Welcome(ORIGIN)
    assert viewer.say(PAUSE) == Acknowledged()
    assert asked(control) == [Request(RequestKind.PAUSE, ORIGIN)]


def test_acknowledged_request_is_in_the_inbox(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    viewer = Viewer(tmp_path)
    assert viewer.say(HELLO) == Welcome(ORIGIN)
    assert asked(control) == []
    for kind in RequestKind:
        assert viewer.say(Ask(kind.value, "checkpoints/x")) == Acknowledged()
        assert asked(control) == [Request(kind, ORIGIN, "checkpoints/x")]


def test_messages_may_arrive_in_any_pieces(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    viewer = Viewer(tmp_path)
    for byte in frame(HELLO) + frame(PAUSE):
        viewer.send(bytes([byte]))
    assert [viewer.hear(), viewer.hear()] == [Welcome(ORIGIN), Acknowledged()]
    viewer.send(frame(Ask("resume")) + frame(Ask("step")))
    assert [viewer.hear(), viewer.hear()] == [Acknowledged()] * 2
    assert [request.kind for request in asked(control)] == [RequestKind.PAUSE, RequestKind.RESUME, RequestKind.STEP]


def packed(value: object) -> bytes:
    return framed(msgspec.msgpack.encode(value))


WRONG = {
    "noise": (b"\x00\x00\x00\x05noise", "that is no message of the control protocol: "),
    "empty": (b"\x00\x00\x00\x00", "that is no message of the control protocol: "),
    "what is no text": (framed(NO_TEXT), "that is no message of the control protocol: "),
    "no end": (framed(b"\x91" * 5000), "that is no message of the control protocol: "),
    "an unknown message": (packed({"type": "Obey"}), "that is no message of the control protocol: "),
    "a field of another type": (packed({"type": "Ask", "kind": 3}), "that is no message of the control protocol: "),
    "too long": (
        (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"),
        f"a message of {MAX_MESSAGE_BYTES + 1} bytes is too long: {MAX_MESSAGE_BYTES} are the most",
    ),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", "a message of 1195725856 bytes is too long"),
    "no Hello": (frame(PAUSE), "a viewer says Hello before it asks"),
    "a later version": (
        packed({"type": "Hello", "version": PROTOCOL_VERSION + 1, "who": "ann", "pid": 1, "colour": "red"}),
        f"the run speaks version {PROTOCOL_VERSION} of the control protocol, and the viewer version "
        f"{PROTOCOL_VERSION + 1}: ",
    ),
}


@pytest.mark.parametrize(("content", "reason"), WRONG.values(), ids=WRONG)
def test_invalid_message_is_refused_with_a_reason(
    content: bytes, reason: str, tmp_path: Path, server: AttachServer, control: RequestQueue
) -> None:
    viewer = Viewer(tmp_path)
    viewer.send(content)
    refused = viewer.hear()
    assert isinstance(refused, Refused)
    assert refused.reason.startswith(reason)
    assert viewer.ended
    assert asked(control) == []
    assert_serves(tmp_path, control)


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (Ask("fly"), "'fly' cannot be asked of a run"),
        (Ask("restore"), "restore needs the directory of a checkpoint"),
    ],
)
def test_invalid_request_is_refused_and_next_is_accepted(
    ask: Ask, reason: str, tmp_path: Path, server: AttachServer, control: RequestQueue
) -> None:
    viewer = Viewer(tmp_path)
    viewer.say(HELLO)
    assert viewer.say(ask) == Refused(reason)
    assert viewer.say(PAUSE) == Acknowledged()
    assert [request.kind for request in asked(control)] == [RequestKind.PAUSE]


def test_viewer_name_cannot_break_a_log_line(tmp_path: Path, server: AttachServer) -> None:
    welcome = Viewer(tmp_path).say(Hello(PROTOCOL_VERSION, "ann\x1b[31m\n" + "x" * 1000, 1))
    assert isinstance(welcome, Welcome)
    assert welcome.origin.isprintable()
    assert len(welcome.origin) < 120


def test_viewer_pid_comes_from_the_system(tmp_path: Path, server: AttachServer) -> None:
    assert Viewer(tmp_path).say(Hello(PROTOCOL_VERSION, "ann@box", 1)) == Welcome(ORIGIN)


def test_run_accepts_only_viewers_of_its_owner(
    tmp_path: Path, server: AttachServer, control: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        viewer = Viewer(tmp_path)
        assert viewer.hear() == Refused("only its owner may control a run")
        assert viewer.ended
    assert_serves(tmp_path, control)


def test_viewers_above_the_limit_are_refused(tmp_path: Path, server: AttachServer) -> None:
    viewers = [Viewer(tmp_path) for _ in range(MAX_VIEWERS)]
    assert all(isinstance(viewer.say(HELLO), Welcome) for viewer in viewers)
    refused = Viewer(tmp_path).hear()
    assert isinstance(refused, Refused)
    assert f"{MAX_VIEWERS} viewers are attached already" in refused.reason
    viewers.pop().connection.close()
    wait_until(lambda: isinstance(Viewer(tmp_path).say(HELLO), Welcome))


def test_viewer_that_does_not_read_is_dropped(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    deaf = Viewer(tmp_path)
    deaf.send(frame(HELLO))
    with pytest.raises(ConnectionError):
        deaf.send(frame(PAUSE) * 100_000)
    assert_serves(tmp_path, control)


LINGER = """
import sys, time
from pathlib import Path
from tests.attach.viewers import HELLO, Viewer
viewer = Viewer(Path(sys.argv[1]))
viewer.say(HELLO)
viewer.send(b"\\x00\\x00")
print("attached", flush=True)
time.sleep(1000)
"""


def test_killed_viewer_does_not_affect_others(tmp_path: Path, server: AttachServer, control: RequestQueue) -> None:
    """In the middle of its message; and one that is stopped holds nobody up."""
    left = Viewer(tmp_path)
    left.say(HELLO)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        process = subprocess.Popen([sys.executable, "-c", LINGER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "attached\n"
        process.send_signal(number)
        assert left.say(PAUSE) == Acknowledged()
        process.kill()
        process.communicate()
        assert left.say(PAUSE) == Acknowledged()
    assert [request.origin for request in asked(control)] == [ORIGIN] * 4
    assert_serves(tmp_path, control)


# The socket itself


def test_socket_is_removed_when_the_run_ends(tmp_path: Path, control: RequestQueue) -> None:
    server = AttachServer(tmp_path, control, well)
    viewer = Viewer(tmp_path)
    viewer.say(HELLO)
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
    with closing(AttachServer(tmp_path, control, well)):
        assert_serves(tmp_path, control)
        assert [path.name for path in tmp_path.iterdir()] == [SOCKET_NAME]


def test_socket_path_may_exceed_the_address_limit(tmp_path: Path, control: RequestQueue) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    files = len(os.listdir("/proc/self/fd"))
    server = AttachServer(deep, control, well)
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
        AttachServer(deep, control, well)


def test_server_without_unix_sockets_gives_the_reason(
    tmp_path: Path, control: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(AttachError, match="this system has no Unix sockets"):
        AttachServer(tmp_path, control, well)


def test_directory_without_socket_support_gives_the_reason(tmp_path: Path, control: RequestQueue) -> None:
    with pytest.raises(AttachError, match=r"gone/control.sock: No such file or directory"):
        AttachServer(tmp_path / "gone", control, well)


def test_closing_keeps_the_socket_of_the_next_run(tmp_path: Path, control: RequestQueue) -> None:
    """A run releases its lock before its server ends."""
    server = AttachServer(tmp_path, control, well)
    with closing(AttachServer(tmp_path, control, well)):
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
        AttachServer(tmp_path, control, well)
    assert len(os.listdir("/proc/self/fd")) == files


def test_server_waits_for_a_free_descriptor(
    tmp_path: Path, server: AttachServer, control: RequestQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer that cannot be taken in now is taken in later."""
    breaths: list[float] = []
    refusals = iter([True, True])
    accept = socket.socket.accept

    def scarce(listener: socket.socket) -> tuple[socket.socket, object]:
        if next(refusals, False):
            raise OSError(24, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", scarce)
    monkeypatch.setattr(server_module.time, "sleep", breaths.append)
    assert_serves(tmp_path, control)
    assert breaths == [server_module.ACCEPT_RETRY_S] * 2
