"""The web server of the dashboard answers only to its own names and pages."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

test_utils = pytest.importorskip("aiohttp.test_utils", reason="the extra serve is not installed")
pytest.importorskip("textual_serve", reason="the extra serve is not installed")

from esper.sanctum.web import DashboardServer  # noqa: E402

THIS_MACHINE = socket.gethostname()
ANY = ["192.0.2.7", "[2001:db8::1]:80", THIS_MACHINE.upper(), "box.example:8001"]
"""Hosts in requests that reach a server from elsewhere: addresses, the name of the machine, and one that is allowed."""
LOOPBACK = ["localhost:8001", "127.0.0.1", "127.3.2.1", "[::1]:80"]


@asynccontextmanager
async def visitor(listens_on: str) -> AsyncIterator[Any]:
    """Yield a client of a server in this process."""
    server = DashboardServer([], title="", host=listens_on, port=8000, names=["Box.example"])
    async with test_utils.TestClient(test_utils.TestServer(await server._make_app())) as client:
        yield client


async def statuses(listens_on: str, requests: list[dict[str, str]]) -> list[int]:
    """Return the status of the page for requests with these headers."""
    async with visitor(listens_on) as client:
        return [(await client.get("/", headers=headers)).status for headers in requests]


@pytest.mark.parametrize(
    ("listens_on", "accepted", "refused"),
    [
        ("127.0.0.1", LOOPBACK, [*ANY, "localhost.example"]),
        ("::1", LOOPBACK, ANY),
        ("localhost", LOOPBACK, ANY),
        ("0.0.0.0", [*ANY, "127.0.0.1"], ["elsewhere.example", "box.example.elsewhere.example", ""]),
    ],
)
async def test_server_answers_to_its_own_names_only(listens_on: str, accepted: list[str], refused: list[str]) -> None:
    found = await statuses(listens_on, [{"Host": name} for name in (*accepted, *refused)])
    assert found == [200] * len(accepted) + [403] * len(refused)


async def test_server_refuses_requests_of_other_pages() -> None:
    origins = ("http://localhost:8001", "http://localhost:8002", "http://elsewhere.example", "http://[bad", "null")
    found = await statuses("127.0.0.1", [{"Host": "localhost:8001", "Origin": origin} for origin in origins])
    assert found == [200, 403, 403, 403, 403]


async def test_server_refuses_terminals_that_are_too_large() -> None:
    async with visitor("127.0.0.1") as client:
        for size in ("width=1001&height=24", "width=80&height=501", "width=x&height=24"):
            refused = await client.get(f"/ws?{size}")
            assert refused.status == 400
            assert "invalid terminal size" in await refused.text()
