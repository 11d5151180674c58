"""Induction loops before a city's signals, in an additional file of SUMO (`greenserve detectors` writes it).

    stop line                                                             advance
    |<- Yellow_Red, a point at 0.5 m
    |  |<----- Presence, 6 m long, from 1 m on ----->|       ...             |<- a point, 5 s before the stop line

Each incoming vehicle lane has its own loops. Advance loops count arrivals, presence loops (a vehicle that waits stands
on them) show occupancy, and loops at the stop line what enters the junction. Lanes inside junctions and crossings have
none. A short lane has a shorter presence loop, and its advance loops on the lanes behind it if these lead nowhere else;
it has none if they would stand in a short queue. SUMO's params in the file say to which signal, function and stop line
a loop belongs. https://sumo.dlr.de/docs/Simulation/Output/Induction_Loops_Detectors_%28E1%29.html
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from city import whole_files
from city.errors import InputError
from city.lanes import is_internal
from city.network import SignalNetwork, StreetNetwork
from city.sumo_files import elements
from controller.sumo.connection import DetectorConnection

ADVANCE, PRESENCE, YELLOW_RED = "Advance", "Presence", "Yellow_Red"
FUNCTIONS = (ADVANCE, PRESENCE, YELLOW_RED)
"""Functions of detectors in the detector table of Oregon DOT's atspm."""
ADVANCE_TIME_S = 5.0
"""Travel time at the speed limit from an advance loop to the stop line: the begin of the dilemma zone."""
MIN_ADVANCE_M = 25.0
"""Distance to the stop line below which an advance loop would often stand in the queue."""
PRESENCE_LENGTH_M = 6.0
PRESENCE_GAP_M = 1.0
"""Distance from a presence loop to the stop line; SUMO's drivers stop 1 m before it."""
STOP_LINE_GAP_M = 0.5
"""Distance from a loop for yellow and red to the stop line: nearer than any vehicle that waits."""
MIN_BEGIN_M = 0.1
"""Distance from a lane's begin at which a loop may begin."""
MIN_SHARE = 0.999
"""Share of a lane's vehicles that go to the stop line, from which all of them count as doing so."""
SIGNAL_KEY, FUNCTION_KEY, LANE_KEY = "greenserve.signal", "greenserve.function", "greenserve.lane"


@dataclass(frozen=True)
class Detector:
    """An induction loop, as far as signal events need it."""

    id: str
    signal: str
    function: str
    """One of FUNCTIONS."""
    stop_lane: str
    """The lane at whose stop line its vehicles arrive; an advance loop may be on a lane that leads to it."""


@dataclass(frozen=True)
class Loop(Detector):
    """An induction loop with its place."""

    lane: str
    """The lane on which it is."""
    position_m: float
    """Its begin, from the begin of the lane."""
    length_m: float


def place(street: StreetNetwork) -> list[Loop]:
    """The loops of every signal of a network: signals in order of their ids, lanes in order of their links."""
    loops: dict[str, Loop] = {}
    for signal in sorted(street.signals.values(), key=lambda signal: signal.id):
        for lane in vehicle_lanes(signal):
            for loop in (*_advance(signal, lane), *_at_stop_line(signal.id, lane, street.lane_length_m[lane])):
                loops.setdefault(loop.id, loop)
    return list(loops.values())


def vehicle_lanes(signal: SignalNetwork) -> list[str]:
    """Its incoming lanes outside of junctions that have a vehicle movement, in order of their links."""
    lanes = [
        lane
        for pairs, movements in zip(signal.links, signal.movements, strict=True)
        for (lane, _), movement in zip(pairs, movements, strict=True)
        if not movement.is_crossing and not is_internal(lane)
    ]
    return list(dict.fromkeys(lanes))


def _advance(signal: SignalNetwork, lane: str) -> list[Loop]:
    """The advance loops of a lane: on it, or on the lanes that lead to it and nowhere else, if it is too short."""
    graph = signal.lane_graph
    setback_m = ADVANCE_TIME_S * graph.limit_mps[lane]
    upstream = graph.upstream(lane, setback_m)
    if any(before.share < MIN_SHARE for before in upstream):
        # some vehicles of the lanes behind go to other lanes
        upstream = upstream[:1]
    reached = {before.lane for before in upstream}
    loops = []
    for before in upstream:
        length_m = graph.length_m[before.lane]
        is_first = reached.isdisjoint(graph.unsignalled_before.get(before.lane, ()))
        from_end_m = min(setback_m - before.distance_m, length_m - MIN_BEGIN_M)
        is_here = setback_m <= before.distance_m + length_m or is_first
        if is_here and before.distance_m + from_end_m >= MIN_ADVANCE_M:
            loops.append(_loop(signal.id, before.lane, ADVANCE, length_m - from_end_m, 0.0, lane))
    return loops


