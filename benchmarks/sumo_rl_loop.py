"""sumo-rl's own loop, for `benchmarks.control_loop`: pip install sumo-rl."""

import contextlib
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from city import network

DELTA_S, YELLOW_S, MIN_GREEN_S = 5, 3, 5
NEVER_S = 1e6


def sumo_rl(sumocfg: Path, seconds: float, how: str, address: str, notes: str) -> Iterator[float]:
    """sumo-rl's environment with a random policy. `how`: traci or libsumo."""
    import sumo

    os.environ["SUMO_HOME"] = sumo.SUMO_HOME
    if how == "libsumo":
        os.environ["LIBSUMO_AS_TRACI"] = "1"
    from sumo_rl import SumoEnvironment

    street = network.of_sumocfg(sumocfg)
    routes = route_files(sumocfg)
    with contextlib.redirect_stdout(None):
        env = SumoEnvironment(
            net_file=str(street.net_file), route_file=",".join(map(str, routes)), begin_time=int(street.begin_s),
            num_seconds=int(seconds), delta_time=DELTA_S, yellow_time=YELLOW_S, min_green=MIN_GREEN_S, max_green=int(NEVER_S),
            sumo_seed=42, sumo_warnings=False, add_system_info=False, add_per_agent_info=False,
        )  # fmt: skip
        env.reset()
        rng = np.random.default_rng(0)
        spaces = {ts: int(env.action_spaces(ts).n) for ts in env.ts_ids}
        yield street.begin_s
        for k in range(1, int(seconds) // DELTA_S + 1):
            env.step({ts: int(rng.integers(n)) for ts, n in spaces.items()})
            yield street.begin_s + k * DELTA_S
        env.close()


def route_files(sumocfg: Path) -> list[Path]:
    """The demand of a .sumocfg."""
    values = {element.tag: element.get("value", "") for element in ET.parse(sumocfg).getroot().iter()}
    return [sumocfg.resolve().parent / name.strip() for name in values["route-files"].split(",")]
