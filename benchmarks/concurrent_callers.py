"""Throughput of the embedded server with 100 concurrent callers, against a bare Python gRPC echo.

    python -m benchmarks.concurrent_callers [--callers 100] [--seconds 3] [--threads N] [--models 1]

Callers are threads of one process, which calls both servers alternately with the same
bytes over one channel each.
"""

import itertools
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np

from benchmarks import harness
from benchmarks.harness import ECHO, INPUTS, server, serving_command, write_actors
from protos import predict_pb2 as pb
from serving.client import messages

PREDICT = "/tensorflow.serving.PredictionService/Predict"


def load(call: Callable[[bytes], object], requests: list[bytes], callers: int, seconds: float) -> list[float]:
    """Call in `callers` threads for some seconds; return the wall time in s of every call."""
    end = time.perf_counter() + seconds
    times: list[list[float]] = [[] for _ in range(callers)]

    def work(durations_s: list[float], request_cycle: "itertools.cycle[bytes]") -> None:
        while (begin := time.perf_counter()) < end:
            call(next(request_cycle))
            durations_s.append(time.perf_counter() - begin)

    threads = [
        threading.Thread(
            target=work,
            args=(durations_s, itertools.cycle(requests[i % len(requests) :] + requests[: i % len(requests)])),
        )
        for i, durations_s in enumerate(times)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [duration_s for durations_s in times for duration_s in durations_s]


def check(echo: Callable[[bytes], bytes], predict: Callable[[bytes], bytes], requests: list[bytes]) -> None:
    """Raise RuntimeError if a server gives a wrong response."""
    for request in requests:
        if echo(request) != request:
            raise RuntimeError("the echo server does not echo")
        if "action" not in messages.parse_prediction(pb.PredictResponse.FromString(predict(request))).outputs:
            raise RuntimeError("the embedded server's response has no action")


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--callers", type=int, default=100, help="callers at once (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of a measurement (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="--grpc_max_threads of the embedded server")
    parser.add_argument("--models", type=int, default=1, help="models that are called in turn")
    args = parser.parse_args()
    flags = ("--grpc_max_threads", str(args.threads)) if args.threads else ()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_actors(folder, args.models)
        observation = np.linspace(0, 1, INPUTS, dtype=np.float32)
        requests = [
            messages.predict_request(f"TL{i:04d}", None, observation).SerializeToString() for i in range(args.models)
        ]
        with (
            server("-c", ECHO) as echo_address,
            server(*serving_command(folder, *flags)) as address,
            grpc.insecure_channel(echo_address) as echo,
            grpc.insecure_channel(address) as served,
        ):
            cases = {"bare gRPC echo": echo.unary_unary("/echo/Echo"), "embedded server": served.unary_unary(PREDICT)}
            times: dict[str, list[list[float]]] = {case: [] for case in cases}
            check(cases["bare gRPC echo"], cases["embedded server"], requests)
            for call in cases.values():
                load(call, requests, args.callers, 1.0)
            for _ in range(args.rounds):
                for case, call in cases.items():
                    times[case].append(load(call, requests, args.callers, args.seconds))
    print(f"{args.callers} callers{'':<9}{'calls/s':>9}{'p50':>12}{'p99':>12}")
    rates = {}
    for case, rounds in times.items():
        rates[case] = [len(calls) / args.seconds for calls in rounds]
        p50, p99 = (1000 * np.percentile(np.concatenate(rounds), q) for q in (50, 99))
        print(f"{case:<20}{np.median(rates[case]):>9.0f}{p50:>9.2f} ms{p99:>9.2f} ms")
    ratios = np.array(rates["embedded server"]) / np.array(rates["bare gRPC echo"])
    print(f"{'ratio':<20}{np.median(ratios):>9.2f}   (rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
