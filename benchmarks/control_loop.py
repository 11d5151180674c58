"""The controlled simulation, against libsumo with the same signal changes and no reads, and against sumo-rl.

    python -m benchmarks.control_loop [--seconds 1200] [--rounds 3] [--street NAME ...] [--without-sumo-rl]

All TLs of a street under control in the sumo-rl dialect. A first run with a
random policy notes every setting; then, each in a process of its own, and in turns
of a twelfth of the simulated time (`benchmarks.turns`):

- plain SUMO: stepped over libsumo on its fixed plans, nothing set (it is another traffic: less
  or more of it changes the time);
- libsumo, no reads: the noted settings at their moments, in process. The least
  that this traffic under these signals can cost;
- the same messages, no work: what TraCI and the changes between two processes cost by themselves;
  and the same with a bare Python gRPC echo in place of the policies: what asking another process costs;
- ours over TraCI, through a guard, over libsumo: reads, observations,
  the same random choices, safety, settings, monitor;
- ours over TraCI with 64-64 actors behind the embedded server, as a fleet and as
  single models, over its Unix socket and over TCP (their choices are other ones, so
  their traffic is: the settings of that run are noted and replayed too, and their
  ratio is to that replay);
- sumo-rl from PyPI (pip install sumo-rl) over TraCI and over libsumo, with a random policy.

Then where the time of a decision step goes. Streets: the sample city, cologne8 and
ingolstadt7 where ../shared has them, and a generated grid of 1,000 signals, with as
much traffic as those and, "night", nearly none (both over a tenth of the time).
Budgets: 1.3 times libsumo without inference, 2 times with.
"""

import argparse
import contextlib
import importlib.util
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import thousand_signals
from benchmarks.control_cases import DELTA_S, KINDS, contracts_of, ours
from benchmarks.loop_instruments import Clocked
from benchmarks.turns import ROOT, serve_turns, take_turns
from benchmarks.unary_predict import ECHO, city_file, server
from city import network

SCENARIOS = ROOT.parent / "shared" / "scenarios"
STREETS = {
    "grid": ROOT / "examples" / "grid" / "grid.sumocfg",
    "cologne8": SCENARIOS / "cologne8" / "cologne8.sumocfg",
    "ingolstadt7": SCENARIOS / "ingolstadt7" / "ingolstadt7.sumocfg",
}
GENERATED = {"thousand": thousand_signals.DAY, "night": thousand_signals.NIGHT}
TURNS = 12


def case(kind: str, *arguments: str) -> list[str]:
    """Python's arguments for a case's process."""
    return ["-m", "benchmarks.control_loop", "--one", kind, *arguments]


@contextlib.contextmanager
def serving(folder: Path, cfg: str) -> Iterator[tuple[str, str]]:
    """An embedded server on random 64-64 actors of a street, and their fleet; its addresses: TCP's, its Unix socket's."""
    models = folder / "models"
    models.mkdir()
    code = (
        "import sys; from pathlib import Path; from benchmarks.random_models import write_models; from city import network; "
        "from benchmarks.control_cases import contracts_of; from export.__main__ import main; "
        "contracts = contracts_of(network.of_sumocfg(Path(sys.argv[2]))); write_models(Path(sys.argv[1]), contracts); "
        "sys.exit(main(['fleet', 'city', '--tl', ','.join(c.tl for c in contracts), '--models-dir', sys.argv[1]]))"
    )
    subprocess.run([sys.executable, "-c", code, str(models), cfg], check=True, capture_output=True, cwd=ROOT)
    path, city = folder / "grpc", city_file(folder)
    command = ("-m", "serving", "--models-dir", str(models), "--port", "0", "--grpc_socket_path", str(path), "--city", str(city))
    with server(*command) as address:
        yield address, f"unix:{path}"


