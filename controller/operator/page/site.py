"""The part of HTTP that every page has, live or of a record: files, what never changes, refusals of other sites."""

import logging
import socket
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from aiohttp import web

from city.errors import InputError
from controller.operator.page import security
from controller.operator.page.street_data import StreetData

MAX_COMMAND_BYTES = 1 << 20
STOP_TIMEOUT_S = 1.0
"""Wall time in which requests in progress are finished at the end."""
QUIET_LOG = logging.getLogger("controller.page.http")
"""aiohttp's log, which would have a traceback for each malformed request."""
QUIET_LOG.disabled = True
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml", "txt": "text/plain"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """A page's address, its gate, and the requests that need no run."""

    def __init__(self, listener: socket.socket, street: StreetData, token: str) -> None:
        """`listener`: listens already. `token`: of commands."""
        self.host, self.port = listener.getsockname()[:2]
        self.gate = security.Gate(self.host, self.port, token)
        self.street = street
        self._socket = listener
        self._files = {file.name: file.read_bytes() for file in _static_files()}
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    async def begin(self, *routes: web.RouteDef) -> None:
        """Answer requests from now on, with these routes too."""
        application = web.Application(middlewares=[self._guarded], client_max_size=MAX_COMMAND_BYTES)
        application.router.add_get("/", self._file)
        application.router.add_get("/static/{name}", self._file)
        application.router.add_get("/city.json", self._city)
        application.router.add_routes(routes)
        self._runner = web.AppRunner(application, access_log=None, logger=QUIET_LOG, shutdown_timeout=STOP_TIMEOUT_S)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()

    async def end(self) -> None:
        """Close every connection."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests of other sites, and add the security headers to every answer."""
        refusal = self.gate.refusal(request.headers, needs_origin=request.path in ("/live", "/command"))
        if refusal:
            return web.Response(status=403, text=f"{refusal}\n", headers=security.HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n", headers=security.HEADERS)
        if not response.prepared:
            response.headers.update(security.HEADERS)
        return response

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        kind = _TYPES.get(name.rpartition(".")[2])
        if kind is None or name not in self._files:
            raise web.HTTPNotFound
        return web.Response(body=self._files[name], content_type=kind, charset="utf-8")

    async def _city(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self.street.compressed, content_type="application/json", headers={"Content-Encoding": "gzip"}
        )


def _static_files() -> list[Any]:
    folder = resources.files("controller.operator.page") / "static"
    return [file for each in (folder, folder / "vendor") for file in each.iterdir() if file.is_file()]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InputError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise InputError(f"--page {host}:{port}: cannot listen there ({error.strerror}); pass another port") from None
    return listener
