"""Unary Predict of one 64-64 actor through the embedded server, against a bare Python gRPC echo.

    python -m benchmarks.unary_predict [--calls 3000]

Both servers run in processes of their own; one client calls them in alternating blocks.
Budget: p50 at most 1.75 x the echo's.
"""

import argparse
import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from serving.client import Client

INPUTS, OUTPUTS, BLOCK = 64, 4, 250
ECHO = """
import sys, grpc
from concurrent import futures
server = grpc.server(futures.ThreadPoolExecutor(8))
handlers = {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request)}
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
print("ready at 127.0.0.1:%d" % server.add_insecure_port("127.0.0.1:0"))
sys.stdout.flush()
server.start()
server.wait_for_termination()
"""


@contextlib.contextmanager
def server(*command: str) -> Iterator[str]:
    """Run a server process; yield its HOST:PORT."""
    with server_process(*command) as (address, _):
        yield address


@contextlib.contextmanager
def server_process(*command: str) -> Iterator[tuple[str, int]]:
    """Run a server process; yield (HOST:PORT, process id). Raises RuntimeError if it does not start."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("ready at "):
            raise RuntimeError(f"{' '.join(command)}: the server did not start")
        yield line.removeprefix("ready at ").strip().partition(",")[0], process.pid
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def block(call: Callable[[], object]) -> list[float]:
    """Wall time in s of each of BLOCK calls."""
    times = []
    for _ in range(BLOCK):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000, help="calls per server (default: 3000)")
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_actors(folder, 1)
        serving = serving_command(folder)
        with server("-c", ECHO) as echo_address, server(*serving) as address:
            client, observation = Client(address), np.zeros(INPUTS, np.float32)
            with grpc.insecure_channel(echo_address) as channel:
                echo = channel.unary_unary("/echo/Echo")
                payload = bytes(300)
                cases: dict[str, Callable[[], Any]] = {
                    "bare gRPC echo": lambda: echo(payload),
                    "embedded server": lambda: client.predict("TL0000", observation),
                }
                if cases["bare gRPC echo"]() != payload or set(cases["embedded server"]()) != {"action"}:
                    raise RuntimeError("a server gives a wrong response")
                for call in cases.values():
                    block(call)
                times: dict[str, list[float]] = {case: [] for case in cases}
                for _ in range(max(1, calls // BLOCK)):
                    for case, call in cases.items():
                        times[case] += block(call)
            client.close()
    print(f"{'unary call':<20}{'p50':>12}{'p99':>12}")
    for case, times_s in times.items():
        print(f"{case:<20}{1000 * np.percentile(times_s, 50):>9.3f} ms{1000 * np.percentile(times_s, 99):>9.3f} ms")
    echo_times, served_times = times.values()
    ratios = [np.percentile(served_times, q) / np.percentile(echo_times, q) for q in (50, 99)]
    print(f"{'ratio':<20}{ratios[0]:>12.2f}{ratios[1]:>12.2f}")


def write_actors(folder: Path, count: int) -> None:
    """Write models TL0000, TL0001, ... of 64-64 actors, in a process of its own that ends before the server is
    measured."""
    code = (
        "import sys; from pathlib import Path; from benchmarks.random_models import write_models; from "
        f"signals.contract import incomplete; write_models(Path(sys.argv[1]), (incomplete(f'TL{{i:04d}}', {INPUTS}, "
        f"'kc', {OUTPUTS}) for i in range({count})))"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, stderr=subprocess.DEVNULL)


def serving_command(folder: Path, *flags: str) -> tuple[str, ...]:
    """The command of an embedded server for a folder of models."""
    return ("-m", "serving", "--models-dir", str(folder), "--port", "0", "--city", str(city_file(folder)), *flags)


def resident_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def city_file(folder: Path) -> Path:
    """An empty city.toml: the server needs no settings of it."""
    path = folder / "city.toml"
    path.write_text("")
    return path


if __name__ == "__main__":
    main()
