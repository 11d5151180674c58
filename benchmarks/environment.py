"""The environment against sumo-rl's: the same random actions, no learning, both over libsumo, turn by turn in one run.

    python -m benchmarks.environment [--scenarios DIR] [--streets cologne8,ingolstadt7,thousand] [--repeats 5]

The start of SUMO and the end of the episode are left out of both. The streets: RESCO's cologne8 and ingolstadt7 from
--scenarios, and 1,000 signals (`benchmarks.thousand_signals`). The cases:

- sumo-rl: its environment with its defaults (yellow 2 s, reward diff-waiting-time, statistics of the street in every
  info);
- sumo-rl, no info: without these statistics, which our environment has not either (its info has overrides and signal
  states);
- floors dialect: `greenserve.parallel_env(floors="dialect")` with sumo-rl's reward, which is sumo-rl's simulation to
  the vehicle (tests/environment/test_sumo_rl_constructor.py);
- floors street: the same with the street's safety rules, so with other yellows and other traffic;
- floors street, delay: with our default reward;
- floors dialect, summary: with the episode's summary in its last info, our default, for which SUMO writes its trips.
  sumo-rl has none, so that the others leave it out.

Goals, in simulated seconds a second: floors dialect at least 1.0 times, floors street at least 0.9 times sumo-rl.
Printed are the ratios to both cases of sumo-rl.
"""

import contextlib
import importlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness
from benchmarks.sumo_rl_loop import DELTA_S, LIBSUMO_VARIABLE, is_installed
from benchmarks.thousand_signals import DAY, END_S
from benchmarks.thousand_signals import write as write_thousand
from benchmarks.turns import Command, serve_turns, take_turns
from city import config, network, sumo_files
from city.errors import InputError

SCENARIOS = Path(__file__).resolve().parents[2] / "shared" / "scenarios"
THOUSAND = "thousand"
STREETS = ("cologne8", "ingolstadt7", THOUSAND)
SECONDS, SECONDS_THOUSAND, TURNS = 1200, 240, 12
"""Simulated seconds of an episode, and its parts."""
SEED = 42
SUMO_RL, SUMO_RL_NO_INFO = "sumo-rl", "sumo-rl, no info"
REWARD = "diff-waiting-time"
CASES: dict[str, dict[str, Any]] = {
    SUMO_RL: {},
    SUMO_RL_NO_INFO: {},
    "floors dialect": {"floors": "dialect", "reward": REWARD, "episode_summary": False},
    "floors street": {"floors": "street", "reward": REWARD, "episode_summary": False},
    "floors street, delay": {"floors": "street", "episode_summary": False},
    "floors dialect, summary": {"floors": "dialect", "reward": REWARD},
}
Actions = dict[str, int]


class Measured(NamedTuple):
    """An episode of a case."""

    wall_s: float
    in_sumo_s: float
    """Wall time of SUMO's own steps."""
    vehicle_s: float
    """Vehicles on the street, summed over the simulated seconds at which a step begins: how full it was."""


@contextlib.contextmanager
def timed_steps(api: Any) -> Iterator[list[float]]:
    """The wall time of every simulationStep of a traci module, in s."""
    step, times_s = api.simulationStep, []

    def timed(*args: float) -> Any:
        begin = time.perf_counter()
        result = step(*args)
        times_s.append(time.perf_counter() - begin)
        return result

    api.simulationStep = timed
    try:
        yield times_s
    finally:
        api.simulationStep = step


def random_actions(rng: np.random.Generator, sizes: dict[str, int]) -> Actions:
    """Random greens by signal: in the order of signals, so that every environment gets the same."""
    return {signal: int(rng.integers(sizes[signal])) for signal in sorted(sizes)}


def sumo_rl_steps(city: Path, seconds: int, has_info: bool) -> Iterator[float]:
    """Simulate with sumo-rl's environment."""
    import sumo

    os.environ["SUMO_HOME"] = sumo.SUMO_HOME
    sumocfg = config.load(city).network.sumocfg
    assert sumocfg is not None, "city init has written one"
    street = network.of_sumocfg(sumocfg)
    routes = ",".join(map(str, sumo_files.listed_files(sumocfg, "route-files")))
    with contextlib.redirect_stdout(None):
        env = importlib.import_module("sumo_rl").SumoEnvironment(
            net_file=str(street.net_file), route_file=routes, begin_time=int(street.begin_s),
            num_seconds=seconds + DELTA_S,
            sumo_seed=SEED, sumo_warnings=False, add_system_info=has_info, add_per_agent_info=has_info,
        )  # fmt: skip
        env.reset()
        sizes = {ts: int(env.action_spaces(ts).n) for ts in env.ts_ids}
        rng = np.random.default_rng(0)
        yield 0
        for second in range(DELTA_S, seconds + 1, DELTA_S):
            env.step(random_actions(rng, sizes))
            yield second
        env.close()


def our_steps(city: Path, seconds: int, options: dict[str, Any]) -> Iterator[float]:
    """Simulate with our environment."""
    import greenserve

    env = greenserve.parallel_env(city, demand="city", seconds=seconds + DELTA_S, **options)
    _, infos = env.reset(seed=SEED)
    tl_of = {signal: tl for tl in env.agents for signal in infos[tl]["permitted_states"]}
    sizes = {signal: int(env.action_space(tl).n) for signal, tl in tl_of.items()}
    rng = np.random.default_rng(0)
    yield 0
    for second in range(DELTA_S, seconds + 1, DELTA_S):
        env.step({tl_of[signal]: action for signal, action in random_actions(rng, sizes).items()})
        yield second
    env.close()


