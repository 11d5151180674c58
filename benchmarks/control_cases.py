"""The cases of `benchmarks.control_loop`: each simulates a street and checks its transport and policies.

A case is an iterator: it sets up, yields once, and then yields the simulated second
after each decision step.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.loop_instruments import RunRecorder, Stopwatch
from benchmarks.sumo_rl_loop import DELTA_S, LIBSUMO, MIN_GREEN_S, TRACI, YELLOW_S, check_transport
from city import config, network
from city.network import StreetNetwork
from controller.assembly import ControlledTls, assemble
from controller.guard import handover
from controller.guard.start import open_guarded
from controller.policies.served_fleet import ServedFleet
from controller.policies.served_policies import ServedPolicies
from controller.sumo import libsumo_connection, start
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.libsumo_connection import LibsumoConnection
from controller.sumo.traci_connection import TraciConnection
from controller.sumo.wire import MessageSplitter
from protos import policy_pb2 as pb
from serving.client import Client
from signals import contract
from signals.observation import Observation
from signals.policy import Answer

QUIET = ["--no-step-log", "true", "--no-warnings", "true", "--seed", "42", "--time-to-teleport", "-1"]
MAX_TURN_S = 3000.0
"""Deadline of answers and of the guard's watchdog, longer than a case waits for its turn."""
GUARD = "guard"
SUMO, REQUEST = "SUMO: simulating, reading, transport", "request to the policies"
"""Parts of a decision step that are not the controller's own."""
FLEET, SINGLE, ECHO = "fleet", "single", "echo"


class RandomPolicies:
    """Random greens, the same in every run."""

    def __init__(self, contracts: list[pb.PolicyContract]) -> None:
        sizes = np.array([c.action.size for c in contracts])
        # drawn in advance, so that drawing is not measured
        rows = np.random.default_rng(0).integers(sizes, size=(4096 if len(sizes) < 100 else 256, len(sizes)))
        self._actions = itertools.cycle([dict(zip([c.tl for c in contracts], row, strict=True)) for row in rows])

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        actions = next(self._actions)
        return {tl: Answer(actions[tl]) for tl in observations}


class EchoPolicies:
    """The actions of a recorded run, each after one call of a bare gRPC echo with the size of the observations."""

    def __init__(self, address: str, recording: Path) -> None:
        self._echo = grpc.insecure_channel(address).unary_unary("/echo/Echo")
        self._actions = iter(json.loads(recording.read_text())["actions"])

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        call_echo(self._echo, b"".join(x.tobytes() for x in observations.values()))
        actions = next(self._actions)
        if actions.keys() != observations.keys():
            raise RuntimeError("the run with the echo does not repeat the recorded one")
        return {tl: Answer(np.array(action)) for tl, action in actions.items()}

    def check_end(self) -> None:
        if next(self._actions, None) is not None:
            raise RuntimeError("the run with the echo is shorter than the recorded one")


def call_echo(echo: Callable[[bytes], bytes], data: bytes) -> None:
    if echo(data) != data:
        raise RuntimeError("the echo server does not echo")


def tls_of(street: StreetNetwork, dialect: str) -> dict[str, config.TL]:
    """A TL of a dialect for every signal with several greens."""
    times = {"yellow_s": YELLOW_S, "min_green_s": MIN_GREEN_S} if dialect == "sumo-rl" else {}
    return {
        f"TL{k}": config.TL((signal.id,), dialect, f"TL{k}", **times)
        for k, signal in enumerate(street.signals.values())
        if len(signal.first_program.greens) > 1
    }


def contracts_of(street: StreetNetwork, dialect: str) -> list[pb.PolicyContract]:
    """Their contracts."""
    city = config.City(Path("city.toml"))
    return [contract.build(city, tl, street) for tl in tls_of(street, dialect).values()]


def served_policies(
    address: str, contracts: list[pb.PolicyContract], with_fleet: bool
) -> tuple[list[pb.PolicyContract], ServedPolicies, ServedFleet | None]:
    """The served contracts of these TLs, and their policies. Raises RuntimeError if the fleet does not cover all
    TLs."""
    client = Client(address)
    by_tl = {c.tl: client.contract(c.tl) for c in contracts}
    fleet = None
    if with_fleet:
        fleet = ServedFleet(client, "city", by_tl, None)
        fleet.update()
        check_fleet(fleet, len(by_tl))
    return list(by_tl.values()), ServedPolicies(client, by_tl, None, MAX_TURN_S, fleet=fleet), fleet


def check_fleet(fleet: ServedFleet, tls: int) -> None:
    if fleet.coverage is None or len(fleet.coverage.tls) != tls:
        raise RuntimeError("the fleet does not answer for all TLs of the street")


def open_connection(transport: str, sumocfg: Path, options: Sequence[str] = ()) -> Any:
    """A connection to a new SUMO. `transport`: traci, guard or libsumo. `options`: further ones of SUMO."""
    arguments = ["-c", str(sumocfg), *QUIET, *options]
    if transport == LIBSUMO:
        return libsumo_connection.start_libsumo(arguments)
    check_transport(TRACI)
    if transport == GUARD:
        return open_guarded(SumoAccess(arguments=arguments), MAX_TURN_S, Interrupts())
    return start.connect(SumoAccess(arguments=arguments), Interrupts())


def check_connection(connection: Any, transport: str) -> None:
    """Raise RuntimeError if a case's connection is not over its transport."""
    expected = LibsumoConnection if transport == LIBSUMO else TraciConnection
    if type(connection) is not expected or connection.is_guarded != (transport == GUARD):
        raise RuntimeError(
            f"the case over {transport} has a {type(connection).__name__}, guarded: {connection.is_guarded}"
        )


