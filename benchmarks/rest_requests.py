"""Predict over REST: beside idle connections, 200 at once, and with a large body.

    python -m benchmarks.rest_requests [--idle 5000] [--numbers 2000000]

Ratios: p50 beside idle connections to p50 without, in alternating blocks, each once the server has accepted or closed
them all; the large body to Python's json alone, which parses the same request and writes the same response.
"""

import contextlib
import http.client
import json
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import INPUTS, memory_mb, server_process, serving_command, times_ms, write_actors
from serving.embedded.__main__ import allow_open_files
from serving.embedded.flags import MAX_BODY_BYTES_LIMIT

PATH = "/v1/models/TL0000:predict"
CONCURRENT_REQUESTS = 200
POLL_S, MAX_WAIT_S = 0.05, 60.0
"""Wall time between two looks at the server's connections, and for which they may take to open or close."""


def post(connection: http.client.HTTPConnection, body: bytes) -> bytes:
    """Send a predict request; return the body of the response. Raises RuntimeError for an error."""
    connection.request("POST", PATH, body)
    return read_response(connection)


def read_response(connection: http.client.HTTPConnection) -> bytes:
    """Read the body of a response. Raises RuntimeError for an error."""
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {body[:200]!r}")
    return body


def open_files(pid: int) -> int:
    """The number of files and sockets that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def await_open_files(pid: int, is_reached: Callable[[int], bool]) -> None:
    """Wait until the number of open files of a process satisfies a condition. Raises TimeoutError."""
    end_s = time.monotonic() + MAX_WAIT_S
    while not is_reached(files := open_files(pid)):
        if time.monotonic() > end_s:
            raise TimeoutError(f"the server has {files} open files after {MAX_WAIT_S:g} s")
        time.sleep(POLL_S)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--idle", type=int, default=5000, help="idle connections (default: %(default)s)")
    parser.add_argument(
        "--numbers", type=int, default=2_000_000, help="values in the large body (default: %(default)s)"
    )
    args = parser.parse_args()
    allow_open_files()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        write_actors(folder, 1)
        flags = ["--rest_api_port", str(port), "--rest_api_max_body_bytes", str(MAX_BODY_BYTES_LIMIT)]
        _, pid = stack.enter_context(server_process(*serving_command(folder, *flags)))

        def connect() -> http.client.HTTPConnection:
            return stack.enter_context(contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)))

        connection, body = connect(), json.dumps({"instances": [[0.0] * INPUTS]}).encode()
        times: dict[str, list[float]] = {"without idle connections": [], f"beside {args.idle} idle connections": []}
        times_ms(lambda: post(connection, body))
        before = open_files(pid)
        resident_mb: list[float] = []
        for _ in range(3):
            with contextlib.ExitStack() as idle:
                for case, durations in times.items():
                    if case.startswith("beside"):
                        for _ in range(args.idle):
                            idle.enter_context(socket.create_connection(("127.0.0.1", port)))
                        await_open_files(pid, lambda files: files >= before + args.idle)
                    durations += times_ms(lambda: post(connection, body))
                    resident_mb.append(memory_mb(pid))
            await_open_files(pid, lambda files: files <= before)
        medians = [float(np.median(durations)) for durations in times.values()]
        for case, median in zip(times, medians, strict=True):
            print(f"{case:<40}p50 {median:.3f} ms")
        print(f"{'ratio':<40}{medians[1] / medians[0]:.2f}")
        print(f"{'memory of the idle connections':<40}{resident_mb[1] - resident_mb[0]:.0f} MB")

        connections = [connect() for _ in range(CONCURRENT_REQUESTS)]
        begin = time.perf_counter()
        for connection in connections:
            connection.request("POST", PATH, body)
        for connection in connections:
            read_response(connection)
        print(f"{CONCURRENT_REQUESTS} requests at once{'':<22}{1000 * (time.perf_counter() - begin):.0f} ms for all")

        rows = args.numbers // INPUTS
        large = json.dumps({"instances": np.random.default_rng(0).random((rows, INPUTS)).round(7).tolist()}).encode()
        begin = time.perf_counter()
        response = post(connection, large)
        served_s = time.perf_counter() - begin
        begin = time.perf_counter()
        json.loads(large)
        json.dumps(json.loads(response))
        json_s = time.perf_counter() - begin
        print(f"{rows * INPUTS} values, {len(large) / 1e6:.0f} MB{'':<14}{served_s:.2f} s")
        print(f"{'ratio to json of Python alone':<40}{served_s / json_s:.2f}")


if __name__ == "__main__":
    main()
