"""The controlled simulation, against libsumo with the same signal changes and no reads, and against sumo-rl.

    python -m benchmarks.control_loop [--seconds 1200] [--rounds 3] [--street NAME ...] [--dialect street]
    [--without-sumo-rl]

All TLs of a street are controlled, in the sumo-rl dialect, or with --dialect street by the
shipped policy (64-64 actors are left out then). A first run with a random
policy, and one with a served fleet, are recorded. Then the cases run interleaved, each in
a process of its own, in turns of a twelfth of the simulated time (`benchmarks.turns`):

- plain SUMO: stepped over libsumo with its fixed-time programs, no commands (the traffic
  differs, and with it the time);
- libsumo, no reads: the recorded commands in process, a lower bound for this traffic under
  these signals;
- the same messages, no work: the cost of TraCI and of switching between two processes;
  and the same with a call of a bare Python gRPC echo per decision step;
- the controller over TraCI, through a guard, over libsumo: reads, observations, the same
  random actions, safety rules, commands, monitors;
- the controller with served 64-64 actors, as a fleet over TCP and over a Unix socket, and
  as single models over TCP; they are compared with the replay of the recorded run with
  the fleet, and with the same run with a bare gRPC echo in the policies' place;
- sumo-rl from PyPI (pip install sumo-rl) over TraCI and over libsumo, with a random policy.

Last, the parts of a decision step. Streets: the sample city, cologne8 and ingolstadt7 if
../shared has them, and a generated grid of 1,000 signals with as much traffic as those,
and with nearly none ("night"); both of the latter for a tenth of the time.
Budgets: over TraCI without inference 1.3 x libsumo, no reads; with a fleet over TCP
1.15 x the same run with the gRPC echo. With --dialect street and a fleet: 1.6 x libsumo, no
reads, and 0.12 ms a signal of our own in a decision step.
"""

import contextlib
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import harness, sumo_rl_loop, thousand_signals
from benchmarks.control_cases import KINDS, REQUEST, SUMO, contracts_of, controlled, tls_of
from benchmarks.harness import ECHO, ROOT, server, serving_command
from benchmarks.loop_instruments import Stopwatch
from benchmarks.sumo_rl_loop import DELTA_S
from benchmarks.turns import Command, serve_turns, take_turns
from city import network

_sumo_rl = importlib.util.find_spec("sumo_rl")
SUMO_RL_STREETS = Path(_sumo_rl.origin or "").parent / "nets" / "RESCO" if _sumo_rl is not None else Path("sumo_rl")
SCENARIOS = ROOT.parent / "shared" / "scenarios"
STREETS = {
    "grid": ROOT / "examples" / "grid" / "grid.sumocfg",
    "cologne8": SCENARIOS / "cologne8" / "cologne8.sumocfg",
    "ingolstadt7": SCENARIOS / "ingolstadt7" / "ingolstadt7.sumocfg",
    "ingolstadt21": SUMO_RL_STREETS / "ingolstadt21" / "ingolstadt21.sumocfg",
}
GENERATED = {"thousand": thousand_signals.DAY, "night": thousand_signals.NIGHT}
TURNS = 12


class Case(NamedTuple):
    command: Command
    references: tuple[str, ...] = ()
    """Cases to compare it with."""
    once: bool = False
    """True if it runs in the first round only, because it takes much longer than the others."""


def command(kind: str, *arguments: str) -> Command:
    """The process of a case of `benchmarks.control_cases`."""
    return Command(("-m", "benchmarks.control_loop", "--case", kind, *arguments))


@contextlib.contextmanager
def serving(folder: Path, cfg: Path, dialect: str) -> Iterator[tuple[str, str]]:
    """An embedded server with the models of a street and their fleet; yields its TCP and its Unix address."""
    models = folder / "models"
    models.mkdir()
    harness.in_process("benchmarks.control_loop", "prepare", str(models), str(cfg), dialect)
    socket = folder / "grpc"
    with server(*serving_command(models, "--grpc_socket_path", str(socket))) as address:
        yield address, f"unix:{socket}"


