"""Short runs of the sample city, recorded without a model server."""

import contextlib
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from city import config, network
from controller.assembly import ControlledTls, checked_start, loop_from, take_over
from controller.policies.no_policies import contracts_of_city
from controller.recording import loop_state
from controller.recording.detectors import track_detectors
from controller.recording.messages import Encoder
from controller.recording.record_writer import RecordWriter
from controller.recording.run_start import RunStart, encode, of_tls
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.start import connect
from protos.loop_state_pb2 import LoopState
from records.record_reader import RecordReader
from serving.contract import CATEGORICAL
from serving.errors import DeadlineExceeded
from signals import movement_names
from signals.policy import Answer

BEGIN_UNIX_NS = 1_700_000_000_000_000_000


class ProjectingPolicies:
    """Actions that follow from the observation in a fixed, otherwise senseless way."""

    def __init__(self, contracts: Sequence, fails: Callable[[str, int], object] = lambda tl, request: None) -> None:
        """`fails`: for a TL and the number of its request, an exception or action in the place of the answer, or
        None."""
        self._contracts = {each.tl: each for each in contracts}
        self._weights = {tl: _weights(each) for tl, each in self._contracts.items()}
        self._fails = fails
        self._requests = dict.fromkeys(self._contracts, 0)

    def ask(self, observations, observed_s=None):
        return {tl: self._answer(tl, observation) for tl, observation in observations.items()}

    def _answer(self, tl, observation):
        self._requests[tl] += 1
        failure = self._fails(tl, self._requests[tl])
        if isinstance(failure, Exception):
            return failure
        if failure is not None:
            return Answer(np.array(failure))
        values = self._weights[tl] @ observation.astype(np.float64)
        if self._contracts[tl].action.kind != CATEGORICAL:
            return Answer(np.tanh(values).astype(np.float32), 3, tl)
        odds = np.exp(values - values.max())
        return Answer(np.array([values.argmax()]), 3, tl, (odds / odds.sum()).astype(np.float32))


def _weights(contract):
    """[A or n, O]; the seed is the TL's name, so that each has its own."""
    random = np.random.default_rng(zlib.crc32(contract.tl.encode()))
    return random.normal(size=(contract.action.size, contract.observation.size))


def some_fail(tl, request):
    """Missing and invalid answers of two TLs, long enough for the fallback, and the way back."""
    if tl in ("SA101", "SA108") and 8 <= request <= 20:
        return DeadlineExceeded("no answer within 500 ms") if request % 3 else [float("nan")]
    return None


class Recorder:
    """Subscriber that writes each event to a file at once."""

    def __init__(self, run: RunStart, path: Path, steps_a_file: float = math.inf) -> None:
        """`path`: of the first file; the names of others have their numbers."""
        self._run, self._path, self._steps_a_file = run, path, steps_a_file
        self._encoder = Encoder(run)
        self._number = self._steps = 0
        self._state = self._writer = self._stream = None

    def add(self, event):
        if self._writer is None:
            self._begin(event)
        self._writer.add(*self._encoder.encode(event), BEGIN_UNIX_NS + round(event.at_s * 1e9))
        self._steps += 1
        if self._steps >= self._steps_a_file and event.state is not None:
            self._state = LoopState(**loop_state.values(event.state()))
            self.close()

    def _begin(self, event):
        path = self._path if self._number == 0 else self._path.with_stem(f"{self._path.stem}-{self._number}")
        self._stream = path.open("wb")
        city = encode(self._run, "replayed", BEGIN_UNIX_NS, self._number)
        self._writer = RecordWriter(self._stream, city, self._run.network_files, BEGIN_UNIX_NS, event.at_s, self._state)
        self._number += 1
        self._steps = 0

    def close(self):
        if self._writer is not None:
            self._writer.finish()
            self._stream.close()
            self._writer = None


def read(path):
    """(city, steps, why it ends early) of a file."""
    with RecordReader(path) as reader:
        steps = list(reader.steps())
        return reader.city, steps, reader.missing


def record_run(path: Path, city: config.City, end_s: float, *options: str, steps_a_file=math.inf, **arguments) -> None:
    """Run a city, as `run_city` does, and write the record.

    Args:
        path: the record.
        city: the city; its TLs are controlled.
        end_s: second at which control ends.
        options: of SUMO.
        steps_a_file: steps after which a new file begins, with its number in its name.
        arguments: further ones of `run_city`.
    """
    run_city(city, end_s, *options, subscribe=lambda run: [Recorder(run, path, steps_a_file)], **arguments)


def run_city(
    city: config.City,
    end_s: float,
    *options: str,
    subscribe: Callable[[RunStart], Sequence],
    fails: Callable[[str, int], object] = some_fail,
    policies: object = None,
    releases_until_s: float | None = 60.0,
    driver: str | None = None,
    over_traci: bool = False,
    disturb: Callable[[object, float], None] = lambda api, now: None,
    operate: Callable[[object], None] = lambda loop: None,
    contracts: Sequence = (),
    begins_s: float = 0.0,
    idle_to_s: float = 0.0,
) -> RunStart:
    """Run a city from its begin to end_s under SUMO.

    Args:
        city: the city; its TLs are controlled.
        end_s: second at which control ends.
        options: of SUMO.
        subscribe: makes the subscribers of the run's events.
        fails: see ProjectingPolicies, which answer without `policies`.
        policies: source of the answers.
        releases_until_s: seconds after end_s in which the signals are handed back; None: they are not.
        driver: controls in the place of the policies.
        over_traci: a SUMO of its own, over a socket.
        disturb: called with SUMO's API and the second before each step, as another client.
        operate: called with the loop before each step, as an operator.
        contracts: of the policies (default: the city's).
        begins_s: when control begins, at the earliest.
        idle_to_s: second to which SUMO simulates after the record.
    """
    street = network.of_city(city)
    contracts = tuple(contracts or contracts_of_city(city, tuple(city.tls), street).values())
    source = ["-c", str(city.network.sumocfg)] if city.network.sumocfg else ["-n", str(city.network.net)]
    arguments = [*source, "--no-step-log", "true", "--no-warnings", "true", *options]
    connection = connect(SumoAccess(arguments=arguments), Interrupts()) if over_traci else start_libsumo(arguments)
    with contextlib.closing(connection):
        while connection.api.simulation.getTime() < begins_s:
            connection.api.simulationStep()
        begin = checked_start(connection, street, contracts)
        found = track_detectors(connection, begin.signals, begin.sumo_step_s)
        names = movement_names.of_city(city, street)
        tls = ControlledTls(street, contracts, city.safety, city.controller, driver, names)
        run = of_tls(tls, begin, found)
        asked = policies if policies is not None else ProjectingPolicies(contracts, fails)
        loop = loop_from(begin, connection, tls, asked, subscribe(run))
        take_over(connection, street, begin)
        while loop.now < end_s:
            disturb(connection.api, loop.now)
            operate(loop)
            loop.step(end_s)
        loop.finish()
        if releases_until_s is not None:
            loop.release(end_s + releases_until_s)
            loop.finish()
        loop.close()
        while connection.api.simulation.getTime() < idle_to_s:
            connection.api.simulationStep()
    return run
