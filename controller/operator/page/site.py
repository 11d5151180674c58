"""The part of HTTP that every page has, live or of a record: files, what never changes, refusals of other sites."""

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources

from aiohttp import web

from controller.operator import operator_token
from controller.operator.page.street_data import StreetData

MAX_COMMAND_BYTES = 1 << 20
STOP_TIMEOUT_S = 1.0
"""Wall time in which requests in progress are finished at the end."""
QUIET_LOG = logging.getLogger("controller.page.http")
"""aiohttp's log, which would have a traceback for each malformed request."""
QUIET_LOG.disabled = True
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml", "txt": "text/plain"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Headers of every answer."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate:
    """Who may ask the page: names of this machine alone (DNS rebinding), its own origin (CSRF), commands with a token.

    - Any page that a browser shows may send requests to 127.0.0.1. A page whose name was pointed there has that name in
      `Host`, so requests with another host are refused; other pages have another `Origin`.
    - The token is in the fragment of the printed address, which browsers send to no server. Commands carry it in a
      header, which another site's form cannot set.
    - The answers (HEADERS) forbid to be framed (clickjacking) and to run any script that is not a file of the page.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        """`host`, `port`: where the page listens."""
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        self._hosts = {f"{name}:{port}" for name in (bracketed, *LOOPBACK_NAMES)}
        if port == 80:
            self._hosts |= {bracketed, *LOOPBACK_NAMES}
        self.token = token

    def refusal(self, headers: Mapping[str, str], needs_origin: bool) -> str:
        """Return why a request is refused, or "".

        `needs_origin`: for a WebSocket or a command, for which every browser sends its page's origin. A program that
        sends none is no browser, so that no other site can be behind it.
        """
        host = headers.get("Host", "").lower()
        if host not in self._hosts:
            return f"the host {host[:100]!r} is not this page; open the printed address"
        origin = headers.get("Origin")
        if origin is not None and origin.lower() not in {f"http://{host}", f"https://{host}"}:
            return f"the origin {origin[:100]!r} is not this page; open the printed address"
        if needs_origin and headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return "another site's page sent this request; open the printed address"
        return ""

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Tell if a command's request carries the token."""
        return operator_token.is_permitted(headers.get("Authorization", ""), self.token)


class Site:
    """A page's address, its gate, and the requests that need no run."""

    def __init__(self, listener: socket.socket, street: StreetData, token: str) -> None:
        """`listener`: listens already. `token`: of commands."""
        listener.setblocking(False)
        self.host, self.port = listener.getsockname()[:2]
        self.gate = Gate(self.host, self.port, token)
        self.street = street
        self._socket = listener
        static = resources.files("controller.operator.page") / "static"
        files = (file for folder in (static, static / "vendor") for file in folder.iterdir() if file.is_file())
        self._files = {file.name: file.read_bytes() for file in files}
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
            return web.Response(status=403, text=f"{refusal}\n", headers=HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n", headers=HEADERS)
        if not response.prepared:
            response.headers.update(HEADERS)
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
