"""Viewer side of the socket: requests arrive, refusals are reported, and callers never wait."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from esper.common.control import RequestKind, RequestQueue
from esper.recordings.attach import client
from esper.recordings.attach.client import RemoteRequestQueue
from esper.recordings.attach.protocol import SOCKET_NAME, Acknowledged, Refused, encode_message
from esper.recordings.attach.server import AttachServer
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import LOCK_FILE, LockHolder, RunLock
from tests.recordings.attach.viewers import HELLO, TIMEOUT_S, drain_requests, no_recording_error, wait_until


def connected(folder: Path) -> RemoteRequestQueue:
    remote = RemoteRequestQueue(folder)
    remote.start()
    return remote


def refusal(remote: RemoteRequestQueue) -> tuple[RequestKind | None, str]:
    kind, sentence = remote.refusals.get(timeout=TIMEOUT_S)
    beginning = f"No {kind.value}: " if kind else "This run cannot be controlled: "
    assert sentence.startswith(beginning)
    assert sentence.endswith(".")
    return kind, sentence[len(beginning) : -1]


@pytest.fixture
def control() -> RequestQueue:
    return RequestQueue()


def stub(folder: Path, *answers: bytes) -> Callable[[], None]:
    """Start a run that sends one of the given replies per connection, then none; return a function that closes it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / SOCKET_NAME))
    listener.listen()

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            if connection.recv(1 << 16):
                connection.sendall(answer)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return listener.close


def test_request_waits_while_the_run_is_starting(tmp_path: Path, control: RequestQueue) -> None:
    """A resumed run is locked for seconds before it listens."""
    lock = RunLock(RunDirectory(tmp_path))
    remote = connected(tmp_path)
    remote.put(RequestKind.PAUSE, "keyboard")
    with pytest.raises(queue.Empty):
        remote.refusals.get(timeout=3 * client.START_POLL_S)
    with closing(AttachServer(tmp_path, control, no_recording_error)):
        lock.mark_started()
        wait_until(lambda: not remote.unacknowledged)
        assert [request.kind for request in drain_requests(control)] == [RequestKind.PAUSE]
    remote.close()
    lock.release()


def test_request_arrives_with_the_viewers_origin(tmp_path: Path, control: RequestQueue) -> None:
    with closing(AttachServer(tmp_path, control, no_recording_error)):
        remote = connected(tmp_path)
        remote.put(RequestKind.RESTORE, "keyboard", "checkpoints/x")
        wait_until(lambda: not remote.unacknowledged)
        (request,) = drain_requests(control)
        assert (request.kind, request.path) == (RequestKind.RESTORE, "checkpoints/x")
        assert request.origin == remote.origin
        assert request.origin.startswith("attach ")
        assert f"@{socket.gethostname()} " in request.origin
        remote.put(RequestKind.EXPLAIN, "keyboard", env=3)
        wait_until(lambda: not remote.unacknowledged)
        (request,) = drain_requests(control)
        assert (request.kind, request.env) == (RequestKind.EXPLAIN, 3)
        assert remote.refusals.empty()
        remote.close()


def test_client_reconnects_to_a_restarted_run(tmp_path: Path, control: RequestQueue) -> None:
    with closing(AttachServer(tmp_path, control, no_recording_error)):
        remote = connected(tmp_path)
        remote.put(RequestKind.PAUSE, "keyboard")
        wait_until(lambda: not remote.unacknowledged)
    with closing(AttachServer(tmp_path, control, no_recording_error)):
        remote.put(RequestKind.RESUME, "keyboard")
        wait_until(lambda: not remote.unacknowledged)
    assert [request.kind for request in drain_requests(control)] == [RequestKind.PAUSE, RequestKind.RESUME]
    remote.put(RequestKind.STEP, "keyboard")
    kind, reason = refusal(remote)
    assert kind is RequestKind.STEP
    assert (
        reason == f"the run does not listen at {tmp_path / SOCKET_NAME} (No such file or directory); "
        "see the log of the run for the reason"
    )
    remote.close()


def test_client_without_socket_reports_it_before_any_request(tmp_path: Path) -> None:
    assert refusal(connected(tmp_path)) == (
        None,
        f"the run does not listen at {tmp_path / SOCKET_NAME} (No such file or directory); "
        "see the log of the run for the reason",
    )


def test_client_refuses_a_run_of_another_machine(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_bytes(msgspec.json.encode(LockHolder(pid=1, host="far-away")))
    assert refusal(connected(tmp_path)) == (None, "the run is on far-away; attach on that machine to control it")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REPLY_TIMEOUT_S", 0.1)


WELCOME = encode_message(Acknowledged("attach ann@box 1"))
LATE = "no reply from the run for 0.1 s; it may still carry out the request"
ANSWERS = {
    "never": ([], None, LATE),
    "not to the request": ([WELCOME], RequestKind.PAUSE, LATE),
    "with a refusal": ([encode_message(Refused("not you"))], None, "refused by the run: not you"),
    "with a refusal of the request": (
        [WELCOME, encode_message(Refused("not now"))],
        RequestKind.PAUSE,
        "refused by the run: not now",
    ),
    "with the end of the connection": ([b""], None, "the run has closed the connection"),
    "with nonsense": ([b"x\n"], None, "unexpected reply from the run: "),
    "with invalid UTF-8": ([WELCOME.replace(b"ann", b"\xff")], None, "unexpected reply from the run: "),
    "with nesting": ([b'{"x":' + b"[" * 50_000 + b"\n"], None, "unexpected reply from the run: "),
    "with no end": ([b'"' + b"x" * (1 << 17)], None, "unexpected reply from the run: "),
    "with the wrong answer": ([encode_message(HELLO)], None, "unexpected reply from the run: "),
}


@pytest.mark.parametrize(("answers", "asked_for", "reason"), ANSWERS.values(), ids=ANSWERS)
@pytest.mark.usefixtures("impatient")
def test_client_reports_invalid_answers(
    answers: list[bytes], asked_for: RequestKind | None, reason: str, tmp_path: Path
) -> None:
    close = stub(tmp_path, *answers)
    remote = connected(tmp_path)
    if asked_for:
        remote.put(asked_for, "keyboard")
    kind, actual_reason = refusal(remote)
    assert kind is asked_for
    assert actual_reason.startswith(reason)
    assert remote.unacknowledged == ({asked_for} - {None})
    close()


def test_client_reports_that_recording_failed(tmp_path: Path, control: RequestQueue) -> None:
    reasons = iter([None, "cannot record to run: No space left on device"])
    with closing(AttachServer(tmp_path, control, lambda: next(reasons))):
        remote = connected(tmp_path)
        remote.put(RequestKind.PAUSE, "keyboard")
        assert remote.refusals.get(timeout=TIMEOUT_S) == (
            None,
            "The run is held, and no new events appear until it can record: "
            "cannot record to run: No space left on device.",
        )
        wait_until(lambda: not remote.unacknowledged)
        assert [request.kind for request in drain_requests(control)] == [RequestKind.PAUSE]
        remote.close()


def test_request_is_pending_until_acknowledged(tmp_path: Path) -> None:
    """`put` returns before the reply arrives."""
    close = stub(tmp_path, WELCOME)
    remote = connected(tmp_path)
    wait_until(lambda: remote.origin is not None)
    remote.put(RequestKind.PAUSE, "keyboard")
    assert remote.unacknowledged == {RequestKind.PAUSE}
    close()
