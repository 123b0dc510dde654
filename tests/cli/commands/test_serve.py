"""The `serve` command: the dashboard in a browser, its access rules and its errors."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from esper.cli.commands import attach, replay
from esper.cli.commands.serve import run_visitor
from esper.cli.main import main
from esper.cli.options import EXIT_OK, EXIT_USAGE
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment
from tests.terminals import TIMEOUT_S, started

aiohttp = pytest.importorskip("aiohttp", reason="the extra serve is not installed")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """Start a server; yield its process, its port, and the line that it prints once it listens."""
    port = free_port()
    with started("serve", *arguments, "--telemetry-dir", ".", "--port", str(port), cwd=folder) as process:
        assert process.stdout is not None
        yield process, port, process.stdout.readline()


@asynccontextmanager
async def visitor(port: int, text: str) -> AsyncIterator[Any]:
    """Open the page's terminal and wait until it has drawn a text."""
    drawn = b""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}/ws?width=120&height=40") as terminal,
    ):
        async with asyncio.timeout(TIMEOUT_S):
            while text.encode() not in drawn:
                message = await terminal.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, drawn
                drawn += message.data
        yield terminal


async def visit(port: int, text: str) -> None:
    async with visitor(port, text):
        pass


async def fetch(port: int, **headers: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}", headers=headers) as answer:
        return answer.status, await answer.text()


@pytest.mark.slow
async def test_serve_replays_a_run_until_ctrl_c(tmp_path: Path) -> None:
    write_segment(tmp_path / "over", 1, recording(example_run()))
    with served(tmp_path, "over") as (process, port, line):
        assert line == f"over: read-only at http://127.0.0.1:{port}, until Ctrl-C\n"

        status, page = await fetch(port, Host=f"localhost:{port + 1}")  # the port of an SSH tunnel differs
        assert status == 200
        assert f'data-session-websocket-url="ws://localhost:{port + 1}/ws"' in page
        assert page.count("http") == page.count(f"http://localhost:{port + 1}/static/") > 0

        for headers in ({"Origin": "http://elsewhere.example"}, {"Host": f"elsewhere.example:{port}"}):
            assert (await fetch(port, **headers))[0] == 403
        for headers in ({"Origin": "http://[bad"}, {"Host": "[::1"}):
            assert (await fetch(port, **headers))[0] in {400, 403}
        async with aiohttp.ClientSession() as session:
            for size in ("width=100000&height=24", "width=80&height=100000", "width=x"):
                async with session.get(f"http://127.0.0.1:{port}/ws?{size}") as answer:
                    assert answer.status == 400
                    assert "invalid terminal size" in await answer.text()

        await visit(port, "REPLAY")

        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0
        assert process.communicate() == ("", "")


async def test_only_listed_names_reach_a_server_on_another_address(tmp_path: Path) -> None:
    write_segment(tmp_path / "over", 1, recording(example_run()))
    with served(tmp_path, "over", "--host", "0.0.0.0", "--allow-host", "Box.example") as (_, port, _):
        for name in (f"127.0.0.1:{port}", f"192.0.2.7:{port}", "[::1]:80", "box.example", socket.gethostname()):
            assert (await fetch(port, Host=name))[0] == 200, name
        for name in ("elsewhere.example", "box.example.elsewhere.example"):
            status, text = await fetch(port, Host=name)
            assert (status, text) == (403, f"unexpected host name: {name}; see --allow-host")


@pytest.mark.slow
async def test_serve_last_is_resolved_at_each_visit(tmp_path: Path) -> None:
    write_segment(tmp_path / "over", 1, recording(example_run()))
    with served(tmp_path) as (process, port, line):
        assert line.startswith("the newest run: read-only at ")
        await visit(port, "REPLAY")

        (tmp_path / "live").mkdir()
        lock = RunLock(RunDirectory(tmp_path / "live"))
        write_segment(tmp_path / "live", 1, recording(example_run()[:-1]))
        await visit(port, "read-only")
        lock.release()

        waiting = asyncio.create_task(visit(port, "text that never comes"))  # the server ends without waiting for it
        await asyncio.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, TIMEOUT_S) == 0
        with pytest.raises(AssertionError):
            await waiting


