"""1,000 models in one embedded server: load time, memory, and latency of calls with and without loading.

    python -m benchmarks.many_models [--models 1000] [--loads 100]

Budgets: loaded within 60 s and 2 GB. The latency of calls while `--loads` models are added
is compared with the latency before.
"""

import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import INPUTS, memory_mb, server_process, serving_command, write_actors
from serving.client import Client
from serving.errors import ModelNotFound

CALL_TIMEOUT_S = 10.0
CHECK_INTERVAL_S = 0.2
"""Wall time between two checks whether the last model is loaded."""


def in_turn(client: Client, models: list[str], seconds: float = 0.0, until: str = "") -> list[float]:
    """Latency in ms of calls to the models in turn: one round, then for `seconds`, or until model `until` answers."""
    observation, times, end = np.zeros(INPUTS, np.float32), [], time.perf_counter() + seconds
    checked = time.perf_counter()
    while True:
        for model in models:
            begin = time.perf_counter()
            client.predict(model, observation, timeout_s=CALL_TIMEOUT_S)
            times.append(1000 * (time.perf_counter() - begin))
            if until and begin - checked > CHECK_INTERVAL_S:
                checked = begin
                try:
                    client.predict(until, observation, timeout_s=CALL_TIMEOUT_S)
                    return times
                except ModelNotFound:
                    pass
        if not until and time.perf_counter() >= end:
            return times


def show(label: str, times: list[float]) -> None:
    """Print the percentiles of latencies in ms."""
    p50, p99, worst = np.percentile(times, [50, 99, 100])
    print(f"{label:<52} p50 {p50:.2f} ms  p99 {p99:.2f} ms  max {worst:.1f} ms  ({len(times)} calls)", flush=True)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--models", type=int, default=1000, help="models to serve (default: %(default)s)")
    parser.add_argument("--loads", type=int, default=100, help="models to add during the calls (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, waiting = Path(name) / "models", Path(name) / "waiting"
        folder.mkdir()
        waiting.mkdir()
        write_actors(folder, args.models)
        names = sorted(path.name for path in folder.iterdir())
        added = [f"ZZ{i:04d}" for i in range(args.loads)]
        for model, copy in zip(names, added, strict=False):
            shutil.copytree(folder / model, waiting / copy)
        begin = time.perf_counter()
        with server_process(*serving_command(folder)) as (address, pid), Client(address, retries=0) as client:
            seconds = time.perf_counter() - begin
            print(
                f"{args.models} models: loaded and ready {seconds:.1f} s after the start, {memory_mb(pid):.0f} MB",
                flush=True,
            )
            show(f"all {args.models} called in turn, first round", in_turn(client, names))
            show(f"all {args.models} called in turn", in_turn(client, names, seconds=3))
            few = names[:10]
            show("10 models called, nothing loading", in_turn(client, few, seconds=3))
            for copy in added:
                (waiting / copy).rename(folder / copy)
            show(f"10 models called while {args.loads} others load", in_turn(client, few, until=added[-1]))
            print(f"at the end {memory_mb(pid):.0f} MB")


if __name__ == "__main__":
    main()