def _at_stop_line(signal: str, lane: str, length_m: float) -> list[Loop]:
    """The loops at a lane's stop line; fewer if it is very short."""
    loops = []
    begin_m = max(length_m - PRESENCE_GAP_M - PRESENCE_LENGTH_M, MIN_BEGIN_M)
    end_m = length_m - PRESENCE_GAP_M
    if end_m > begin_m:
        loops.append(_loop(signal, lane, PRESENCE, begin_m, end_m - begin_m, lane))
    if length_m - STOP_LINE_GAP_M >= MIN_BEGIN_M:
        loops.append(_loop(signal, lane, YELLOW_RED, length_m - STOP_LINE_GAP_M, 0.0, lane))
    return loops


def _loop(signal: str, lane: str, function: str, position_m: float, length_m: float, stop_lane: str) -> Loop:
    return Loop(
        f"{function.lower()}:{lane}", signal, function, stop_lane, lane, round(position_m, 2), round(length_m, 2)
    )


def write(path: Path, loops: Iterable[Loop]) -> None:
    """Write an additional file of SUMO. Raises InputError."""
    with whole_files.replacing(path) as draft, draft.open("w", encoding="utf-8") as file:
        file.write(
            "<!-- Induction loops, made by greenserve detectors. docs/atspm.md explains them. -->\n<additional>\n"
        )
        for loop in loops:
            # NUL: SUMO writes no file; a client reads the loops
            file.write(
                f'    <inductionLoop id={quoteattr(loop.id)} lane={quoteattr(loop.lane)} pos="{loop.position_m:.2f}" '
                f'length="{loop.length_m:.2f}" period="86400" file="NUL">\n'
                f'        <param key="{SIGNAL_KEY}" value={quoteattr(loop.signal)}/>\n'
                f'        <param key="{FUNCTION_KEY}" value="{loop.function}"/>\n'
                f'        <param key="{LANE_KEY}" value={quoteattr(loop.stop_lane)}/>\n'
                "    </inductionLoop>\n"
            )
        file.write("</additional>\n")


def read(path: Path) -> list[Loop]:
    """The loops of a file that `write` has written, in its order; other detectors are left out. Raises InputError."""
    loops = []
    for _, element in elements(path):
        if element.tag != "inductionLoop":
            continue
        params = {param.get("key"): param.get("value", "") for param in element.iter("param")}
        if SIGNAL_KEY not in params:
            continue
        try:
            detector = element.attrib["id"], params[SIGNAL_KEY], _known(params[FUNCTION_KEY]), params[LANE_KEY]
            loops.append(
                Loop(*detector, element.attrib["lane"], float(element.attrib["pos"]), float(element.get("length", "0")))
            )
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{path}: inductionLoop {element.get('id')} is malformed ({error}); "
                "write the file again with greenserve detectors"
            ) from None
    return loops


def _known(function: str) -> str:
    """The function. Raises ValueError if it is not one of FUNCTIONS."""
    if function not in FUNCTIONS:
        raise ValueError(f"{FUNCTION_KEY} = {function!r}")
    return function


def track(connection: DetectorConnection, signals: Container[str], sumo_step_s: float) -> tuple[Detector, ...]:
    """Read the vehicles on the signals' detectors that SUMO has loaded, after each of its steps from now on.

    Returns the detectors in the order of the connection's loops; without any, nothing is read. Raises InputError for a
    detector without a known function.
    """
    found = []
    for loop, (signal, function, stop_lane) in sorted(
        connection.detector_parameters((SIGNAL_KEY, FUNCTION_KEY, LANE_KEY)).items()
    ):
        if signal not in signals:
            continue
        try:
            found.append(Detector(loop, signal, _known(function), stop_lane))
        except ValueError as error:
            raise InputError(
                f"SUMO's inductionLoop {loop} is malformed ({error}); write its file again with greenserve detectors"
            ) from None
    connection.track_detectors([detector.id for detector in found], sumo_step_s)
    return tuple(found)


def numbers(loops: Iterable[Detector]) -> dict[str, int]:
    """By loop, its number among the detectors of its signal, from 1, in order of their ids."""
    count: dict[str, int] = {}
    result = {}
    for loop in sorted(loops, key=lambda loop: loop.id):
        result[loop.id] = count[loop.signal] = count.get(loop.signal, 0) + 1
    return result
