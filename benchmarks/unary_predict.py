"""Unary Predict of one 64-64 actor through the embedded server, against a bare Python gRPC echo.

    python -m benchmarks.unary_predict [--calls 3000]

Both servers run in processes of their own; one client calls them in alternating blocks.
Budget: p50 at most 1.75 x the echo's.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks import harness
from benchmarks.harness import ECHO, INPUTS, server, serving_command
from serving.client import Client


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--calls", type=int, default=3000, help="calls per server (default: 3000)")
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as name:
        harness.write_actors(Path(name), 1)
        serving = serving_command(Path(name))
        with (
            server("-c", ECHO) as echo_address,
            server(*serving) as address,
            Client(address) as client,
            grpc.insecure_channel(echo_address) as channel,
        ):
            echo = channel.unary_unary("/echo/Echo")
            payload, observation = bytes(300), np.zeros(INPUTS, np.float32)
            cases: dict[str, Callable[[], Any]] = {
                "bare gRPC echo": lambda: echo(payload),
                "embedded server": lambda: client.predict("TL0000", observation),
            }
            if cases["bare gRPC echo"]() != payload or set(cases["embedded server"]()) != {"action"}:
                raise RuntimeError("a server gives a wrong response")
            times = harness.in_turns(cases, calls)
    harness.print_latencies("unary call", times)


if __name__ == "__main__":
    main()
