"""sumo-rl's own control loop, for `benchmarks.control_loop`; needs sumo-rl (pip install sumo-rl).

Each case is a process of its own, `python -m benchmarks.sumo_rl_loop`: traci reads
LIBSUMO_AS_TRACI when it is imported, so the variable must be set before the process starts.
"""

import argparse
import contextlib
import importlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.turns import Command, serve_turns
from city import network, sumo_files

TRACI, LIBSUMO = TRANSPORTS = ("traci", "libsumo")
DELTA_S, YELLOW_S, MIN_GREEN_S = 5, 3, 5
NO_MAX_GREEN_S = 1e6
LIBSUMO_VARIABLE = "LIBSUMO_AS_TRACI"


def is_installed() -> bool:
    """True if sumo-rl can be imported."""
    return importlib.util.find_spec("sumo_rl") is not None


def command(sumocfg: Path, seconds: float, transport: str) -> Command:
    """The process of a case. `transport`: traci or libsumo."""
    return Command(
        ("-m", "benchmarks.sumo_rl_loop", str(sumocfg), str(seconds), transport),
        {LIBSUMO_VARIABLE: "1" if transport == LIBSUMO else None, "LIBTRACI_AS_TRACI": None},
    )


def check_transport(transport: str) -> None:
    """Raise RuntimeError if a case's imported traci is not its transport."""
    import traci

    is_libsumo = bool(traci.isLibsumo())
    if is_libsumo != (transport == LIBSUMO):
        raise RuntimeError(
            f"the case over {transport} would run over {LIBSUMO if is_libsumo else TRACI}: "
            f"{LIBSUMO_VARIABLE}={os.environ.get(LIBSUMO_VARIABLE)!r} when traci was imported"
        )


def sumo_rl(sumocfg: Path, seconds: float, transport: str) -> Iterator[float]:
    """Simulate with sumo-rl's environment and a random policy."""
    import sumo

    os.environ["SUMO_HOME"] = sumo.SUMO_HOME
    environment_class = importlib.import_module("sumo_rl").SumoEnvironment
    check_transport(transport)
    street = network.of_sumocfg(sumocfg)
    routes = sumo_files.listed_files(sumocfg, "route-files")
    with contextlib.redirect_stdout(None):
        env = environment_class(
            net_file=str(street.net_file), route_file=",".join(map(str, routes)), begin_time=int(street.begin_s),
            num_seconds=int(seconds), delta_time=DELTA_S, yellow_time=YELLOW_S, min_green=MIN_GREEN_S,
            max_green=int(NO_MAX_GREEN_S), sumo_seed=42, sumo_warnings=False, add_system_info=False,
            add_per_agent_info=False,
        )  # fmt: skip
        env.reset()
        rng = np.random.default_rng(0)
        sizes = {ts: int(env.action_spaces(ts).n) for ts in env.ts_ids}
        yield street.begin_s
        for k in range(1, int(seconds) // DELTA_S + 1):
            env.step({ts: int(rng.integers(n)) for ts, n in sizes.items()})
            yield street.begin_s + k * DELTA_S
        env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sumocfg", type=Path, help="SUMO configuration")
    parser.add_argument("seconds", type=float, help="simulated seconds")
    parser.add_argument("transport", choices=TRANSPORTS, help="traci or libsumo")
    args = parser.parse_args()
    serve_turns(sumo_rl(args.sumocfg, args.seconds, args.transport))


if __name__ == "__main__":
    main()