@pytest.mark.slow
async def test_serve_reports_a_killed_dashboard_to_the_page(tmp_path: Path) -> None:
    write_segment(tmp_path / "over", 1, recording(example_run()))
    with served(tmp_path) as (process, port, _):
        async with visitor(port, "REPLAY") as terminal, asyncio.timeout(TIMEOUT_S):
            for dashboard in psutil.Process(process.pid).children(recursive=True):
                dashboard.kill()
            while (await terminal.receive()).type is aiohttp.WSMsgType.BINARY:
                pass
            assert terminal.closed
        await visit(port, "REPLAY")


@pytest.mark.slow
async def test_killed_server_leaves_no_dashboard_process(tmp_path: Path) -> None:
    write_segment(tmp_path / "over", 1, recording(example_run()))
    with served(tmp_path) as (process, port, _):
        async with visitor(port, "REPLAY"):
            dashboards = psutil.Process(process.pid).children(recursive=True)
            assert dashboards

            process.kill()
            _, alive = await asyncio.to_thread(psutil.wait_procs, dashboards, TIMEOUT_S)
            assert alive == []


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err.removeprefix("esper-sanctum: ").rstrip()


def test_serve_without_extra_gives_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve", None)
    sentence = "serve needs an optional dependency; run `uv sync --inexact --extra serve` in the checkout"
    assert refused(capsys) == sentence


def test_serve_refuses_invalid_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(capsys) == "cannot resolve `last`: telemetry does not exist; give another --telemetry-dir"
    (tmp_path / "notes.txt").write_text("no recording\n" * 100)
    assert "notes.txt is not a recording of esper-sanctum" in refused(capsys, "notes.txt")
    write_segment(tmp_path / "run", 1, recording(example_run()))
    assert refused(capsys, "run", "--port", "0") == "--port 0 is not valid: it must be a number from 1 to 65535"
    assert refused(capsys, "run", "--theme", "sanctum-drak").startswith("unknown theme 'sanctum-drak'; did you mean")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(capsys, "run", "--port", str(port))
    assert said.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert said.endswith("; try another --port")
    assert refused(capsys, "run", "--host", "192.0.2.1").endswith("; try another --host")  # reserved (RFC 5737)

    from esper.sanctum.web import DashboardServer

    assert DashboardServer([], title="", host="::1", port=8000).public_url == "http://[::1]:8000"


def test_serve_starts_a_dashboard_of_the_run_or_of_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[tuple[list[str], dict[str, Any]]] = []

    class Listed:
        def __init__(self, command: list[str], **options: Any) -> None:
            servers.append((command[-3:], options))

        def serve(self) -> None:
            pass

    monkeypatch.setattr("esper.sanctum.web.DashboardServer", Listed)
    monkeypatch.chdir(tmp_path)
    write_segment(tmp_path / "over", 1, recording(example_run()))
    folder = ["--telemetry-dir", "."]
    assert main(["serve", *folder]) == EXIT_OK
    elsewhere = ["--host", "0.0.0.0", "--port", "65535", "--allow-host", "box"]
    assert main(["serve", "over", *folder, *elsewhere]) == EXIT_OK
    assert main(["serve", "over", *folder, "--port", "65536"]) == EXIT_USAGE
    newest = {"title": "the newest run", "host": "127.0.0.1", "port": 8000, "names": []}
    named = {"title": "over", "host": "0.0.0.0", "port": 65535, "names": ["box"]}
    assert servers == [
        (["last", str(tmp_path), "auto"], newest),
        ([str(tmp_path / "over"), str(tmp_path), "auto"], named),
    ]


def test_visitor_attaches_read_only_to_a_live_run_and_replays_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[tuple[str, ...]] = []
    for command in (attach, replay):
        name = command.__name__.rpartition(".")[2]
        monkeypatch.setattr(command, "run", lambda given, name=name: opened.append((name, *given)) or EXIT_OK)
    write_segment(tmp_path / "over", 1, recording(example_run()))
    lock = RunLock(RunDirectory.make(tmp_path / "live"))
    write_segment(tmp_path / "live", 1, recording(example_run()[:-1]))
    for run in ("over", "live", str(tmp_path / "over" / "events-00001.jsonl")):
        assert run_visitor(run, str(tmp_path), "auto") == EXIT_OK
    lock.release()
    look = ("--theme", "auto", "--symbols", "braille")
    assert opened == [
        ("replay", str(tmp_path / "over"), *look),
        ("attach", str(tmp_path / "live"), *look, "--read-only"),
        ("replay", str(tmp_path / "over" / "events-00001.jsonl"), *look),
    ]
    assert run_visitor("none", str(tmp_path), "auto") == EXIT_USAGE
    assert "'none' is neither a file nor a run" in capsys.readouterr().err
