"""The controlled simulation, against libsumo with the same signal changes and no reads, and against sumo-rl.

    python -m benchmarks.control_loop [--seconds 1200] [--rounds 3] [--street NAME ...] [--without-sumo-rl]

All TLs of a street under control in the sumo-rl dialect. A first run with a
random policy notes every setting; then, in turn, each in a process of its own:

- plain SUMO: the program alone, on its fixed plans (it is another traffic: less
  or more of it changes the time);
- libsumo, no reads: the noted settings at their moments, in process. The least
  that this traffic under these signals can cost;
- the same messages, no work: what TraCI and the changes between two processes cost by themselves;
- ours over TraCI, the same never waiting awake, through a guard, over libsumo: reads, observations,
  the same random choices, safety, settings, monitor;
- ours over TraCI with 64-64 actors behind the embedded server, as a fleet and as
  single models (their choices are other ones, so their traffic is: the settings
  of that run are noted and replayed too, and their ratio is to that replay);
- sumo-rl from PyPI (pip install sumo-rl) over TraCI and over libsumo, with a random policy.

Then where the time of a decision step goes. Streets: the sample city, cologne8 and
ingolstadt7 where ../shared has them, and a generated grid of 1,000 signals, with as
much traffic as those and, "night", nearly none (both over a tenth of the time).
Budgets: 1.3 times libsumo without inference, 2 times with.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import thousand_signals
from benchmarks.loop_instruments import Clocked, Noted
from benchmarks.sumo_rl_loop import MIN_GREEN_S, YELLOW_S, sumo_rl
from benchmarks.unary_predict import city_file, server
from city import config, network
from city.network import StreetNetwork
from controller.assembly import assemble
from controller.guard.relay import Frames
from controller.guard.start import open_guarded
from controller.served_fleet import ServedFleet
from controller.served_policy import ServedPolicies
from controller.sumo import libsumo_link, start, traci_link
from controller.sumo.programs import sumo_program
from export import contract
from protos import policy_pb2 as pb
from serving.client import Client

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT.parent / "shared" / "scenarios"
STREETS = {
    "grid": ROOT / "examples" / "grid" / "grid.sumocfg",
    "cologne8": SCENARIOS / "cologne8" / "cologne8.sumocfg",
    "ingolstadt7": SCENARIOS / "ingolstadt7" / "ingolstadt7.sumocfg",
}
GENERATED = {"thousand": thousand_signals.DAY, "night": thousand_signals.NIGHT}
QUIET = ["--no-step-log", "true", "--no-warnings", "true", "--seed", "42", "--time-to-teleport", "-1"]


class RandomPolicies:
    """Greens at random, the same in every run."""

    def __init__(self, contracts: list[pb.Policy]) -> None:
        sizes = np.array([policy.action.size for policy in contracts])
        # drawn beforehand: what is measured is the loop, not the dice
        drawn = np.random.default_rng(0).integers(sizes, size=(4096 if len(sizes) < 100 else 256, len(sizes)))
        self._actions = itertools.cycle([dict(zip([policy.tl for policy in contracts], row, strict=True)) for row in drawn])

    def ask(self, observations, observed_s=None):  # type: ignore[no-untyped-def]
        actions = next(self._actions)
        return {tl: actions[tl] for tl in observations}


def contracts_of(street: StreetNetwork) -> list[pb.Policy]:
    """A sumo-rl contract for every signal with a choice of greens."""
    city = config.City(Path("city.toml"))
    return [
        contract.build(city, config.TL((signal.id,), "sumo-rl", f"TL{k}", yellow_s=YELLOW_S, min_green_s=MIN_GREEN_S), street)
        for k, signal in enumerate(street.signals.values())
        if len(signal.first_program.greens) > 1
    ]


def ours(sumocfg: Path, seconds: float, how: str, address: str, notes: str, clocked: Clocked | None = None) -> float:
    """Our loop; wall time in s, first step to last. `how`: traci, asleep, libsumo or guard; behind a dash fleet or single."""
    street = network.of_sumocfg(sumocfg)
    contracts = contracts_of(street)
    transport, _, inference = how.partition("-")
    policies: Any = RandomPolicies(contracts)
    fleet = None
    if inference:
        client = Client(address)
        contracts = [client.policy(policy.tl) for policy in contracts]
        by_tl = {policy.tl: policy for policy in contracts}
        if inference == "fleet":
            fleet = ServedFleet(client, "city", by_tl, None)
            fleet.look()
            if fleet.covered is None or len(fleet.covered.tls) != len(contracts):
                raise RuntimeError("the fleet does not cover the street")
        policies = ServedPolicies(client, by_tl, None, 5.0, fleet=fleet)
    arguments = ["-c", str(sumocfg), *QUIET]
    if transport == "libsumo":
        link: Any = libsumo_link.start_libsumo(arguments)
    elif transport == "guard":
        link = open_guarded(None, arguments, 1, None, 0, 60.0, lambda: False)
    else:
        if transport == "asleep":
            traci_link.AWAKE_S = 0.0
        link = start.start(arguments, 1, lambda: False)
    steps = assemble(link, street, contracts, policies, config.Safety(), config.Controller())
    noted = Noted(steps, link) if notes else None
    if clocked is not None:
        for owner, method, name in (
            (link, "_exchange", "SUMO: simulating, reading, and the way there"), (link, "read", "readings decoded"),
            (link, "go", "settings encoded and sent"), (steps, "_settings", "wishes, safety rules"),
            (steps, "_decide", "observations, actions taken"), (policies, "ask", "policies asked"),
            (steps, "watch", "monitor"), (steps, "step", "the rest"),
        ):  # fmt: skip
            clocked.wrap(owner, method, name)
    end_s = steps.now + seconds
    begin = time.perf_counter()
    while steps.now < end_s:
        steps.step(end_s)
    took = time.perf_counter() - begin
    link.close()
    if sum(steps.tally.failures.values()) or sum(steps.tally.alarms.values()):
        raise RuntimeError(
            f"{steps.tally.failures} answers were missing, alarms {steps.tally.alarms}: the figures would mean nothing"
        )
    if noted is not None:
        noted.write(Path(notes))
    if clocked is not None:
        clocked.seconds = {name: spent / steps.tally.steps for name, spent in clocked.seconds.items()}
    return took


def replay(sumocfg: Path, seconds: float, how: str, address: str, notes: str) -> float:
    """The noted settings over libsumo, no reads."""
    steps = json.loads(Path(notes).read_text())["steps"]
    link = libsumo_link.start_libsumo(["-c", str(sumocfg), *QUIET])
    light, simulate = link.api.trafficlight, link.api.simulationStep
    begin = time.perf_counter()
    for settings, until_s in steps:
        for signal, state in settings:
            light.setRedYellowGreenState(signal, state)
        simulate(until_s)
    took = time.perf_counter() - begin
    link.close()
    return took


def exchange(sumocfg: Path, seconds: float, how: str, address: str, notes: str) -> float:
    """The noted messages over TraCI, answers thrown away: what no controller in a process of its own can be faster than."""
    exchanges = [(bytes.fromhex(text), count) for text, count in json.loads(Path(notes).read_text())["exchanges"]]
    link = start.start(["-c", str(sumocfg), *QUIET], 1, lambda: False)
    link.version()  # SUMO listens before it has loaded its network, and answers behind that
    begin = time.perf_counter()
    for sent, count in exchanges:
        link.socket.sendall(sent)
        frames = Frames()
        while count:
            count -= sum(1 for _ in frames.feed(link.socket.recv(1 << 20)))
    took = time.perf_counter() - begin
    link.close()
    return took


def plain(sumocfg: Path, seconds: float, how: str, address: str, notes: str) -> float:
    """SUMO alone, on the fixed plans, start-up included."""
    end = network.of_sumocfg(sumocfg).begin_s + seconds
    begin = time.perf_counter()
    subprocess.run([sumo_program(), "-c", str(sumocfg), *QUIET, "--end", str(end)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


CASES: tuple[Callable[..., float], ...] = (ours, replay, exchange, plain, sumo_rl)
KINDS = {case.__name__: case for case in CASES}


def alone(kind: str, *arguments: str) -> float:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.control_loop", "--one", kind, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def serving(folder: Path, cfg: str) -> Iterator[str]:
    """An embedded server on random 64-64 actors of a street, and their fleet."""
    models = folder / "models"
    models.mkdir()
    code = (
        "import sys; from pathlib import Path; from benchmarks.random_models import write_models; from city import network; "
        "from benchmarks.control_loop import contracts_of; from export.__main__ import main; "
        "contracts = contracts_of(network.of_sumocfg(Path(sys.argv[2]))); write_models(Path(sys.argv[1]), contracts); "
        "sys.exit(main(['fleet', 'city', '--tl', ','.join(c.tl for c in contracts), '--models-dir', sys.argv[1]]))"
    )
    subprocess.run([sys.executable, "-c", code, str(models), cfg], check=True, capture_output=True, cwd=ROOT)
    with server("-m", "serving", "--models-dir", str(models), "--port", "0", "--city", str(city_file(folder))) as address:
        yield address


def measure(name: str, sumocfg: Path, seconds: str, rounds: int, with_sumo_rl: bool) -> None:
    cfg = str(sumocfg)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with serving(folder, cfg) as address:
            random, served = str(folder / "random.json"), str(folder / "served.json")
            alone("ours", cfg, seconds, "traci", "", random)
            alone("ours", cfg, seconds, "traci-fleet", address, served)
            base, base_served = "libsumo, no reads", "libsumo, no reads (served)"
            cases = {
                "plain SUMO, fixed plans": ("plain", "", "", "", ""),
                base: ("replay", "", "", random, ""),
                "the same messages, no work": ("exchange", "", "", random, base),
                "ours over TraCI": ("ours", "traci", "", "", base),
                "ours over TraCI, always asleep": ("ours", "asleep", "", "", base),
                "ours over TraCI and a guard": ("ours", "guard", "", "", base),
                "ours over libsumo": ("ours", "libsumo", "", "", base),
                base_served: ("replay", "", "", served, ""),
                "ours over TraCI, fleet": ("ours", "traci-fleet", address, "", base_served),
                "ours over TraCI, single calls": ("ours", "traci-single", address, "", base_served),
            }
            if with_sumo_rl:
                cases["sumo-rl over TraCI"] = ("sumo_rl", "traci", "", "", base)
                cases["sumo-rl over libsumo"] = ("sumo_rl", "libsumo", "", "", base)
            times: dict[str, list[float]] = {case: [] for case in cases}
            for k in range(rounds):
                for case, (kind, how, where, notes, _) in cases.items():
                    if kind != "sumo_rl" or k == 0:  # once is enough for what takes so much longer
                        times[case].append(alone(kind, cfg, seconds, how, where, notes))
            clocked = Clocked()
            took = ours(sumocfg, float(seconds), "traci-fleet", address, "", clocked)
    signals = len(contracts_of(network.of_sumocfg(sumocfg)))
    print(f"\n{name}: {signals} signals, {seconds} s simulated, {rounds} rounds")
    print("  best time, ratio of the best times, median of the rounds' ratios:")
    for case, (*_, against) in cases.items():
        # a round's cases follow one another, so a machine that is slower for some minutes is so for both
        found, base = times[case], times.get(against, [])
        ratios = [took / least for took, least in zip(found, base, strict=False)]
        told = f"{min(found) / min(base):>8.2f}{statistics.median(ratios):>8.2f} x {against}" if against else ""
        print(f"  {case:<32}{min(found):>9.2f} s {told}", flush=True)
    print(f"  where a decision step's time goes, with the fleet ({took:.2f} s in all):")
    for part, spent in sorted(clocked.seconds.items(), key=lambda pair: -pair[1]):
        print(f"    {part:<48}{1000 * spent:>9.3f} ms {100 * spent / sum(clocked.seconds.values()):>5.0f} %")


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        kind, cfg, seconds, how, address, notes = sys.argv[2:]
        print(KINDS[kind](Path(cfg), float(seconds), how, address, notes))
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
