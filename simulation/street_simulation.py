"""One simulation of a city: in a SUMO program of its own, or over libsumo in this process."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from city import network
from city.config import City
from city.errors import InputError, ProgramFailed
from city.network import StreetNetwork
from controller.sumo.access import SumoAccess
from controller.sumo.connection import ApiConnection, CommandRejected, Interrupts, SumoConnection, SumoConnectionLost
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.tripinfo import TRIPINFO_OPTIONS
from simulation import own_outputs
from simulation.demand import SimulatedDemand

LIBSUMO, TRACI, SUMO_GUI = TRANSPORTS = ("libsumo", "traci", "sumo-gui")
"""SUMO in this process, which has one at a time, or a SUMO program for each simulation, also with its window.

SUMO 1.28 decides a few conflicts in junctions by the addresses of its objects. In a program of its own these follow
from the simulation alone, so that it is the same again. In this process they depend on what the process has done
before: at a congested junction, the same simulation may come to other delays. It takes less time.
"""
SERVED_DEADLINE_S = 30.0
"""Wall time for an answer of a served model: generous, so that a simulation does not depend on the machine's load."""


class SimulationFailed(ProgramFailed):
    """A simulation ended early, or a served TL had no valid answer; the message is the reason."""


def street_with_demand(city: City, tls: Iterable[str], seconds: float | None) -> StreetNetwork:
    """Read the street of a city that is to be simulated. Raises InputError without demand, end, or one of the signals.

    `tls`: TLs with signals that must exist. `seconds`: simulated time (default: until the configuration's end).
    """
    street = network.of_city(city)
    if city.network.sumocfg is None:
        raise InputError(f"{city.path}: [network] sumocfg is missing; add it: it names the demand to simulate")
    if seconds is None and street.end_s is None:
        raise InputError(f'{city.network.sumocfg}: has no end; add <time><end value="3600"/></time>, or pass --seconds')
    if seconds is None and street.end_s is not None and street.begin_s >= street.end_s:
        raise InputError(
            f"{city.network.sumocfg}: ends at second {street.end_s:g}, not after its begin at {street.begin_s:g}; "
            f"correct its time, or [network] begin_s of {city.path}"
        )
    for tl in tls:
        network.signals_of(city, city.tls[tl], street)
    return street


@contextlib.contextmanager
def simulated(
    city: City,
    demand: SimulatedDemand,
    tripinfo: Path | None,
    options: Sequence[str] = (),
    folder: Path | None = None,
    transport: str = TRACI,
    additional: Sequence[Path] = (),
) -> Iterator[SumoConnection]:
    """Run a simulation of a city; the tripinfo file is complete after the block, no other output is written.

    Args:
        city: its [network] is simulated.
        demand: the vehicles.
        tripinfo: file of the trips; None for none.
        options: further options of SUMO, which take precedence over those of this function.
        folder: where route files are written (default: the tripinfo file's).
        transport: one of TRANSPORTS.
        additional: additional files behind those of the configuration.

    Raises InputError if SUMO does not start, SimulationFailed if it ends early.
    """
    outputs = ["--no-step-log", "true", "--no-warnings", "true"]
    if tripinfo is not None:
        outputs += ["--tripinfo-output", str(tripinfo), *TRIPINFO_OPTIONS]
    folder = folder or (tripinfo.parent if tripinfo is not None else None)
    assert folder is not None, "route files of a demand need a folder"
    sumocfg, begin_s = city.network.sumocfg, city.network.begin_s
    assert sumocfg is not None, "a city without demand is refused before it is simulated"
    begin = [] if begin_s is None else ["--begin", f"{begin_s:.15g}"]
    outputs += own_outputs.options(sumocfg, folder)
    files = [*own_outputs.additional_files(sumocfg, folder), *additional]
    if files:
        outputs += ["--additional-files", ",".join(map(str, files))]
    # SUMO refuses an option that is set twice
    given = {option.partition("=")[0] for option in options if option.startswith("-")}
    own = zip(outputs[::2], outputs[1::2], strict=True)
    outputs = [part for pair in own if pair[0] not in given for part in pair]
    connection = _start(["-c", str(sumocfg), *begin, *demand.options(sumocfg, folder), *outputs, *options], transport)
    try:
        with failures_of(connection, sumocfg):
            yield connection
    finally:
        with contextlib.suppress(connection.connection_error):
            connection.close()


def _start(arguments: Sequence[str], transport: str) -> SumoConnection:
    if transport == LIBSUMO:
        return start_libsumo(arguments)
    from controller.sumo.start import connect  # not at the top: it loads traci

    connection = connect(SumoAccess(arguments=arguments, gui=transport == SUMO_GUI), Interrupts())
    try:
        connection.version()  # its answer comes after SUMO has read the first vehicles
    except SumoConnectionLost as error:
        connection.close()
        raise InputError(f"SUMO did not start: {str(error).removeprefix('Error: ')}") from None
    return connection


@contextlib.contextmanager
def failures_of(connection: ApiConnection, sumocfg: Path | None) -> Iterator[None]:
    """Turn the errors of a simulation that ends early into SimulationFailed."""
    try:
        yield
    except (connection.connection_error, SumoConnectionLost, CommandRejected) as error:
        reason = connection.error_message() or str(error)
        raise SimulationFailed(f"{sumocfg}: SUMO ended the simulation: {' '.join(reason.split())}") from None


def end_of(street: StreetNetwork, begin_s: float, seconds: float | None) -> float:
    """The second at which a simulation ends, in whole ms like SUMO's. `seconds`: simulated time; `None`: the
    configuration's."""
    if seconds is not None:
        return round(begin_s + seconds, 3)
    assert street.end_s is not None, "a simulation without an end is refused before it starts"
    return street.end_s
