"""A city of thousands of TLs on one machine: fleets on the embedded server, and a controller's decision step.

    python -m benchmarks.large_city [--tls 1000 5000 10000] [--signals 1000 4000] [--seconds 100]

Fleets: 64-64 actors with 64 inputs and 4 outputs, written as .npz and exported; the fleet
alone is served (as `greenserve serve config` does), and a client in a process of its own
requests all TLs at once. Decision steps: generated grids with the traffic of
`benchmarks.thousand_signals`, controlled over TraCI in the sumo-rl dialect with random
actions; the controller's own part is printed beside SUMO's.
"""

import contextlib
import io
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import harness, thousand_signals
from benchmarks.control_cases import TRACI, controlled
from benchmarks.harness import memory_mb, server_process, serving_command, times_ms
from benchmarks.loop_instruments import Stopwatch
from benchmarks.random_models import write_checkpoint
from serving.client import Client

SUMO_PART = "SUMO: simulating, reading, transport"


def export_fleet(target: str, tls: int) -> None:
    """Write checkpoints and models, and a fleet in a folder of its own; run in a process of its own."""
    from export.__main__ import main as export

    folder = Path(target)
    (folder / "checkpoints").mkdir()
    for k in range(tls):
        write_checkpoint(folder / "checkpoints" / f"TL{k:05d}_trial_1.npz", 64, 4, k)
    models = ("--models-dir", str(folder / "models"))
    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        if export(["--model-path", str(folder / "checkpoints"), "--tl", "all", *models]):
            raise RuntimeError("an export failed")
    exported = time.perf_counter()
    if export(["fleet", "city", "--tl", "all", *models]):
        raise RuntimeError("the fleet was not built")
    built = time.perf_counter()
    (folder / "served").mkdir()
    (folder / "models" / "city").rename(folder / "served" / "city")
    peak_mb = memory_mb("self", "VmHWM")
    print(
        f"{tls:>6} TLs  exported in {exported - begin:.0f} s, fleet built in {built - exported:.0f} s, peak "
        f"{peak_mb:.0f} MB"
    )


def measure_fleet(tls: int, calls: int) -> None:
    """Export and serve a fleet, and print its size, latency and memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        harness.in_process("benchmarks.large_city", "export_fleet", name, tls)
        size_mb = sum(path.stat().st_size for path in (folder / "served").rglob("*") if path.is_file()) / 1e6
        begin = time.perf_counter()
        with server_process(*serving_command(folder / "served")) as (address, pid), Client(address) as client:
            ready_s = time.perf_counter() - begin
            fleet = client.fleet("city", timeout_s=60)
            rng = np.random.default_rng(0)
            observations = {tl: rng.random(64).astype(np.float32) for tl in fleet.versions}
            if len(client.predict_fleet(fleet, observations, timeout_s=60)) != tls:
                raise RuntimeError("the fleet does not answer for all TLs")
            p50, p99 = harness.percentiles(
                times_ms(lambda: client.predict_fleet(fleet, observations, timeout_s=60), calls)
            )
            server_mb = memory_mb(pid)
    print(f"{tls:>6} TLs  fleet of {size_mb:.0f} MB, ready after {ready_s:.1f} s, server {server_mb:.0f} MB")
    print(
        f"{tls:>6} TLs  Predict p50 {p50:.1f} ms, p99 {p99:.1f} ms, {tls * 64 * 4 / 1e6:.1f} MB of observations",
        flush=True,
    )


def measure_decision_step(thousands: int, seconds: float) -> None:
    """Control a grid of thousands of signals, and print the parts of a decision step."""
    with tempfile.TemporaryDirectory() as name:
        sumocfg = thousand_signals.write(Path(name), thousand_signals.DAY, thousands)
        stopwatch = Stopwatch()
        for _ in controlled(sumocfg, seconds, TRACI, "", "", stopwatch=stopwatch):
            pass
    controller_s = sum(part_s for part, part_s in stopwatch.seconds.items() if part != SUMO_PART)
    per_signal = f"{1e3 * controller_s / thousands:.0f} us a signal"
    print(
        f"{1000 * thousands:>6} signals  decision step: own part {1000 * controller_s:.0f} ms ({per_signal}), "
        f"SUMO and transport {1000 * stopwatch.seconds[SUMO_PART]:.0f} ms; controller "
        f"{memory_mb('self', 'VmHWM'):.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--tls", type=int, nargs="*", default=[1000, 5000, 10_000], help="sizes of fleets (default: %(default)s)"
    )
    parser.add_argument("--calls", type=int, default=50, help="Predicts of each fleet (default: %(default)s)")
    parser.add_argument("--signals", type=int, nargs="*", default=[1000, 4000], help="sizes of streets, in thousands")
    parser.add_argument(
        "--seconds", type=float, default=100.0, help="simulated time of a street (default: %(default)s)"
    )
    args = parser.parse_args()
    for tls in args.tls:
        measure_fleet(tls, args.calls)
    for signals in args.signals:
        measure_decision_step(signals // 1000, args.seconds)


if __name__ == "__main__":
    main()
