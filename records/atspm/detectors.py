"""Detectors before a city's signals, as induction loops of SUMO in an additional file (`greenserve detectors`).

    stop line                                                             advance
    |<- Yellow_Red, a point at 0.5 m
    |  |<----- Presence, 6 m long, from 1 m on ----->|       ...             |<- a point, 5 s before the stop line

Each incoming vehicle lane has its own. Advance detectors count arrivals, presence detectors (a vehicle that waits
stands on them) show occupancy, and those at the stop line what enters the junction. Lanes inside junctions and
crossings have none. A short lane has a shorter presence detector, and its advance detectors on the lanes behind it if
these lead nowhere else; it has none if they would stand in a short queue. SUMO's params in the file say to which
signal, function and stop line a detector belongs.
https://sumo.dlr.de/docs/Simulation/Output/Induction_Loops_Detectors_%28E1%29.html
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from city import config, network, program, whole_files
from city.arguments import Parser
from city.errors import InputError
from city.lanes import is_internal
from city.network import SignalNetwork, StreetNetwork
from city.sumo_files import elements
from controller.recording.detectors import (
    ADVANCE,
    FUNCTION_KEY,
    FUNCTIONS,
    LANE_KEY,
    PRESENCE,
    SIGNAL_KEY,
    YELLOW_RED,
    Detector,
    known_function,
)

ADVANCE_TIME_S = 5.0
"""Travel time at the speed limit from an advance detector to the stop line: the begin of the dilemma zone."""
MIN_ADVANCE_M = 25.0
"""Distance to the stop line below which an advance detector would often stand in the queue."""
PRESENCE_LENGTH_M = 6.0
PRESENCE_GAP_M = 1.0
"""Distance from a presence detector to the stop line; SUMO's drivers stop 1 m before it."""
STOP_LINE_GAP_M = 0.5
"""Distance from a detector for yellow and red to the stop line: nearer than any vehicle that waits."""
MIN_BEGIN_M = 0.1
"""Distance from a lane's begin at which a detector may begin."""
MIN_SHARE = 0.999
"""Share of a lane's vehicles that go to the stop line, from which all of them count as doing so."""


@dataclass(frozen=True)
class PlacedDetector(Detector):
    """A detector with its place."""

    lane: str
    position_m: float
    """Its begin, from the begin of the lane."""
    length_m: float


def place(street: StreetNetwork) -> list[PlacedDetector]:
    """The detectors of every signal of a network: signals in order of their ids, lanes in order of their links."""
    placed: dict[str, PlacedDetector] = {}
    for signal in sorted(street.signals.values(), key=lambda signal: signal.id):
        lanes = [
            lane
            for pairs, movements in zip(signal.links, signal.movements, strict=True)
            for (lane, _), movement in zip(pairs, movements, strict=True)
            if not movement.is_crossing and not is_internal(lane)
        ]
        for lane in lanes:
            for detector in (*_advance(signal, lane), *_at_stop_line(signal.id, lane, street.lane_length_m[lane])):
                placed.setdefault(detector.id, detector)
    return list(placed.values())


def _advance(signal: SignalNetwork, lane: str) -> list[PlacedDetector]:
    """The advance detectors of a lane: on it, or on the lanes that lead to it and nowhere else, if it is too short."""
    graph = signal.lane_graph
    setback_m = ADVANCE_TIME_S * graph.limit_mps[lane]
    upstream = graph.upstream(lane, setback_m)
    if any(before.share < MIN_SHARE for before in upstream):
        # some vehicles of the lanes behind go to other lanes
        upstream = upstream[:1]
    reached = {before.lane for before in upstream}
    placed = []
    for before in upstream:
        length_m = graph.length_m[before.lane]
        is_first = reached.isdisjoint(graph.unsignalled_before.get(before.lane, ()))
        from_end_m = min(setback_m - before.distance_m, length_m - MIN_BEGIN_M)
        is_here = setback_m <= before.distance_m + length_m or is_first
        if is_here and before.distance_m + from_end_m >= MIN_ADVANCE_M:
            placed.append(_placed(signal.id, before.lane, ADVANCE, length_m - from_end_m, 0.0, lane))
    return placed


