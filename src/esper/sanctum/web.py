"""Web server for the dashboard in a browser. Does not import Textual or torch."""

from __future__ import annotations

import asyncio
import socket
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
"""Maximum columns and rows of a viewer's terminal; limits the memory per viewer."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DashboardServer(Server):
    """Web server that runs a dashboard process for each viewer.

    Args:
        command: Command of the dashboard process.
        host: Address to listen on.
        names: Further host names that the server answers to, if it does not listen on a loopback address. It always
            answers to the host and to the names of this machine.
    """

    def __init__(self, command: Sequence[str], *, title: str, host: str, port: int, names: Sequence[str] = ()) -> None:
        # The page of textual-serve would load a font from a third party.
        public_url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        super().__init__(  # pyright: ignore[reportUnknownMemberType] (textual-serve has an untyped default)
            join(command), host, port, title, public_url, templates_path=Path(__file__).parent
        )
        self._names = {name.lower() for name in (host, socket.gethostname(), socket.getfqdn(), *names)}
        self._connections: set[asyncio.Task[Any]] = set()

    def serve(self, debug: bool = False) -> None:  # noqa: ARG002
        """Print the address, and serve until SIGINT or SIGTERM. Raises `OSError` if it cannot listen."""
        message = f"{self.title}: read-only at {self.public_url}, until Ctrl-C"

        def print_message(_: str) -> None:
            print(message, flush=True)  # noqa: T201

        web.run_app(self._make_app(), host=self.host, port=self.port, print=print_message)

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: textual-serve would print its address before it listens."""

    async def on_shutdown(self, app: web.Application) -> None:  # noqa: ARG002
        """Disconnect all viewers, so that the server does not wait for them."""
        for connection in self._connections:
            connection.cancel()

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._reject_cross_origin)
        return app

    @web.middleware
    async def _reject_cross_origin(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject requests of other pages in a viewer's browser.

        This includes pages whose host name resolves to this server (DNS rebinding).
        """
        origin = request.headers.get("Origin")
        try:
            origin_host = None if origin is None else urlsplit(origin).netloc
            name = urlsplit(f"//{request.host}").hostname or ""
        except ValueError as error:
            raise web.HTTPForbidden(text=str(error)) from None
        if origin_host not in {None, request.host}:
            raise web.HTTPForbidden(text=f"request from another page: {origin}")
        if not (is_loopback(name) if is_loopback(self.host) else _is_address(name) or name in self._names):
            raise web.HTTPForbidden(text=f"unexpected host name: {name}; see --allow-host")
        return await handler(request)

    async def handle_index(self, request: web.Request) -> Any:
        """Return the page, with the address that the browser used: a tunnel changes host and port."""
        self.public_url = f"{request.scheme}://{request.host}"
        return await super().handle_index(request)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Connect a viewer's terminal to a dashboard process. Rejects sizes above `MAX_TERMINAL_SIZE`."""
        size = [request.query.get(name, "0") for name in ("width", "height")]
        if not all(
            text.isdecimal() and int(text) <= limit for text, limit in zip(size, MAX_TERMINAL_SIZE, strict=True)
        ):
            raise web.HTTPBadRequest(text=f"invalid terminal size {' × '.join(size)}")
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            return await super().handle_websocket(request)
        finally:
            self._connections.discard(connection)

    async def _process_messages(self, websocket: web.WebSocketResponse, app_service: AppService) -> None:
        """Forward the viewer's input until the viewer disconnects or the process ends, and then end the other.

        textual-serve waits for the end of the process output, and would not close the connection when the process ends.
        """
        resize = app_service.set_terminal_size

        async def resize_within(width: int, height: int) -> None:
            await resize(min(width, MAX_TERMINAL_SIZE[0]), min(height, MAX_TERMINAL_SIZE[1]))

        app_service.set_terminal_size = resize_within
        close_task = asyncio.create_task(_close_after(app_service, websocket))
        try:
            await super()._process_messages(websocket, app_service)
        finally:
            close_task.cancel()
            await app_service.stop()
            await _wait_for_exit(app_service)


async def _close_after(app_service: AppService, websocket: web.WebSocketResponse) -> None:
    """Close a viewer's connection once the dashboard process has ended."""
    if await _wait_for_exit(app_service):
        await websocket.close()


async def _wait_for_exit(app_service: AppService) -> bool:
    """Wait until the dashboard process has ended. Return False if it was never started."""
    process = app_service._process  # pyright: ignore[reportPrivateUsage] (textual-serve has no public access)
    if process is None:
        return False
    await process.wait()
    return True


def _is_address(host: str) -> bool:
    """Return True for an IP address, which no other page can give to this server as its own name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return True for a host name or address that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