def parts(begin_s: float, seconds: float) -> list[float]:
    """Where each turn leads to: whole decisions, so that every case stops at the same moments."""
    decisions = int(seconds) // DELTA_S
    return [begin_s + DELTA_S * (decisions * (k + 1) // TURNS) for k in range(TURNS)]


def measure(name: str, sumocfg: Path, seconds: str, rounds: int, with_sumo_rl: bool) -> None:
    cfg = str(sumocfg)
    street = network.of_sumocfg(sumocfg)
    until = parts(street.begin_s, float(seconds))
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with serving(folder, cfg) as (tcp, unix), server("-c", ECHO) as echo:
            random, served = str(folder / "random.json"), str(folder / "served.json")
            for how, notes in (("traci", random), ("traci-fleet", served)):
                take_turns({how: case("ours", cfg, seconds, how, unix, notes)}, until[-1:])
            base, base_served = "libsumo, no reads", "libsumo, no reads (served)"
            cases = {
                "plain SUMO, fixed plans": ("plain", "", "", "", ""),
                base: ("replay", "", "", random, ""),
                "the same messages, no work": ("exchange", "", "", random, base),
                "ours over TraCI": ("ours", "traci", "", "", base),
                "ours over TraCI and a guard": ("ours", "guard", "", "", base),
                "ours over libsumo": ("ours", "libsumo", "", "", base),
                base_served: ("replay", "", "", served, ""),
                "the same messages, a gRPC echo": ("exchange", "", echo, served, base_served),
                "ours over TraCI, fleet": ("ours", "traci-fleet", unix, "", base_served),
                "ours over TraCI, fleet, TCP": ("ours", "traci-fleet", tcp, "", base_served),
                "ours over TraCI, singles": ("ours", "traci-single", unix, "", base_served),
                "ours over TraCI, singles, TCP": ("ours", "traci-single", tcp, "", base_served),
            }
            if with_sumo_rl:
                cases["sumo-rl over TraCI"] = ("sumo_rl", "traci", "", "", base)
                cases["sumo-rl over libsumo"] = ("sumo_rl", "libsumo", "", "", base)
            times: dict[str, list[float]] = {name: [] for name in cases}
            for k in range(rounds):
                commands = {
                    name: case(kind, cfg, seconds, how, where, notes)
                    for name, (kind, how, where, notes, _) in cases.items()
                    if kind != "sumo_rl" or k == 0  # once is enough for what takes so much longer
                }
                for name_, took in take_turns(commands, until).items():
                    times[name_] += took
            clocked = Clocked()
            for _ in ours(sumocfg, float(seconds), "traci-fleet", unix, "", clocked):
                pass
    print(f"\n{name}: {len(contracts_of(street))} signals, {seconds} s simulated, {rounds} rounds in {TURNS} turns each")
    print("  time of a round, ratio of the sums, median of the turns' ratios:")
    for told, (*_, against) in cases.items():
        found, least = times[told], times.get(against, [])[: len(times[told])]
        ratios = [took / base for took, base in zip(found, least, strict=False)]
        words = f"{sum(found) / sum(least):>8.2f}{statistics.median(ratios):>8.2f} x {against}" if against else ""
        print(f"  {told:<32}{sum(found) * TURNS / len(found):>9.2f} s {words}", flush=True)
    print("  where a decision step's time goes, with the fleet:")
    for part, spent in sorted(clocked.seconds.items(), key=lambda pair: -pair[1]):
        print(f"    {part:<48}{1000 * spent:>9.3f} ms {100 * spent / sum(clocked.seconds.values()):>5.0f} %")


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        kind, cfg, seconds, how, address, notes = sys.argv[2:]
        serve_turns(KINDS[kind](Path(cfg), float(seconds), how, address, notes))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", default="1200")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--street", action="append", choices=[*STREETS, *GENERATED])
    parser.add_argument("--without-sumo-rl", action="store_true")
    args = parser.parse_args()
    with_sumo_rl = not args.without_sumo_rl and importlib.util.find_spec("sumo_rl") is not None
    if not with_sumo_rl:
        print("sumo-rl is left out: " + ("as asked" if args.without_sumo_rl else "pip install sumo-rl to compare with it"))
    with tempfile.TemporaryDirectory() as folder:
        for name in args.street or [*STREETS, *GENERATED]:
            path = STREETS[name] if name in STREETS else thousand_signals.write(Path(folder), GENERATED[name])
            seconds = args.seconds if name in STREETS else str(float(args.seconds) / 10)
            if path.is_file():
                measure(name, path, seconds, args.rounds, with_sumo_rl)
            else:
                print(f"\n{name}: left out, {path} is not there")


if __name__ == "__main__":
    main()
