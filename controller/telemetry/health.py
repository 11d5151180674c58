"""HTTP endpoints of a controller or a guard.

/metrics is for Prometheus, /healthz for readiness probes (200 only while running), /livez for liveness probes (503 only
if the process is stuck).
"""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from city import systemd
from city.errors import InputError

MAX_CONNECTIONS = 16
"""Open connections; each holds a thread."""
IDLE_TIMEOUT_S = 10.0
"""Wall time after which an idle connection is closed."""
CONNECTION_TIMEOUT_S = 30.0
"""Maximum wall time of a connection, also of one that sends or reads slowly."""
STALE_TIMEOUT_S = 60.0
"""Wall time without a beat after which the process counts as stuck."""
SERVICE_INTERVAL_S = 0.1
"""Wall time after which the server looks for connections that have lasted too long, and for its own end."""


class Health:
    """The state of a controller or a guard, also for systemd: starting, running, stopping or stuck."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, status: str = "controlling") -> None:
        """Begin in the state starting. `status` describes the state running in `systemctl status`."""
        self._clock, self._status = clock, status
        self._state = "starting"
        self._beat_s = clock()
        self._watchdog_interval_s = systemd.watchdog_interval_s()
        self._watchdog_s = -math.inf
        """When systemd's watchdog was last notified."""

    def beat(self) -> None:
        """Record progress: a step of a controller, or a pass of a guard's loop."""
        if self._state == "starting":
            systemd.notify(f"READY=1\nSTATUS={self._status}")
        # the steps of a release beat as well, and must not turn stopping into running
        if self._state != "stopping":
            self._state = "running"
        self._note_alive()

    def wait(self) -> None:
        """Record that the process waits for SUMO, which may wait for another client: it is not stuck."""
        if self._state != "starting":
            self._note_alive()

    def _note_alive(self) -> None:
        self._beat_s = self._clock()
        if self._watchdog_interval_s is not None and self._beat_s >= self._watchdog_s + self._watchdog_interval_s:
            self._watchdog_s = self._beat_s
            systemd.notify("WATCHDOG=1")

    def begin_stopping(self) -> None:
        """Record that the release has begun."""
        self._state = "stopping"
        systemd.notify("STOPPING=1\nSTATUS=releasing the signals")

    @property
    def is_stuck(self) -> bool:
        """True if there was no beat for STALE_TIMEOUT_S, also while signals are released, as for systemd's watchdog."""
        return self._state != "starting" and self._clock() - self._beat_s > STALE_TIMEOUT_S

    def status(self) -> tuple[bool, str]:
        """(whether the process is ready, its state)."""
        if self._state == "running" and self.is_stuck:
            return False, "stuck"
        return self._state == "running", self._state


class _BoundedHTTPServer(ThreadingHTTPServer):
    """An HTTP server that closes connections beyond MAX_CONNECTIONS."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._begin_s: dict[socket.socket, float] = {}
        """Begin of each open connection (time.monotonic)."""
        super().__init__(address, handler)

    def service_actions(self) -> None:
        """End connections that have lasted too long; called every SERVICE_INTERVAL_S."""
        for connection, begin_s in list(self._begin_s.items()):
            if time.monotonic() > begin_s + CONNECTION_TIMEOUT_S:
                with contextlib.suppress(OSError):  # it has ended by itself
                    connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can be started now
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._begin_s[request] = time.monotonic()
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._begin_s[request]
            self._free.release()


class HttpServer:
    """The HTTP server of both endpoints, in its own threads."""

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry, health: Health) -> None:
        """Listen and serve. Raises InputError if it cannot listen on the address."""

        class Handler(BaseHTTPRequestHandler):
            timeout = IDLE_TIMEOUT_S

            def do_GET(self) -> None:
                kind = "text/plain; charset=utf-8"
                if self.path == "/metrics":
                    # OpenMetrics for scrapers that accept it
                    encode, kind = choose_encoder(self.headers.get("Accept", ""))
                    code, body = 200, encode(registry)
                elif self.path == "/healthz":
                    is_ready, state = health.status()
                    code, body = 200 if is_ready else 503, f"{state}\n".encode()
                elif self.path == "/livez":
                    code, body = (503, b"stuck\n") if health.is_stuck else (200, b"alive\n")
                else:
                    code, body = 404, b"not found; the paths are /metrics, /healthz and /livez\n"
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are not logged."""

        try:
            self._server = _BoundedHTTPServer(address, Handler)
        except OSError as error:
            raise InputError(
                f"cannot serve metrics at {address[0]}:{address[1]}: {error.strerror}; pass another --http"
            ) from None
        self.port = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, args=(SERVICE_INTERVAL_S,), name="http", daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