def controlled(
    sumocfg: Path,
    seconds: float,
    variant: str,
    address: str,
    recording: str,
    dialect: str = "sumo-rl",
    stopwatch: Stopwatch | None = None,
) -> Iterator[float]:
    """The controller's decision steps on a street.

    Args:
        sumocfg: the street.
        seconds: simulated time.
        variant: traci, libsumo or guard; followed by -fleet, -single or -echo if actions are requested over gRPC.
        address: HOST:PORT or Unix address of the model server or of the echo.
        recording: file to record the run in, or to replay with -echo; empty for no recording.
        dialect: of all TLs.
        stopwatch: measures the parts of a decision step.
    """
    street = network.of_sumocfg(sumocfg)
    contracts = contracts_of(street, dialect)
    transport, _, inference = variant.partition("-")
    policies: Any = RandomPolicies(contracts)
    fleet = None
    if inference == ECHO:
        policies = EchoPolicies(address, Path(recording))
    elif inference:
        contracts, policies, fleet = served_policies(address, contracts, inference == FLEET)
    connection = open_connection(transport, sumocfg)
    loop = assemble(connection, ControlledTls(street, contracts, config.Safety(), config.Controller()), policies)
    connection.register_handover(handover.encode(handover.handovers_of(loop.intersections.values())))
    check_connection(connection, transport)
    recorder = RunRecorder(loop, connection, policies) if recording and inference != ECHO else None
    if stopwatch is not None:
        for owner, method, name in (
            (connection._messages, "_exchange", SUMO), (connection, "read", "decode readings"),
            (connection, "set", "encode and send commands"), (connection, "advance", "encode and send commands"),
            (loop, "_send_commands", "requested states, safety rules"), (loop, "observe", "observations"),
            (loop, "_decide", "actions"),
                       (policies, "ask", REQUEST), (loop, "_feed_monitors", "monitors"), (loop, "step", "other"),
        ):  # fmt: skip
            stopwatch.wrap(owner, method, name)
    end_s = loop.now + seconds
    yield loop.now
    while loop.now < end_s:
        loop.step(end_s)
        yield loop.now
    connection.close()
    counters = loop.counters
    if counters.missing_answers or counters.alarms or counters.rejections or not counters.decisions:
        raise RuntimeError(
            f"the figures would be invalid: {counters.decisions} decisions, missing answers "
            f"{dict(counters.missing_answers)}, alarms {dict(counters.alarms)}, {counters.rejections} rejections"
        )
    if fleet is not None:
        check_fleet(fleet, len(contracts))  # still: the client did not suspend it during the run
    if isinstance(policies, EchoPolicies):
        policies.check_end()
    if recorder is not None:
        recorder.write(Path(recording))
    if stopwatch is not None:
        stopwatch.seconds = {name: total_s / counters.decision_steps for name, total_s in stopwatch.seconds.items()}


def replay(sumocfg: Path, seconds: float, variant: str, address: str, recording: str, dialect: str) -> Iterator[float]:
    """The recorded commands over libsumo, without reads."""
    segments = json.loads(Path(recording).read_text())["segments"]
    if not any(commands for commands, _ in segments):
        raise RuntimeError(f"{recording}: no command was recorded")
    connection = libsumo_connection.start_libsumo(["-c", str(sumocfg), *QUIET])
    light, simulate = connection.api.trafficlight, connection.api.simulationStep
    yield 0.0
    for commands, until_s in segments:
        for signal, state in commands:
            light.setRedYellowGreenState(signal, state)
        simulate(until_s)
        yield until_s
    connection.close()


def exchange(
    sumocfg: Path, seconds: float, variant: str, address: str, recording: str, dialect: str
) -> Iterator[float]:
    """The recorded messages over TraCI, answers dropped: a lower bound for a controller in a process of its own.

    `address`: of a bare gRPC echo that is called once per exchange with the size of all observations; empty for no
    call.
    """
    recorded = json.loads(Path(recording).read_text())["exchanges"]
    exchanges = [(bytes.fromhex(text), count, until_s) for text, count, until_s, _ in recorded]
    connection = open_connection(TRACI, sumocfg)
    check_connection(connection, TRACI)
    connection.version()  # SUMO listens before it has loaded its network, and answers after that
    echo = grpc.insecure_channel(address).unary_unary("/echo/Echo") if address else None
    observations = bytes(4 * sum(c.observation.size for c in contracts_of(network.of_sumocfg(sumocfg), dialect)))
    yield 0.0
    splitter, pending = MessageSplitter(), 0
    for k, (data, count, until_s) in enumerate(exchanges):
        connection.socket.sendall(data)
        pending += count
        while pending > 0:  # an answer may arrive before its exchange ends
            pending -= sum(1 for _ in splitter.feed(connection.socket.recv(1 << 20)))
        if k + 1 < len(exchanges) and exchanges[k + 1][2] == until_s:
            continue  # single vehicles are read by a second message
        if echo is not None:
            call_echo(echo, observations)
        yield until_s
    connection.close()


def plain(sumocfg: Path, seconds: float, variant: str, address: str, recording: str, dialect: str) -> Iterator[float]:
    """SUMO over libsumo with its fixed-time programs."""
    begin_s = network.of_sumocfg(sumocfg).begin_s
    connection = libsumo_connection.start_libsumo(["-c", str(sumocfg), *QUIET])
    yield begin_s
    for k in range(1, int(seconds) // DELTA_S + 1):
        connection.api.simulationStep(begin_s + k * DELTA_S)
        yield begin_s + k * DELTA_S
    connection.close()


CASES: tuple[Callable[..., Iterator[float]], ...] = (controlled, replay, exchange, plain)
KINDS = {case.__name__: case for case in CASES}
