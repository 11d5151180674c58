"""Throughput with 100 callers at once through the embedded server, against a bare Python gRPC echo.

    python -m benchmarks.concurrent_callers [--callers 100] [--seconds 3] [--threads N] [--models 1]

Callers are threads of one process, which asks both servers in turns with the
same bytes over one channel each. Budget: at least 0.8 of the echo's calls a second.
"""

import argparse
import itertools
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np

from benchmarks.unary_predict import ECHO, INPUTS, server, serving_command, write_actors
from serving.client import Client

PREDICT = "/tensorflow.serving.PredictionService/Predict"


def load(call: Callable[[bytes], object], requests: list[bytes], callers: int, seconds: float) -> list[float]:
    """Seconds of every call made."""
    end = time.perf_counter() + seconds
    times: list[list[float]] = [[] for _ in range(callers)]

    def work(mine: list[float], turn: "itertools.cycle[bytes]") -> None:
        while (begin := time.perf_counter()) < end:
            call(next(turn))
            mine.append(time.perf_counter() - begin)

    threads = [
        threading.Thread(target=work, args=(mine, itertools.cycle(requests[i % len(requests) :] + requests[: i % len(requests)])))
        for i, mine in enumerate(times)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for mine in times for one in mine]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="--grpc_max_threads of the embedded server")
    parser.add_argument("--models", type=int, default=1, help="models asked, one after another")
    args = parser.parse_args()
    flags = ("--grpc_max_threads", str(args.threads)) if args.threads else ()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_actors(folder, args.models)
        with Client("127.0.0.1:1") as client:
            observation = np.linspace(0, 1, INPUTS, dtype=np.float32)
            requests = [client._request(f"TL{i:04d}", None, observation) for i in range(args.models)]
        with (
            server("-c", ECHO) as echo_address,
            server(*serving_command(folder, *flags)) as address,
            grpc.insecure_channel(echo_address) as echo,
            grpc.insecure_channel(address) as ours,
        ):
            cases = {"bare gRPC echo": echo.unary_unary("/echo/Echo"), "embedded server": ours.unary_unary(PREDICT)}
            found: dict[str, list[list[float]]] = {case: [] for case in cases}
            for call in cases.values():
                load(call, requests, args.callers, 1.0)
            for _ in range(args.rounds):
                for case, call in cases.items():
                    found[case].append(load(call, requests, args.callers, args.seconds))
    print(f"{args.callers} callers{'':<9}{'calls/s':>9}{'p50':>12}{'p99':>12}")
    rates = {}
    for case, rounds in found.items():
        rates[case] = [len(times) / args.seconds for times in rounds]
        p50, p99 = (1000 * np.percentile(np.concatenate(rounds), q) for q in (50, 99))
        print(f"{case:<20}{np.median(rates[case]):>9.0f}{p50:>9.2f} ms{p99:>9.2f} ms")
    ratios = np.array(rates["embedded server"]) / np.array(rates["bare gRPC echo"])
    print(f"{'ratio':<20}{np.median(ratios):>9.2f}   (rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
