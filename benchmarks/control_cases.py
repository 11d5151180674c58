"""The cases of `benchmarks.control_loop`: each simulates a street in its own way.

A case sets itself up, tells that with its first moment, and then how far it has
come after each decision step, in simulated s.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.loop_instruments import Clocked, Noted
from benchmarks.sumo_rl_loop import DELTA_S, MIN_GREEN_S, YELLOW_S, sumo_rl
from city import config, network
from city.network import StreetNetwork
from controller.assembly import assemble
from controller.guard.start import open_guarded
from controller.observation import Observation
from controller.policies.policy import Action
from controller.policies.served_fleet import ServedFleet
from controller.policies.served_policies import ServedPolicies
from controller.sumo import libsumo_link, start
from controller.sumo.wire import MessageSplitter
from export import contract
from protos import policy_pb2 as pb
from serving.client import Client

QUIET = ["--no-step-log", "true", "--no-warnings", "true", "--seed", "42", "--time-to-teleport", "-1"]
PATIENCE_S = 3000.0
"""Who waits for its turn is not dead, which the guard would think, and its answers are not late."""


class RandomPolicies:
    """Greens at random, the same in every run."""

    def __init__(self, contracts: list[pb.PolicyContract]) -> None:
        sizes = np.array([policy.action.size for policy in contracts])
        # drawn beforehand: what is measured is the loop, not the dice
        drawn = np.random.default_rng(0).integers(sizes, size=(4096 if len(sizes) < 100 else 256, len(sizes)))
        self._actions = itertools.cycle([dict(zip([policy.tl for policy in contracts], row, strict=True)) for row in drawn])

    def ask(self, observations: Mapping[str, Observation], observed_s: float | None = None) -> dict[str, Action | Exception]:
        actions = next(self._actions)
        return {tl: actions[tl] for tl in observations}


def contracts_of(street: StreetNetwork) -> list[pb.PolicyContract]:
    """A sumo-rl contract for every signal with a choice of greens."""
    city = config.City(Path("city.toml"))
    return [
        contract.build(city, config.TL((signal.id,), "sumo-rl", f"TL{k}", yellow_s=YELLOW_S, min_green_s=MIN_GREEN_S), street)
        for k, signal in enumerate(street.signals.values())
        if len(signal.first_program.greens) > 1
    ]


def ours(sumocfg: Path, seconds: float, how: str, address: str, notes: str, clocked: Clocked | None = None) -> Iterator[float]:
    """Our loop. `how`: traci, libsumo or guard; behind a dash fleet or single."""
    street = network.of_sumocfg(sumocfg)
    contracts = contracts_of(street)
    transport, _, inference = how.partition("-")
    policies: Any = RandomPolicies(contracts)
    fleet = None
    if inference:
        client = Client(address)
        contracts = [client.contract(policy.tl) for policy in contracts]
        by_tl = {policy.tl: policy for policy in contracts}
        if inference == "fleet":
            fleet = ServedFleet(client, "city", by_tl, None)
            fleet.update()
            if fleet.coverage is None or len(fleet.coverage.tls) != len(contracts):
                raise RuntimeError("the fleet does not cover the street")
        policies = ServedPolicies(client, by_tl, None, PATIENCE_S, fleet=fleet)
    arguments = ["-c", str(sumocfg), *QUIET]
    if transport == "libsumo":
        link: Any = libsumo_link.start_libsumo(arguments)
    elif transport == "guard":
        link = open_guarded(None, arguments, 1, None, 0, PATIENCE_S, lambda: False)
    else:
        link = start.start(arguments, 1, lambda: False)
    steps = assemble(link, street, contracts, policies, config.Safety(), config.Controller())
    noted = Noted(steps, link) if notes else None
    if clocked is not None:
        for owner, method, name in (
            (link._messages, "_exchange", "SUMO: simulating, reading, and the way there"), (link, "read", "readings decoded"),
            (link, "set", "settings encoded and sent"), (link, "go", "settings encoded and sent"),
            (steps, "_set", "wishes, safety rules"), (steps, "_decide", "observations, actions taken"),
            (policies, "ask", "policies asked"), (steps, "watch", "monitor"), (steps, "step", "the rest"),
        ):  # fmt: skip
            clocked.wrap(owner, method, name)
    end_s = steps.now + seconds
    yield steps.now
    while steps.now < end_s:
        steps.step(end_s)
        yield steps.now
    link.close()
    if sum(steps.counters.missing_answers.values()) or sum(steps.counters.alarms.values()):
        raise RuntimeError(
            f"{steps.counters.missing_answers} answers were missing, alarms {steps.counters.alarms}: the figures would mean nothing"
        )
    if noted is not None:
        noted.write(Path(notes))
    if clocked is not None:
        clocked.seconds = {name: spent / steps.counters.steps for name, spent in clocked.seconds.items()}


def replay(sumocfg: Path, seconds: float, how: str, address: str, notes: str) -> Iterator[float]:
    """The noted settings over libsumo, no reads."""
    steps = json.loads(Path(notes).read_text())["steps"]
    link = libsumo_link.start_libsumo(["-c", str(sumocfg), *QUIET])
    light, simulate = link.api.trafficlight, link.api.simulationStep
    yield 0.0
    for settings, until_s in steps:
        for signal, state in settings:
            light.setRedYellowGreenState(signal, state)
        simulate(until_s)
        yield until_s
    link.close()


def exchange(sumocfg: Path, seconds: float, how: str, address: str, notes: str) -> Iterator[float]:
    """The noted messages over TraCI, answers thrown away: what no controller in a process of its own can be faster than.

    `address`: of a bare gRPC echo that is called in place of a policy with as many bytes; none: nobody is asked.
    """
    noted = json.loads(Path(notes).read_text())["exchanges"]
    exchanges = [(bytes.fromhex(text), count, until_s) for text, count, until_s in noted]
    link = start.start(["-c", str(sumocfg), *QUIET], 1, lambda: False)
    link.version()  # SUMO listens before it has loaded its network, and answers behind that
    echo = grpc.insecure_channel(address).unary_unary("/echo/Echo") if address else None
    observations = bytes(4 * sum(policy.observation.size for policy in contracts_of(network.of_sumocfg(sumocfg))))
    yield 0.0
    frames, due = MessageSplitter(), 0
    for sent, count, until_s in exchanges:
        link.socket.sendall(sent)
        due += count
        while due > 0:  # an answer may be here before it is waited for
            due -= sum(1 for _ in frames.feed(link.socket.recv(1 << 20)))
        if echo is not None:
            echo(observations)
        yield until_s
    link.close()


def plain(sumocfg: Path, seconds: float, how: str, address: str, notes: str) -> Iterator[float]:
    """SUMO over libsumo, on the fixed plans."""
    begin_s = network.of_sumocfg(sumocfg).begin_s
    link = libsumo_link.start_libsumo(["-c", str(sumocfg), *QUIET])
    yield begin_s
    for k in range(1, int(seconds) // DELTA_S + 1):
        link.api.simulationStep(begin_s + k * DELTA_S)
        yield begin_s + k * DELTA_S
    link.close()


CASES: tuple[Callable[..., Iterator[float]], ...] = (ours, replay, exchange, plain, sumo_rl)
KINDS = {case.__name__: case for case in CASES}
