"""One Predict of a fleet against single Predicts, one after another and as futures, through the embedded server.

    python -m benchmarks.fleet [--tls 10 100 1000] [--calls 100] [--shapes 1]

64-64 actors with 64 inputs and 4 outputs, written as .npz, exported, built into a fleet
and served; client and server are separate processes. `--shapes N` gives the TLs N
different input and output sizes. Budget: 4 ms for 1,000 TLs.
"""

import argparse
import contextlib
import io
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.unary_predict import server, serving_command
from serving.client import Client

HIDDEN = (64, 64)
TOLERANCE = 1e-6


def write_checkpoint(path: Path, inputs: int, outputs: int, seed: int) -> None:
    """Write an actor with random weights as .npz."""
    rng = np.random.default_rng(seed)
    sizes = [inputs, *HIDDEN, outputs]
    arrays = {}
    for k, (a, b) in enumerate(itertools.pairwise(sizes)):
        layer = f"actor/dense_{k}" if k else "actor/dense"
        arrays[f"{layer}/kernel"] = (rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32)
        arrays[f"{layer}/bias"] = (rng.standard_normal(b) / 10).astype(np.float32)
    np.savez(path, **arrays)


def prepare(folder: Path, tls: int, shapes: int) -> None:
    """Write checkpoints, models and fleet under a folder; run in a process of its own."""
    from export.__main__ import main as export

    (folder / "checkpoints").mkdir()
    for k in range(tls):
        write_checkpoint(folder / "checkpoints" / f"TL{k:04d}_trial_1.npz", 64 - k % shapes, 4 - k % shapes % 4, k)
    with contextlib.redirect_stdout(io.StringIO()):
        export(["--model-path", str(folder / "checkpoints"), "--tl", "all", "--models-dir", str(folder / "models")])
    begin = time.perf_counter()
    if export(["fleet", "city", "--tl", "all", "--models-dir", str(folder / "models")]):
        raise RuntimeError("the fleet was not built")
    print(f"fleet of {tls} built and verified in {time.perf_counter() - begin:.1f} s")


def times(call: Callable[[], object], calls: int) -> list[float]:
    """Wall time in ms of each call."""
    times_ms = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times_ms.append(1000 * (time.perf_counter() - begin))
    return times_ms


def measure(tls: int, calls: int, shapes: int) -> None:
    """Export and serve a fleet, compare it with single models, and print the latencies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = "import sys; from pathlib import Path; from benchmarks.fleet import prepare; "
        code += f"prepare(Path(sys.argv[1]), {tls}, {shapes})"
        subprocess.run([sys.executable, "-c", code, name], check=True, stderr=subprocess.DEVNULL)
        with server(*serving_command(folder / "models")) as address:
            client = Client(address)
            members = client.contract("city").members
            rng = np.random.default_rng(0)
            observations = {m.tl: rng.random(m.observation_size).astype(np.float32) for m in members}
            fleet_observation = np.concatenate([observations[m.tl] for m in members])
            actions = client.predict("city", fleet_observation, timeout_s=30)["action"].reshape(-1)
            for m in members:
                action = client.predict(m.tl, observations[m.tl], timeout_s=30)["action"].reshape(-1)
                if np.abs(actions[m.action_begin : m.action_begin + m.action_size] - action).max() > TOLERANCE:
                    raise RuntimeError(f"the fleet and the model of {m.tl} do not agree")
            cases = {
                "one Predict of the fleet": (lambda: client.predict("city", fleet_observation, timeout_s=30), calls),
                "single Predicts, one after another": (
                    lambda: [client.predict(tl, x, timeout_s=30) for tl, x in observations.items()],
                    max(3, calls // tls),
                ),
                "single Predicts, as futures": (
                    lambda: client.predict_many(observations, timeout_s=30),
                    max(3, calls // 10),
                ),
            }
            results = {}
            for case, (call, count) in cases.items():
                times(call, 2)
                results[case] = times(call, count)
            client.close()
    fleet = float(np.median(results["one Predict of the fleet"]))
    for case, times_ms in results.items():
        p50, p99 = np.percentile(times_ms, [50, 99])
        print(
            f"{tls:>6} TLs  {case:<36} p50 {p50:>9.2f} ms  p99 {p99:>9.2f} ms  {p50 / fleet:>7.1f} x the fleet",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tls", type=int, nargs="+", default=[10, 100, 1000], help="sizes of the fleets (default: %(default)s)"
    )
    parser.add_argument("--calls", type=int, default=100, help="calls per round (default: %(default)s)")
    parser.add_argument("--shapes", type=int, default=1, help="different shapes of actors (default: %(default)s)")
    args = parser.parse_args()
    for tls in args.tls:
        measure(tls, args.calls, args.shapes)


if __name__ == "__main__":
    main()