def prepare(target: str, sumocfg: str, dialect: str) -> None:
    """Write the models of a street's TLs, random 64-64 actors or the shipped policy, and their fleet."""
    from benchmarks.random_models import write_models
    from export.__main__ import main as export

    models, cfg = Path(target), Path(sumocfg)
    street = network.of_sumocfg(cfg)
    tls = tls_of(street, dialect)
    if dialect == "street":
        city = models.parent / "city.toml"
        tables = [f"[tl.{name}]\nsignals = {json.dumps(tl.signals)}\ndialect = 'street'\n" for name, tl in tls.items()]
        city.write_text(f"[network]\nsumocfg = {json.dumps(str(cfg))}\n" + "".join(tables))
        arguments = ["--city", str(city), "--pretrained", "--tl", "all", "--models-dir", str(models)]
        if export(arguments):
            raise RuntimeError("the shipped policy was not exported")
    else:
        write_models(models, contracts_of(street, dialect))
    if export(["fleet", "city", "--tl", ",".join(tls), "--models-dir", str(models)]):
        raise RuntimeError("the fleet was not built")


def parts(begin_s: float, seconds: float) -> list[float]:
    """The simulated second at the end of each turn: whole decisions, so that all cases stop at the same seconds."""
    decisions = int(seconds) // DELTA_S
    return [begin_s + DELTA_S * (decisions * (k + 1) // TURNS) for k in range(TURNS)]


def cases_of(
    sumocfg: Path, seconds: str, folder: Path, tcp: str, unix: str, echo: str, dialect: str, with_sumo_rl: bool
) -> dict[str, Case]:
    """The cases of a street. `tcp`, `unix`: addresses of the model server. `echo`: address of the echo server."""
    random, served = str(folder / "random.json"), str(folder / "served.json")
    base, base_served = "libsumo, no reads", "libsumo, no reads (fleet's run)"
    with_echo = "controller over TraCI, gRPC echo"
    fleet_references = (with_echo, base_served)
    # name: (kind, variant, address, recording, references)
    table: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
        "plain SUMO, fixed-time programs": ("plain", "", "", "", ()),
        base: ("replay", "", "", random, ()),
        "the same messages, no work": ("exchange", "", "", random, (base,)),
        "controller over TraCI": ("controlled", "traci", "", "", (base,)),
        "controller over TraCI and a guard": ("controlled", "guard", "", "", (base,)),
        "controller over libsumo": ("controlled", "libsumo", "", "", (base,)),
        base_served: ("replay", "", "", served, ()),
        "the same messages, gRPC echo": ("exchange", "", echo, served, (base_served,)),
        with_echo: ("controlled", "traci-echo", echo, served, (base_served,)),
        "controller over TraCI, fleet": ("controlled", "traci-fleet", tcp, "", fleet_references),
        "controller over TraCI, fleet, Unix": ("controlled", "traci-fleet", unix, "", fleet_references),
        "controller over TraCI, single models": ("controlled", "traci-single", tcp, "", fleet_references),
    }
    cases = {
        name: Case(command(kind, str(sumocfg), seconds, variant, address, recording, dialect), references)
        for name, (kind, variant, address, recording, references) in table.items()
    }
    if with_sumo_rl:
        for name, transport in (
            ("sumo-rl over TraCI", sumo_rl_loop.TRACI),
            ("sumo-rl over libsumo", sumo_rl_loop.LIBSUMO),
        ):
            cases[name] = Case(sumo_rl_loop.command(sumocfg, float(seconds), transport), (base,), once=True)
    return cases


def measure(name: str, sumocfg: Path, seconds: str, rounds: int, dialect: str, with_sumo_rl: bool) -> None:
    """Run and print all cases of a street."""
    street = network.of_sumocfg(sumocfg)
    until = parts(street.begin_s, float(seconds))
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with serving(folder, sumocfg, dialect) as (tcp, unix), server("-c", ECHO) as echo:
            for variant, recording in (("traci", folder / "random.json"), ("traci-fleet", folder / "served.json")):
                take_turns(
                    {variant: command("controlled", str(sumocfg), seconds, variant, tcp, str(recording), dialect)},
                    until[-1:],
                )
            cases = cases_of(sumocfg, seconds, folder, tcp, unix, echo, dialect, with_sumo_rl)
            times: dict[str, list[float]] = {case: [] for case in cases}
            for k in range(rounds):
                commands = {case: cases[case].command for case in cases if k == 0 or not cases[case].once}
                for case, times_s in take_turns(commands, until).items():
                    times[case] += times_s
            stopwatch = Stopwatch()
            for _ in controlled(sumocfg, float(seconds), "traci-fleet", tcp, "", dialect, stopwatch):
                pass
            exchanges = json.loads((folder / "served.json").read_text())["exchanges"]
    signals = len(tls_of(street, dialect))
    print(
        f"\n{name}: {signals} signals, dialect {dialect}, {seconds} s simulated, {rounds} rounds in {TURNS} turns each"
    )
    print("  time of a round, ratio of the sums, median of the turns' ratios:")
    for case, (_, references, _) in cases.items():
        print(
            f"  {case:<37}{sum(times[case]) * TURNS / len(times[case]):>9.2f} s {ratios(times, case, references)}",
            flush=True,
        )
    print("  parts of a decision step, with the fleet:")
    for part, part_s in sorted(stopwatch.seconds.items(), key=lambda pair: -pair[1]):
        print(f"    {part:<48}{1000 * part_s:>9.3f} ms {100 * part_s / sum(stopwatch.seconds.values()):>5.0f} %")
    own_s = sum(part_s for part, part_s in stopwatch.seconds.items() if part not in (SUMO, REQUEST))
    print(f"    our own part of them: {1000 * own_s:.3f} ms, {1e6 * own_s / signals:.0f} us a signal")
    # vehicles are a second exchange of the same step
    by_step: dict[float, list[tuple[float, int]]] = {}
    for sent_hex, _, until_s, received_bytes in exchanges:
        by_step.setdefault(until_s, []).append((len(sent_hex) / 2, received_bytes))
    totals = [tuple(map(sum, zip(*step, strict=True))) for step in by_step.values()]
    sent, received = map(statistics.mean, zip(*totals, strict=True))
    print(f"  bytes of a decision step: {sent:.0f} to SUMO, {received:.0f} from it")


def ratios(times: dict[str, list[float]], case: str, references: tuple[str, ...]) -> str:
    """A case's times divided by its references' times in the same turns."""
    texts = []
    for reference in references:
        case_s, reference_s = times[case], times[reference][: len(times[case])]
        median = statistics.median(a / b for a, b in zip(case_s, reference_s, strict=True))
        texts.append(f"{sum(case_s) / sum(reference_s):>8.2f}{median:>8.2f} x {reference}")
    return "; ".join(texts)


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        kind, cfg, seconds, variant, address, recording, dialect = sys.argv[2:]
        serve_turns(KINDS[kind](Path(cfg), float(seconds), variant, address, recording, dialect))
        return
    parser = harness.parser(__doc__)
    parser.add_argument("--seconds", default="1200", help="simulated time; a tenth of it on the generated streets")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case (default: %(default)s)")
    parser.add_argument("--street", action="append", choices=[*STREETS, *GENERATED], help="default: all")
    parser.add_argument("--dialect", choices=["sumo-rl", "street"], default="sumo-rl", help="default: %(default)s")
    parser.add_argument("--without-sumo-rl", action="store_true", help="leave out the slow comparison with sumo-rl")
    args = parser.parse_args()
    with_sumo_rl = not args.without_sumo_rl and sumo_rl_loop.is_installed()
    if not with_sumo_rl:
        print(
            "sumo-rl is left out: "
            + ("--without-sumo-rl" if args.without_sumo_rl else "pip install sumo-rl to compare with it")
        )
    with tempfile.TemporaryDirectory() as folder:
        for name in args.street or [*STREETS, *GENERATED]:
            path = STREETS[name] if name in STREETS else thousand_signals.write(Path(folder), GENERATED[name])
            seconds = args.seconds if name in STREETS else str(float(args.seconds) / 10)
            if path.is_file():
                measure(name, path, seconds, args.rounds, args.dialect, with_sumo_rl)
            else:
                print(f"\n{name}: left out, {path} does not exist")


if __name__ == "__main__":
    main()