def run_case(case: str, city: Path, seconds: int, result: Path) -> None:
    """Run a case in turns, and write [SUMO's own time in s, vehicle seconds] to `result`."""
    is_sumo_rl = case in (SUMO_RL, SUMO_RL_NO_INFO)
    steps = sumo_rl_steps(city, seconds, case == SUMO_RL) if is_sumo_rl else our_steps(city, seconds, CASES[case])

    def counted() -> Iterator[float]:
        yield next(steps)
        # sumo-rl's traci is libsumo under another name, if libsumo was not imported before
        api = importlib.import_module("traci" if is_sumo_rl else "libsumo")
        vehicle_s = 0.0
        with timed_steps(api) as in_sumo_s:
            for second in steps:
                vehicle_s += DELTA_S * api.vehicle.getIDCount()
                if second == seconds:
                    result.write_text(json.dumps([sum(in_sumo_s), vehicle_s]))
                yield second

    serve_turns(counted())


def measure(city: Path, seconds: int, cases: Sequence[str], folder: Path) -> dict[str, Measured]:
    """Run an episode of each case, turn by turn."""
    files = {case: folder / f"{k}.json" for k, case in enumerate(cases)}
    commands = {
        case: Command(
            ("-m", "benchmarks.environment", "--case", case, str(city), str(seconds), str(file)),
            {LIBSUMO_VARIABLE: "1", "LIBTRACI_AS_TRACI": None},
        )
        for case, file in files.items()
    }
    times = take_turns(commands, [seconds // TURNS // DELTA_S * DELTA_S * turn for turn in range(1, TURNS)] + [seconds])
    return {case: Measured(sum(times[case]), *json.loads(file.read_text())) for case, file in files.items()}


def write_city(
    street: str, scenarios: Path, folder: Path, seconds: int = 3600, dialect: str = "sumo-rl"
) -> Path | None:
    """Write a city.toml with a TL for every signal and sumo-rl's options of SUMO; None if the scenario is missing.

    `seconds`: simulated time of the configuration that is written. `dialect`: of its TLs.
    """
    from greenserve.__main__ import main as greenserve

    if street == THOUSAND:
        (folder / THOUSAND).mkdir()
        sumocfg, seconds = write_thousand(folder / THOUSAND, DAY), min(seconds, END_S)
    else:
        sumocfg = scenarios / street / f"{street}.sumocfg"
    if not sumocfg.is_file():
        return None
    found = network.of_sumocfg(sumocfg)
    routes = [str(path) for path in sumo_files.listed_files(sumocfg, "route-files")]
    arguments = ["--net", str(found.net_file), "--route", ",".join(routes), "--begin-time", str(int(found.begin_s))]
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
        arguments += ["--num-seconds", str(seconds), "--dialect", dialect, "--out", str(folder / "city.toml")]
        code = greenserve(["city", "init", *arguments])
    if code:
        raise InputError(f"greenserve city init of {sumocfg} failed: {output.getvalue()}")
    return folder / "city.toml"


def report(street: str, seconds: int, runs: Sequence[dict[str, Measured]]) -> None:
    """Print medians, and the medians of the ratios of the same run."""
    print(f"{street}, {seconds} simulated s, median of {len(runs)}")
    for case in runs[0]:
        wall_s, in_sumo_s, vehicle_s = (
            statistics.median(column) for column in zip(*(run[case] for run in runs), strict=True)
        )
        line = (
            f"  {case:<22}{wall_s:>7.2f} s, SUMO's own steps {in_sumo_s:.2f} s, {vehicle_s / seconds:.0f} vehicles on "
            "average"
        )
        for other in (SUMO_RL, SUMO_RL_NO_INFO):
            if case in (SUMO_RL, SUMO_RL_NO_INFO) or other not in runs[0]:
                continue
            ratios = sorted(run[other].wall_s / run[case].wall_s for run in runs)
            line += f"; {statistics.median(ratios):.2f} x {other} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(line, flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        case, city, seconds, result = sys.argv[2:]
        run_case(case, Path(city), int(seconds), Path(result))
        return
    parser = harness.parser(__doc__)
    parser.add_argument("--scenarios", type=Path, default=SCENARIOS, metavar="DIR", help="folder of RESCO's streets")
    parser.add_argument("--streets", default=",".join(STREETS), metavar="NAME,...", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=int, help=f"of an episode (default: {SECONDS}; thousand: {SECONDS_THOUSAND})")
    parser.add_argument("--repeats", type=int, default=5, help="episodes of each case (default: %(default)s)")
    args = parser.parse_args()
    cases = [case for case in CASES if case not in (SUMO_RL, SUMO_RL_NO_INFO) or is_installed()]
    if SUMO_RL not in cases:
        print("sumo-rl is not installed (pip install sumo-rl): no ratios")
    for street in args.streets.split(","):
        seconds = args.seconds or (SECONDS_THOUSAND if street == THOUSAND else SECONDS)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            city = write_city(street, args.scenarios, folder)
            if city is None:
                print(f"{street} is skipped: {args.scenarios / street}: no such scenario; pass --scenarios")
                continue
            report(street, seconds, [measure(city, seconds, cases, folder) for _ in range(args.repeats)])


if __name__ == "__main__":
    main()
