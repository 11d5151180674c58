"""The controlled simulation over TraCI, against libsumo with the same signal changes and no reads.

    python -m benchmarks.control_loop [--seconds 1200] [--rounds 3] [--street NAME ...]

All TLs of a street under control in the sumo-rl dialect. A first run with a
random policy notes every setting; then, in turn, each in a process of its own:

- plain SUMO: the program alone, on its fixed plans (it is another traffic: less
  or more of it changes the time);
- libsumo, no reads: the noted settings at their moments, in process. The least
  that this traffic under these signals can cost;
- ours over TraCI, no inference: reads, observations, the same random choices,
  safety, settings;
- ours over TraCI, inference: the same with 64-64 actors through the embedded
  server (its choices are other ones, so its traffic is: the settings of that
  run are noted and replayed too, and its ratio is to that replay).

Streets: the sample city, and cologne8 and ingolstadt7 where ../shared has them.
Budgets: 1.3 times libsumo without inference, 2 times with.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.unary_predict import city_file, server
from city import config, network
from city.network import StreetNetwork
from controller.assembly import assemble
from controller.decision_step import DecisionSteps
from controller.served_policy import ServedPolicies
from controller.sumo import libsumo_link, start
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
QUIET = ["--no-step-log", "true", "--no-warnings", "true", "--seed", "42", "--time-to-teleport", "-1"]


class RandomPolicies:
    """Greens at random, the same in every run."""

    def __init__(self, contracts: list[pb.Policy]) -> None:
        sizes = np.array([policy.action.size for policy in contracts])
        # drawn beforehand: what is measured is the loop, not the dice
        drawn = np.random.default_rng(0).integers(sizes, size=(4096, len(sizes)))
        self._actions = itertools.cycle([dict(zip([policy.tl for policy in contracts], row, strict=True)) for row in drawn])

    def ask(self, observations, observed_s=None):  # type: ignore[no-untyped-def]
        actions = next(self._actions)
        return {tl: actions[tl] for tl in observations}


def contracts_of(street: StreetNetwork) -> list[pb.Policy]:
    """A sumo-rl contract for every signal with a choice of greens."""
    city = config.City(Path("city.toml"))
    return [
        contract.build(city, config.TL((signal.id,), "sumo-rl", f"TL{k}", yellow_s=3.0), street)
        for k, signal in enumerate(street.signals.values())
        if len(signal.first_program.greens) > 1
    ]


class Noted:
    """Notes every message of settings on its way to SUMO."""

    def __init__(self, steps: DecisionSteps) -> None:
        self.steps: list[tuple[list[tuple[str, str]], float]] = []
        go = steps._link.go

        def noting(settings, until_s):  # type: ignore[no-untyped-def]
            self.steps.append(([(s.signal, s.state) for s in settings], until_s))
            go(settings, until_s)

        steps._link.go = noting  # type: ignore[method-assign]


def ours(sumocfg: Path, seconds: float, address: str | None, notes: Path | None) -> float:
    """Our loop over TraCI; wall time in s from the first step to the last."""
    street = network.of_sumocfg(sumocfg)
    contracts = contracts_of(street)
    client = Client(address) if address else None
    if client is not None:
        contracts = [client.policy(policy.tl) for policy in contracts]
        policies = ServedPolicies(client, {policy.tl: policy for policy in contracts}, None, 5.0)
    else:
        policies = RandomPolicies(contracts)
    link = start.start(["-c", str(sumocfg), *QUIET], 1, lambda: False)
    steps = assemble(link, street, contracts, policies, config.Safety(), config.Controller())
    noted = Noted(steps) if notes else None
    end_s = steps.now + seconds
    begin = time.perf_counter()
    while steps.now < end_s:
        steps.step(end_s)
    took = time.perf_counter() - begin
    link.close()
    if sum(steps.tally.failures.values()):
        raise RuntimeError(f"{steps.tally.failures} answers were missing: the figures would mean nothing")
    if noted is not None and notes is not None:
        notes.write_text(json.dumps(noted.steps))
    return took


def replay(sumocfg: Path, notes: Path) -> float:
    """The noted settings over libsumo, no reads."""
    steps = json.loads(notes.read_text())
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


def plain(sumocfg: Path, seconds: float) -> float:
    """SUMO alone, on the fixed plans, start-up included."""
    end = network.of_sumocfg(sumocfg).begin_s + seconds
    begin = time.perf_counter()
    subprocess.run([sumo_program(), "-c", str(sumocfg), *QUIET, "--end", str(end)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def alone(*arguments: str) -> float:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.control_loop", "--one", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.splitlines()[-1])


def one(kind: str, sumocfg: str, seconds: str, third: str, notes: str) -> float:
    path = Path(notes) if notes else None
    if kind == "replay":
        return replay(Path(sumocfg), Path(notes))
    if kind == "plain":
        return plain(Path(sumocfg), float(seconds))
    return ours(Path(sumocfg), float(seconds), third or None, path)


def measure(name: str, sumocfg: Path, seconds: str, rounds: int) -> None:
    cfg = str(sumocfg)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        models = folder / "models"
        models.mkdir()
        code = (
            "import sys; from pathlib import Path; from benchmarks.random_models import write_models; from city import network; "
            "from benchmarks.control_loop import contracts_of; "
            "write_models(Path(sys.argv[1]), contracts_of(network.of_sumocfg(Path(sys.argv[2]))))"
        )
        subprocess.run([sys.executable, "-c", code, str(models), cfg], check=True, stderr=subprocess.DEVNULL, cwd=ROOT)
        serving = ("-m", "serving", "--models-dir", str(models), "--port", "0", "--city", str(city_file(folder)))
        with server(*serving) as address:
            notes = {"": str(folder / "random.json"), address: str(folder / "served.json")}
            for third, path in notes.items():
                alone("ours", cfg, seconds, third, path)
            cases = {
                "plain SUMO, fixed plans": ("plain", cfg, seconds, "", ""),
                "libsumo, no reads": ("replay", cfg, seconds, "", notes[""]),
                "ours over TraCI, no inference": ("ours", cfg, seconds, "", ""),
                "libsumo, no reads (served)": ("replay", cfg, seconds, "", notes[address]),
                "ours over TraCI, inference": ("ours", cfg, seconds, address, ""),
            }
            best = dict.fromkeys(cases, float("inf"))
            for _ in range(rounds):
                for case, arguments in cases.items():
                    best[case] = min(best[case], alone(*arguments))
    signals = len(contracts_of(network.of_sumocfg(sumocfg)))
    print(f"\n{name}: {signals} signals, {seconds} s simulated, best of {rounds}")
    base = {"ours over TraCI, no inference": "libsumo, no reads", "ours over TraCI, inference": "libsumo, no reads (served)"}
    for case, took in best.items():
        ratio = f"{took / best[base[case]]:.2f} x {base[case]}" if case in base else ""
        print(f"  {case:<32}{took:>8.2f} s   {ratio}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(one(*sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", default="1200")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--street", action="append", choices=STREETS)
    args = parser.parse_args()
    for name in args.street or STREETS:
        if STREETS[name].is_file():
            measure(name, STREETS[name], args.seconds, args.rounds)
        else:
            print(f"\n{name}: left out, {STREETS[name]} is not there")


if __name__ == "__main__":
    main()
