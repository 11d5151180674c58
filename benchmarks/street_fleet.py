"""One Predict of the shipped policy for a fleet of the junctions of random streets, which have many sizes.

    python -m benchmarks.street_fleet [--tls 1000] [--calls 100]

The streets are those of `greenserve pretrain train --streets synthetic`; their TLs are exported with --pretrained,
built into a fleet and served by the embedded server; client and server are separate processes. The observations are
random numbers.
Budget: 12 ms for 1,000 TLs.
"""

import contextlib
import io
import itertools
import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import server, serving_command, times_ms
from serving.client import Client


def prepare(target: str, count: int) -> None:
    """Write the models of `count` TLs and their fleet under a folder; run in a process of its own."""
    from export.__main__ import main as export
    from pretraining.streets import SUMOCFG, city_of, synthetic

    folder = Path(target)
    models, tls = folder / "models", 0
    for seed in itertools.count():
        (street,) = synthetic(folder / "streets", [seed])
        signals = sorted(city_of(street).tls)[: count - tls]
        tables = [
            f"[tl.{json.dumps(f'{seed}-{s}')}]\nsignals = {json.dumps([s])}\ndialect = 'street'\n" for s in signals
        ]
        city = street / "city.toml"
        city.write_text(f"[network]\nsumocfg = {json.dumps(SUMOCFG)}\n" + "".join(tables))
        with contextlib.redirect_stdout(io.StringIO()):
            if export(["--city", str(city), "--pretrained", "--tl", "all", "--models-dir", str(models)]):
                raise RuntimeError(f"the TLs of {street.name} were not exported")
        tls += len(signals)
        if tls == count:
            break
    if export(["fleet", "city", "--tl", "all", "--models-dir", str(models)]):
        raise RuntimeError("the fleet was not built")
    print(f"{tls} TLs of {seed + 1} streets")


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--tls", type=int, default=1000, help="TLs of the fleet (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=100, help="calls that are measured (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        harness.in_process("benchmarks.street_fleet", "prepare", name, args.tls)
        with server(*serving_command(Path(name) / "models")) as address, Client(address) as client:
            size = sum(member.observation_size for member in client.contract("city").members)
            observation = np.random.default_rng(0).random(size).astype(np.float32)
            call = lambda: client.predict("city", observation, timeout_s=30)  # noqa: E731 - called in a loop
            times_ms(call, 10)
            p50, p99 = harness.percentiles(times_ms(call, args.calls))
    print(f"one Predict, {size:,} numbers: p50 {p50:.2f} ms, p99 {p99:.2f} ms")


if __name__ == "__main__":
    main()
