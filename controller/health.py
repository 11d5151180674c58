"""The HTTP side: /metrics for Prometheus, /healthz for whoever restarts the controller."""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from city.errors import InputError

STALE_S = 60.0
"""Without a step for so long (wall time) the controller counts as stuck."""


class Health:
    """What the controller says of itself: starting, running, stopping, or stuck."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state = "starting"
        self._beat_s = clock()

    def beat(self) -> None:
        # the steps of a release beat too: who is stopping does not begin again
        if self._state != "stopping":
            self._state = "running"
        self._beat_s = self._clock()

    def stopping(self) -> None:
        self._state = "stopping"

    def verdict(self) -> tuple[bool, str]:
        """(whether all is well, one word for it)."""
        if self._state == "running" and self._clock() - self._beat_s > STALE_S:
            return False, "stuck"
        return self._state == "running", self._state


class HttpServer:
    """Serves both in a thread of its own."""

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry, health: Health) -> None:
        """Raises InputError where the address cannot be had."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                elif self.path == "/healthz":
                    well, word = health.verdict()
                    self._answer(200 if well else 503, "text/plain; charset=utf-8", f"{word}\n".encode())
                else:
                    self._answer(404, "text/plain; charset=utf-8", b"there are /metrics and /healthz\n")

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """A scrape is no news."""

        try:
            self._server = ThreadingHTTPServer(address, Handler)
        except OSError as error:
            raise InputError(
                f"cannot serve metrics at {address[0]}:{address[1]}: {error.strerror}; choose another --http"
            ) from None
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
