"""1,000 models in one embedded server: loading, memory, calls in turn, and calls while others load.

    python -m benchmarks.many_models [--models 1000] [--loads 100]

Budgets: loaded within 60 s and 2 GB. The calls while `--loads` models are
added are compared with the same calls before.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.unary_predict import INPUTS, resident_mb, server_process, serving_command, write_actors
from serving.client import Client
from serving.errors import ModelNotFound


def in_turn(client: Client, models: list[str], seconds: float = 0.0, until: str = "") -> list[float]:
    """Milliseconds of every call: one round, then on for so long, or until a model answers."""
    observation, times, end = np.zeros(INPUTS, np.float32), [], time.perf_counter() + seconds
    looked = time.perf_counter()
    while True:
        for model in models:
            begin = time.perf_counter()
            client.predict(model, observation, timeout_s=10)
            times.append(1000 * (time.perf_counter() - begin))
            if until and begin - looked > 0.2:
                looked = begin
                try:
                    client.predict(until, observation, timeout_s=10)
                    return times
                except ModelNotFound:
                    pass
        if not until and time.perf_counter() >= end:
            return times


def description(what: str, times: list[float]) -> None:
    p50, p99, worst = np.percentile(times, [50, 99, 100])
    print(f"{what:<52} p50 {p50:.2f} ms  p99 {p99:.2f} ms  worst {worst:.1f} ms  ({len(times)} calls)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--loads", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, waiting = Path(name) / "models", Path(name) / "waiting"
        folder.mkdir()
        waiting.mkdir()
        write_actors(folder, args.models)
        names = sorted(path.name for path in folder.iterdir())
        extra = [f"ZZ{i:04d}" for i in range(args.loads)]
        for model, copy in zip(names, extra, strict=False):
            shutil.copytree(folder / model, waiting / copy)
        begin = time.perf_counter()
        with server_process(*serving_command(folder)) as (address, pid), Client(address, retries=0) as client:
            seconds = time.perf_counter() - begin
            print(
                f"{args.models} models: loaded and ready {seconds:.1f} s after the start, {resident_mb(pid):.0f} MB", flush=True
            )
            told(f"all {args.models} called in turn, the first time", in_turn(client, names))
            told(f"all {args.models} called in turn", in_turn(client, names, seconds=3))
            few = names[:10]
            told("10 models called, nothing loading", in_turn(client, few, seconds=3))
            for copy in extra:
                (waiting / copy).rename(folder / copy)
            told(f"10 models called while {args.loads} others load", in_turn(client, few, until=extra[-1]))
            print(f"at the end {resident_mb(pid):.0f} MB")


if __name__ == "__main__":
    main()
