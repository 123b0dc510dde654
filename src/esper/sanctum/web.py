"""A web server that shows the dashboard in a browser. Imports neither Textual nor torch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from shlex import join
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server

MAX_TERMINAL_SIZE = 1000, 500
"""Columns and rows of a visitor's terminal, at most: each costs memory."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DashboardServer(Server):
    """Serves a dashboard until SIGINT or SIGTERM.

    Args:
        command: what a visitor's process runs.
        title: of the page.
        host: address to listen on.
        port: port to listen on.
    """

    def __init__(self, command: Sequence[str], *, title: str, host: str, port: int) -> None:
        # Our own page: that of textual-serve has its font fetched from a third party.
        public_url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        super().__init__(join(command), host, port, title, public_url, templates_path=Path(__file__).parent)
        self._connections: set[asyncio.Task[Any]] = set()

    def serve(self, debug: bool = False) -> None:  # noqa: ARG002
        """Listen, say where, and answer until SIGINT or SIGTERM. Raises OSError where it cannot listen."""
        told = f"{self.title}: read-only at {self.public_url}, until Ctrl-C"
        web.run_app(self._make_app(), host=self.host, port=self.port, print=lambda _: print(told, flush=True))  # noqa: T201

    async def on_startup(self, app: web.Application) -> None:
        """Nothing to say before we listen."""

    async def on_shutdown(self, app: web.Application) -> None:  # noqa: ARG002
        """Send visitors away: the server does not wait for them."""
        for visit in self._connections:
            visit.cancel()

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._reject_cross_origin)
        return app

    @web.middleware
    async def _reject_cross_origin(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Other pages in a visitor's browser see nothing of the run: neither as themselves, nor by a name of their own
        for this address.
        """
        origin = request.headers.get("Origin")
        try:
            asker = None if origin is None else urlsplit(origin).netloc
            name = urlsplit(f"//{request.host}").hostname or ""
        except ValueError as error:
            raise web.HTTPForbidden(text=str(error)) from None
        if asker not in {None, request.host}:
            raise web.HTTPForbidden(text=f"asked for by another page, {origin}")
        if is_loopback(self.host) and not is_loopback(name):
            raise web.HTTPForbidden(text=f"this is not {name}")
        return await handler(request)

    async def handle_index(self, request: web.Request) -> Any:
        """The page, for a browser that may know us by another name and port: through a tunnel."""
        self.public_url = f"{request.scheme}://{request.host}"
        return await super().handle_index(request)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """A visitor's terminal."""
        asked = [request.query.get(name, "0") for name in ("width", "height")]
        if not all(text.isdecimal() and int(text) <= most for text, most in zip(asked, MAX_TERMINAL_SIZE, strict=True)):
            raise web.HTTPBadRequest(text=f"no terminal is {' × '.join(asked)}")
        visit = asyncio.current_task()
        assert visit is not None
        self._connections.add(visit)
        try:
            return await super().handle_websocket(request)
        finally:
            self._connections.discard(visit)

    async def _process_messages(self, websocket: web.WebSocketResponse, app_service: AppService) -> None:
        """What a visitor types; then the end of his process, or the other way round: a page learns of it then.

        textual-serve waits for the last of what it prints: of the process itself we would hear after the loop's end.
        """
        resize = app_service.set_terminal_size

        async def resize_within(width: int, height: int) -> None:
            await resize(min(width, MAX_TERMINAL_SIZE[0]), min(height, MAX_TERMINAL_SIZE[1]))

        app_service.set_terminal_size = resize_within
        parting = asyncio.create_task(_close_after(app_service, websocket))
        try:
            await super()._process_messages(websocket, app_service)
        finally:
            parting.cancel()
            await app_service.stop()
            if app_service._process is not None:
                await app_service._process.wait()


async def _close_after(app_service: AppService, websocket: web.WebSocketResponse) -> None:
    """Close a visitor's connection once his process has ended, however that came."""
    if app_service._process is not None:
        await app_service._process.wait()
        await websocket.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine is at that address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