def _at_stop_line(signal: str, lane: str, length_m: float) -> list[PlacedDetector]:
    """The detectors at a lane's stop line; fewer if it is very short."""
    placed = []
    begin_m = max(length_m - PRESENCE_GAP_M - PRESENCE_LENGTH_M, MIN_BEGIN_M)
    end_m = length_m - PRESENCE_GAP_M
    if end_m > begin_m:
        placed.append(_placed(signal, lane, PRESENCE, begin_m, end_m - begin_m, lane))
    if length_m - STOP_LINE_GAP_M >= MIN_BEGIN_M:
        placed.append(_placed(signal, lane, YELLOW_RED, length_m - STOP_LINE_GAP_M, 0.0, lane))
    return placed


def _placed(
    signal: str, lane: str, function: str, position_m: float, length_m: float, stop_lane: str
) -> PlacedDetector:
    return PlacedDetector(
        f"{function.lower()}:{lane}", signal, function, stop_lane, lane, round(position_m, 2), round(length_m, 2)
    )


def write(path: Path, placed: Iterable[PlacedDetector]) -> None:
    """Write an additional file of SUMO. Raises InputError."""
    with whole_files.replacing(path) as draft, draft.open("w", encoding="utf-8") as file:
        file.write("<!-- Detectors, made by greenserve detectors. docs/atspm.md explains them. -->\n<additional>\n")
        for detector in placed:
            # NUL: SUMO writes no file; a client reads the detectors
            file.write(
                f"    <inductionLoop id={quoteattr(detector.id)} lane={quoteattr(detector.lane)} "
                f'pos="{detector.position_m:.2f}" length="{detector.length_m:.2f}" period="86400" file="NUL">\n'
                f'        <param key="{SIGNAL_KEY}" value={quoteattr(detector.signal)}/>\n'
                f'        <param key="{FUNCTION_KEY}" value="{detector.function}"/>\n'
                f'        <param key="{LANE_KEY}" value={quoteattr(detector.stop_lane)}/>\n'
                "    </inductionLoop>\n"
            )
        file.write("</additional>\n")


def read(path: Path) -> list[PlacedDetector]:
    """The detectors of a file of `write`, in its order; other detectors are left out. Raises InputError."""
    found = []
    for _, element in elements(path):
        if element.tag != "inductionLoop":
            continue
        params = {param.get("key"): param.get("value", "") for param in element.iter("param")}
        if SIGNAL_KEY not in params:
            continue
        try:
            detector = PlacedDetector(
                id=element.attrib["id"],
                signal=params[SIGNAL_KEY],
                function=known_function(params[FUNCTION_KEY]),
                stop_lane=params[LANE_KEY],
                lane=element.attrib["lane"],
                position_m=float(element.attrib["pos"]),
                length_m=float(element.get("length", "0")),
            )
            found.append(detector)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{path}: inductionLoop {element.get('id')} is malformed ({error}); "
                "write the file again with greenserve detectors"
            ) from None
    return found


def detector_numbers(detectors: Iterable[Detector]) -> dict[str, int]:
    """By detector, its number among the detectors of its signal, from 1, in order of their ids."""
    count: dict[str, int] = {}
    result = {}
    for detector in sorted(detectors, key=lambda detector: detector.id):
        result[detector.id] = count[detector.signal] = count.get(detector.signal, 0) + 1
    return result


def main(argv: list[str], prog: str = "greenserve detectors") -> int:
    """Write the file and print what is in it. Exit code: 0; 2 if the input is wrong."""

    def run() -> int:
        args = parser(prog).parse_args(argv)
        city = config.load(args.city)
        street = network.of_city(city)
        placed = place(street)
        if not placed:
            raise InputError(
                f"{street.net_file}: has no signal with a vehicle lane; name another network in {city.path}"
            )
        if not args.out.parent.is_dir():
            raise InputError(f"{args.out}: there is no folder {args.out.parent}; create it, or pass another --out")
        write(args.out, placed)
        count = Counter(detector.function for detector in placed)
        lanes = len({detector.stop_lane for detector in placed})
        far = len({detector.stop_lane for detector in placed if detector.function == ADVANCE})
        text = ", ".join(f"{count[function]} {function}" for function in FUNCTIONS)
        print(f"wrote {args.out}: {text}, on {lanes} lanes of {len({detector.signal for detector in placed})} signals")
        if far < lanes:
            print(f"{lanes - far} lanes are too short for an advance detector")
        print(f"add it to additional-files in {city.network.sumocfg or 'your .sumocfg'}")
        return 0

    return program.run(run)


def parser(prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(
        prog=prog,
        description="Write an additional file with advance and stop-bar detectors for a city's signals.",
    )
    parser.add_city()
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        default=Path("detectors.add.xml"),
        help="file to write (default: ./detectors.add.xml)",
    )
    return parser
