"""A run with [safety] floors = "dialect" against sumo-rl's own environment: the same observations, actions and trips."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from city import config, network
from controller.assembly import assemble
from controller.decision_step import Events
from controller.guard.start import open_guarded
from controller.sumo.connection import Interrupts
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.start import start
from export import contract
from tests.conftest import GRID
from tests.end_to_end.programs import program
from tests.networks import netconvert

ROOT = Path(__file__).parents[2]
SECONDS = 600
SUMO_RL = """
import json, sys
import numpy as np
from sumo_rl import SumoEnvironment
from tests.end_to_end.test_sumo_rl_identity import Actor
net, routes, begin_s, delta_s, yellow_s, min_green_s, seconds, options, log = sys.argv[1:]
env = SumoEnvironment(
    net_file=net, route_file=routes, begin_time=int(begin_s), num_seconds=int(seconds), delta_time=int(delta_s),
    yellow_time=int(yellow_s), min_green=int(min_green_s), max_green=10**6, sumo_seed=42, sumo_warnings=False,
    add_system_info=False, add_per_agent_info=False, additional_sumo_cmd=options,
)
observations, actors, decisions = env.reset(), {}, []
for _ in range(int(seconds) // int(delta_s)):
    for ts, observation in observations.items():
        actors.setdefault(ts, Actor(ts, len(observation), int(env.action_spaces(ts).n)))
    actions = {ts: actors[ts].choose(observation) for ts, observation in observations.items()}
    decisions.append([env.sim_step, actions, {ts: o.tolist() for ts, o in observations.items()}])
    observations = env.step(actions)[0]
env.close()
json.dump(decisions, open(log, "w"))
"""


class Actor:
    """An MLP of random weights that depend on the signal's id only."""

    def __init__(self, signal, inputs, choices):
        rng = np.random.default_rng(list(signal.encode()))
        self.first, self.last = rng.normal(size=(inputs, 24)), rng.normal(size=(24, choices))

    def choose(self, observation):
        return int(np.argmax(np.tanh(np.asarray(observation, np.float64) @ self.first) @ self.last))


class Actors:
    def __init__(self, contracts):
        self.actors = {c.tl: Actor(c.tl, c.observation.size, c.action.size) for c in contracts}
        self.decisions = []

    def ask(self, observations, observed_s=None):
        actions = {tl: self.actors[tl].choose(observation) for tl, observation in observations.items()}
        self.decisions.append((actions, {tl: observation.tolist() for tl, observation in observations.items()}))
        return {tl: np.array([action]) for tl, action in actions.items()}


def trips(path):
    return sorted(re.findall(r"<tripinfo .*", path.read_text()))


def options_of(net_file, routes, begin_s, step_s, tripinfo):
    """(SUMO's options as sumo-rl starts it, those of them that sumo-rl is passed)."""
    shared = [
        "--step-length",
        str(step_s),
        "--tripinfo-output",
        str(tripinfo),
        "--tripinfo-output.write-unfinished",
        "true",
        "--no-step-log",
        "true",
    ]
    own = [
        "-n",
        str(net_file),
        "-r",
        routes,
        "--max-depart-delay",
        "-1",
        "--waiting-time-memory",
        "1000",
        "--time-to-teleport",
        "-1",
    ]
    return [*own, "-b", str(begin_s), "--seed", "42", "--no-warnings", *shared], " ".join(shared)


def open_connection(transport, options):
    if transport == "libsumo":
        return start_libsumo(options)
    if transport == "guard":
        return open_guarded(None, options, 1, None, 0, 60.0, Interrupts())
    return start(options, 1, Interrupts())


@pytest.mark.parametrize(
    ("name", "transport", "has_internal_links", "times", "step_s"),
    [
        ("cologne1", "libsumo", True, (5, 2, 5), 1.0),
        ("cologne1", "guard", True, (5, 3, 5), 1.0),
        ("cologne1", "traci", False, (5, 2, 5), 1.0),
        ("cologne1", "traci", True, (5, 2, 5), 0.5),
        ("cologne8", "traci", True, (5, 2, 5), 1.0),
        ("cologne8", "libsumo", False, (5, 4, 8), 1.0),
        ("ingolstadt7", "traci", True, (10, 3, 10), 1.0),
        ("ingolstadt7", "libsumo", True, (5, 2, 5), 1.0),
    ],
)
def test_run_with_the_dialects_floors_is_sumo_rls_trip_by_trip(
    name, transport, has_internal_links, times, step_s, shared, tmp_path
):
    pytest.importorskip("gymnasium", reason="sumo-rl is not installed (pip install sumo-rl)")
    import json

    import sumo

    delta_s, yellow_s, min_green_s = times
    folder = shared / "scenarios" / name
    street = network.of_sumocfg(folder / f"{name}.sumocfg")
    net_file = (
        street.net_file if has_internal_links else netconvert(street.net_file, tmp_path / "x.net.xml", "--no-internal-links")
    )
    routes, begin_s = str(folder / f"{name}.rou.xml"), int(street.begin_s)
    street = network.read(net_file, begin_s=begin_s)
    _, for_sumo_rl = options_of(net_file, routes, begin_s, step_s, tmp_path / "reference.xml")
    arguments = [net_file, routes, begin_s, delta_s, yellow_s, min_green_s, SECONDS, for_sumo_rl, tmp_path / "log.json"]
    subprocess.run(
        [sys.executable, "-c", SUMO_RL, *map(str, arguments)], check=True, cwd=ROOT, capture_output=True,
        env={**os.environ, "SUMO_HOME": sumo.SUMO_HOME, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    city = config.City(net_file)
    # sumo-rl counts its yellow and min green in simulation steps
    contracts = [
        contract.build(
            city,
            config.TL((s,), "sumo-rl", s, yellow_s=step_s * yellow_s, min_green_s=step_s * min_green_s, delta_time_s=delta_s),
            street,
        )
        for s in street.signals
    ]
    actors, alarms = Actors(contracts), []
    options, _ = options_of(net_file, routes, begin_s, step_s, tmp_path / "ours.xml")
    connection = open_connection(transport, options)
    with contextlib.closing(connection):
        safety, events = config.Safety(floors="dialect"), Events(alarm=alarms.append)
        loop = assemble(connection, street, contracts, actors, safety, config.Controller(), events)
        while loop.now < begin_s + SECONDS:
            loop.step(begin_s + SECONDS)
        loop.feed_monitors()
    assert alarms == [] and not loop.counters.overrides
    expected = json.loads((tmp_path / "log.json").read_text())
    assert actors.decisions == [(actions, observations) for _, actions, observations in expected]
    assert trips(tmp_path / "ours.xml") == trips(tmp_path / "reference.xml") != []


def test_floors_that_are_off_are_reported_at_the_start(grid_server, tmp_path):
    text = (GRID / "city.toml").read_text().replace('"grid.sumocfg"', f'"{GRID / "grid.sumocfg"}"')
    (tmp_path / "city.toml").write_text(text.replace("[safety]\n", '[safety]\nfloors = "dialect"\n'))
    arguments = (
        "--city",
        str(tmp_path / "city.toml"),
        "--server",
        grid_server,
        "--infer-tl",
        "SA101",
        "--end",
        "30",
        "--libsumo",
    )
    with program("controller", *arguments) as process:
        assert process.wait(60) == 0
        lines = [line for line in process.stderr.read().splitlines() if "floors" in line]
    assert len(lines) == 1 and "WARNING [safety] floors = dialect: the street's floors are off" in lines[0]
