"""Parts that benchmarks share: processes, servers, timed calls in turns, and tables of medians and ratios.

`benchmarks.turns` lets whole programs advance in turns; here one process calls several servers in turns.
"""

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import thousand_signals

ROOT = Path(__file__).resolve().parent.parent
INPUTS, OUTPUTS = 64, 4
"""Sizes of the 64-64 actors that are served."""
BLOCK = 250
"""Calls of a case before the next case has its turn."""
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
"""A bare Python gRPC server, for `server("-c", ECHO)`."""
CALL = (
    "import importlib, json, sys; getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*json.loads(sys.argv[3]))"
)


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a benchmark's docstring."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def thousand(args: argparse.Namespace, folder: Path) -> Path:
    """The configuration of 1,000 signals: that of --thousand, or written to a folder."""
    if args.thousand is not None:
        return Path(args.thousand / "thousand.sumocfg").resolve()
    return thousand_signals.write(folder, thousand_signals.DAY)


def add_thousand(parser: argparse.ArgumentParser) -> None:
    """Add the flag --thousand."""
    parser.add_argument(
        "--thousand", type=Path, metavar="FOLDER", help="where thousand_signals was written (default: write it)"
    )


def city_of(sumocfg: Path, folder: Path) -> Path:
    """Write a city.toml that names a configuration and no TL; return its path."""
    path = folder / "city.toml"
    path.write_text(f"[network]\nsumocfg = {json.dumps(str(sumocfg.resolve()))}\n")
    return path


def in_process(module: str, function: str, *arguments: str | float) -> None:
    """Call a function in a process of its own, which ends before anything is measured. Raises CalledProcessError."""
    command = [sys.executable, "-c", CALL, module, function, json.dumps(arguments)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, cwd=ROOT)


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


def serving_command(folder: Path, *flags: str) -> tuple[str, ...]:
    """The command of an embedded server for a folder of models."""
    # an empty city.toml: the server needs no settings of it
    city = folder / "city.toml"
    city.write_text("")
    return ("-m", "serving", "--models-dir", str(folder), "--port", "0", "--city", str(city), *flags)


def write_actors(folder: Path, count: int) -> None:
    """Write models TL0000, TL0001, ... of 64-64 actors."""
    in_process("benchmarks.random_models", "write_incomplete", str(folder), count, INPUTS, OUTPUTS)


def memory_mb(pid: int | str, key: str = "VmRSS") -> float:
    """Resident memory of a process in MB; with key VmHWM, its peak."""
    if key == "VmRSS":
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{key}:")) * 1024 / 1e6


def times_ms(call: Callable[[], object], calls: int = BLOCK) -> list[float]:
    """Wall time in ms of each of some calls."""
    times = []
    for _ in range(calls):
        begin_s = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - begin_s))
    return times


def in_turns(cases: Mapping[str, Callable[[], Any]], calls: int, block: int = BLOCK) -> dict[str, list[float]]:
    """Wall times in ms of the calls of each case: a block of one, a block of the next, and so on.

    Other load on the machine disturbs all cases alike, so that their ratio holds. The first block of each is not
    counted.
    """
    for call in cases.values():
        times_ms(call, block)
    times: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(max(1, calls // block)):
        for case, call in cases.items():
            times[case] += times_ms(call, block)
    return times


def percentiles(times: Sequence[float]) -> tuple[float, float]:
    """(p50, p99)."""
    p50, p99 = np.percentile(times, [50, 99])
    return float(p50), float(p99)


def print_latencies(title: str, times: Mapping[str, Sequence[float]], reference: str | None = None) -> None:
    """Print p50 and p99 of each case in ms, and their ratio to those of a reference (default: the first case)."""
    base = percentiles(times[reference or next(iter(times))])
    print(f"{title:<40}{'p50':>13}{'p99':>13}{'ratio':>10}{'ratio':>8}")
    for case, values in times.items():
        p50, p99 = percentiles(values)
        print(f"{case:<40}{p50:>10.3f} ms{p99:>10.3f} ms{p50 / base[0]:>10.2f}{p99 / base[1]:>8.2f}", flush=True)
