"""One run of random actors in sumo-rl's environment or under our controller, each in a process of its own.

    python -m tests.end_to_end.sumo_rl_runs sumo-rl|traci|libsumo|guard RUN

RUN is a `Run` as JSON; decisions and SUMO's tripinfo are written to its folder.
"""

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from city import config, network
from controller.guard.start import open_guarded
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.start import connect
from signals import contract
from signals.policy import Answer
from tests.controller.decision_events import Alarms
from tests.end_to_end.controlled_city import ControlledCity
from tests.sumo_rl_cases import Case


@dataclass(frozen=True)
class Run(Case):
    step_s: float
    delta_s: int
    yellow_steps: int
    """sumo-rl counts its yellow and min green in simulation steps."""
    min_green_steps: int

    def added_options(self, name):
        """SUMO's options that sumo-rl does not pass by itself."""
        outputs = ["--tripinfo-output", str(self.file(name, "xml")), "--tripinfo-output.write-unfinished", "true"]
        return ["--step-length", str(self.step_s), *outputs, "--no-step-log", "true"]

    def options(self, name):
        """SUMO's options as sumo-rl starts it."""
        own = ["-n", self.net_file, "-r", self.routes, "--max-depart-delay", "-1", "--waiting-time-memory", "1000"]
        own += ["--time-to-teleport", "-1", "-b", str(self.begin_s), "--seed", "42", "--no-warnings"]
        return [*own, *self.added_options(name)]


class Actor:
    """An MLP of random weights that depend on the signal's id only."""

    def __init__(self, signal, inputs, choices):
        rng = np.random.default_rng(list(signal.encode()))
        self.hidden, self.output = (rng.normal(size=size) for size in ((inputs, 24), (24, choices)))

    def choose(self, observation):
        return int(np.argmax(np.tanh(np.asarray(observation, np.float64) @ self.hidden) @ self.output))


class Actors:
    def __init__(self, contracts):
        self.actors = {c.tl: Actor(c.tl, c.observation.size, c.action.size) for c in contracts}
        self.decisions = []

    def ask(self, observations, observed_s=None):
        actions = {tl: self.actors[tl].choose(observation) for tl, observation in observations.items()}
        self.decisions.append([actions, {tl: observation.tolist() for tl, observation in observations.items()}])
        return {tl: Answer(np.array([action])) for tl, action in actions.items()}


def run_sumo_rl(run):
    from sumo_rl import SumoEnvironment

    env = SumoEnvironment(
        net_file=run.net_file, route_file=run.routes, begin_time=run.begin_s, num_seconds=run.seconds,
        delta_time=run.delta_s,
        yellow_time=run.yellow_steps, min_green=run.min_green_steps, max_green=10**6, sumo_seed=42, sumo_warnings=False,
        add_system_info=False, add_per_agent_info=False, additional_sumo_cmd=" ".join(run.added_options("sumo-rl")),
    )  # fmt: skip
    observations, actors, decisions = env.reset(), {}, []
    for _ in range(run.seconds // run.delta_s):
        for ts, observation in observations.items():
            actors.setdefault(ts, Actor(ts, len(observation), int(env.action_spaces(ts).n)))
        actions = {ts: actors[ts].choose(observation) for ts, observation in observations.items()}
        decisions.append([actions, {ts: o.tolist() for ts, o in observations.items()}])
        observations = env.step(actions)[0]
    env.close()
    return {"decisions": decisions}


OPENERS = {
    "traci": lambda options: connect(SumoAccess(arguments=options), Interrupts()),
    "libsumo": start_libsumo,
    "guard": lambda options: open_guarded(SumoAccess(arguments=options), 60.0, Interrupts()),
}


def run_controller(run, transport):
    street = network.read(Path(run.net_file), begin_s=run.begin_s)
    times = {
        "yellow_s": run.step_s * run.yellow_steps,
        "min_green_s": run.step_s * run.min_green_steps,
        "delta_time_s": run.delta_s,
    }
    city = config.City(Path(run.net_file), safety=config.Safety(floors="dialect"))
    contracts = [contract.build(city, config.TL((s,), "sumo-rl", s, **times), street) for s in street.signals]
    actors, alarms = Actors(contracts), Alarms()
    with contextlib.closing(OPENERS[transport](run.options(transport))) as connection:
        controlled = ControlledCity(connection, city, street, contracts, actors, [alarms])
        controlled.advance(run.seconds)
        controlled.loop.finish()
    overrides = dict(controlled.loop.counters.overrides)
    return {"decisions": actors.decisions, "alarms": [alarm.message for alarm in alarms], "overrides": overrides}


if __name__ == "__main__":
    name, shared = sys.argv[1], Run(**json.loads(sys.argv[2]))
    result = run_sumo_rl(shared) if name == "sumo-rl" else run_controller(shared, name)
    shared.file(name, "json").write_text(json.dumps(result))
