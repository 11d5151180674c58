"""One Predict of a fleet against single Predicts, one after another and as futures, through the embedded server.

    python -m benchmarks.fleet [--tls 10 100 1000] [--calls 100] [--shapes 1]

64-64 actors with 64 inputs and 4 outputs, written as .npz, exported, built into a fleet
and served; client and server are separate processes. `--shapes N` gives the TLs N
different input and output sizes. Budget: 4 ms for 1,000 TLs.
"""

import contextlib
import io
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import server, serving_command, times_ms
from benchmarks.random_models import write_checkpoint
from serving.client import Client

TOLERANCE = 1e-6


def prepare(target: str, tls: int, shapes: int) -> None:
    """Write checkpoints, models and fleet under a folder; run in a process of its own."""
    from export.__main__ import main as export

    folder = Path(target)
    (folder / "checkpoints").mkdir()
    for k in range(tls):
        write_checkpoint(folder / "checkpoints" / f"TL{k:04d}_trial_1.npz", 64 - k % shapes, 4 - k % shapes % 4, k)
    with contextlib.redirect_stdout(io.StringIO()):
        export(["--model-path", str(folder / "checkpoints"), "--tl", "all", "--models-dir", str(folder / "models")])
    begin = time.perf_counter()
    if export(["fleet", "city", "--tl", "all", "--models-dir", str(folder / "models")]):
        raise RuntimeError("the fleet was not built")
    print(f"fleet of {tls} built and verified in {time.perf_counter() - begin:.1f} s")


def measure(tls: int, calls: int, shapes: int) -> None:
    """Export and serve a fleet, compare it with single models, and print the latencies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        harness.in_process("benchmarks.fleet", "prepare", name, tls, shapes)
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
                times_ms(call, 2)
                results[case] = times_ms(call, count)
            client.close()
    fleet = float(np.median(results["one Predict of the fleet"]))
    for case, times in results.items():
        p50, p99 = harness.percentiles(times)
        print(
            f"{tls:>6} TLs  {case:<36} p50 {p50:>9.2f} ms  p99 {p99:>9.2f} ms  {p50 / fleet:>7.1f} x the fleet",
            flush=True,
        )


def main() -> None:
    parser = harness.parser(__doc__)
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
