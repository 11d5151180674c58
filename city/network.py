"""Read SUMO's network files, as far as signals need them.

The controller takes its conflict rules from here, the exporter the lanes and phases
of a policy contract. The XML is read in one streaming pass.
"""

import functools
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from city import sumo_files
from city.config import TL, City
from city.errors import InputError
from city.lane_graph import LaneGraph
from city.lanes import is_internal, road_of
from city.movements import Movement, heading_deg, leg_deg, points
from city.right_of_way import (
    MAX_PATH_M,
    Connection,
    Foes,
    Junctions,
    conflicts,
    green_together,
    path_length_m,
)
from city.sumo_files import read_elements, seconds, time_hint

MIN_APPROACH_M = 50.0
"""Length of an approach on which waiting vehicles are seen: about seven cars."""
MESOSCOPIC = "mesosim"
"""SUMO's option for a simulation of roads without lanes, in which no policy sees a vehicle."""
UNNAMED_PROGRAM = "<unknown>"
"""SUMO's id of a program without programID."""
UNBOUNDED_S = 2147483.647
"""SUMO's maxDur of a phase with a minDur alone."""
OFF = "off"
"""Id of SUMO's own program without phases: the signal is off, and drivers follow the right of way."""
SEQUENTIAL_TYPES = ("static", "actuated", "delay_based")
"""Types of programs whose phases follow one another; the phases of a NEMA program are rings that run side by side."""


@dataclass(frozen=True)
class ProgramPhase:
    """A phase of a signal's program."""

    state: str
    """One character per link: r, y, g, G, s, u, o or O."""
    duration_s: float
    min_s: float
    max_s: float
    """minDur and maxDur; the duration if the file has neither."""


@dataclass(frozen=True)
class Program:
    """A signal's program (`tlLogic`)."""

    id: str
    type: str
    offset_s: int
    phases: tuple[ProgramPhase, ...]
    is_coordinated: bool = False
    """True if an actuated program also ends its phases at fixed seconds of a cycle: SUMO's parameter `coordinated`, or
    phases with `earliestEnd` or `latestEnd`."""

    @property
    def is_blinking(self) -> bool:
        """True if it never shows a colour, so that drivers follow the right of way."""
        return all(set(phase.state) <= set("oO") for phase in self.phases)

    @property
    def greens(self) -> tuple[int, ...]:
        """Indices of the green phases."""
        return tuple(i for i, phase in enumerate(self.phases) if is_green(phase.state))


@dataclass(frozen=True)
class ProgramSwitch:
    """A moment at which SUMO switches a signal to another program of its own (`wautSwitch`)."""

    at_s: float
    program: str
    period_s: float = 0.0
    """Time after which the switch repeats; 0 if it does not."""

    def newest_s(self, now: float) -> float:
        """The last second up to `now` at which the switch was due; -inf before the first one."""
        if now < self.at_s:
            return -math.inf
        return now - (now - self.at_s) % self.period_s if self.period_s > 0 else self.at_s


def is_green(state: str) -> bool:
    """True if a phase state is a green phase: no `y` and not all `r`/`s` (sumo-rl's rule)."""
    return "y" not in state and state.count("r") + state.count("s") != len(state)


def green_states(states: Iterable[str]) -> list[str]:
    """The states that are green phases, in order."""
    return [state for state in states if is_green(state)]


OFF_PROGRAM = Program(OFF, OFF, 0, ())


def newest_program(switches: Iterable[ProgramSwitch], now: float, from_s: float = -math.inf) -> str | None:
    """Id of the program of the last switch between `from_s` and `now`, or None without a switch."""
    newest = max(
        ((switch.newest_s(now), k, switch.program) for k, switch in enumerate(switches)), default=(-math.inf, 0, "")
    )
    return newest[2] if -math.inf < newest[0] >= from_s else None


@dataclass(frozen=True)
class SignalNetwork:
    """One SUMO traffic light in its network."""

    id: str
    links: tuple[tuple[tuple[str, str], ...], ...]
    """By link index: the controlled (incoming lane, outgoing lane) pairs."""
    lanes: tuple[str, ...]
    """Incoming lanes, duplicates removed, in link-index order."""
    programs: tuple[Program, ...]
    """In SUMO's order (by program id)."""
    active_program: str
    """The program that SUMO runs after loading: the last one loaded, or the scheduled one."""
    foes: Foes
    """bool [links, links], symmetric: whether two links' paths cross or merge, unless they share the approach."""
    yields: Foes
    """bool [links, links]: whether row yields to column (`response`), for foes that some phase shows green together."""
    permissive: Foes
    """bool [links, links], symmetric: whether two foes may both show g. A link of several connections may yield with
    one and have priority with another; two links may both show g if, of each two connections that are foes, one
    yields."""
    approach_mps: tuple[float, ...] = ()
    """By link index: speed limit of the fastest incoming vehicle lane, in m/s; 0 without such a lane, or if unknown."""
    crossing_m: tuple[float, ...] = ()
    """By link index: length of the pedestrian crossing, in m; 0 if the link is not a crossing."""
    path_m: tuple[float, ...] = ()
    """By link index: length of the longest vehicle path over the junction, in m; 0 without such a path, or if
    unknown."""
    slowest_mps: tuple[float, ...] = ()
    """By link index: speed limit of the slowest incoming vehicle lane, in m/s; 0 without such a lane, or if unknown."""
    switches: tuple[ProgramSwitch, ...] = ()
    """The network's own schedule of programs (WAUT)."""
    invalid: str = ""
    """Why the network's data do not suffice to control the signal; "" if they do."""
    lane_graph: LaneGraph = field(default_factory=LaneGraph, compare=False, repr=False)
    """The lanes of the whole network."""
    movements: tuple[tuple[Movement, ...], ...] = ()
    """By link index: the movement of each controlled connection, in the order of `links`."""

    def __post_init__(self) -> None:
        for name in ("approach_mps", "crossing_m", "path_m", "slowest_mps"):
            object.__setattr__(self, name, getattr(self, name) or (0.0,) * len(self.links))

    @property
    def first_program(self) -> Program:
        """The first program, as in sumo-rl; a program that only blinks is skipped if there is another.

        Raises InputError if the signal has none.
        """
        if not self.programs:
            raise InputError(
                f"signal {self.id} has no program except {OFF!r}; add one in the network or an additional file"
            )
        return next((program for program in self.programs if not program.is_blinking), self.programs[0])

    @property
    def plan(self) -> Program:
        """The fixed plan: the program that SUMO runs if no client sets states."""
        return self.program(self.active_program)

    def program(self, program_id: str) -> Program:
        """A program by its id. Raises InputError if the files do not define it."""
        for program in (*self.programs, OFF_PROGRAM):
            if program.id == program_id:
                return program
        raise InputError(
            f"signal {self.id} has no program {program_id!r}, which its schedule (WAUT) names; "
            "add the additional file that defines it to the sumocfg"
        )

    def scheduled_program(self, now: float) -> str:
        """The id of the program that SUMO runs at second `now` if no client sets states or programs."""
        return newest_program(self.switches, now) or self.active_program

    def may_run(self, program_id: str, now: float) -> bool:
        """True if the files explain that SUMO runs a program at second `now`."""
        if self.switches:  # one may be due at this very second, before or after the reading
            return any(program.id == program_id for program in (*self.programs, OFF_PROGRAM))
        return program_id == self.scheduled_program(now)


@dataclass(frozen=True)
class StreetNetwork:
    """The signals and lanes of a network, and the time in which it is simulated."""

    net_file: Path
    signals: dict[str, SignalNetwork]
    lane_length_m: dict[str, float]
    """By lane of the network."""
    lanes_behind: dict[str, dict[str, float]] = field(default_factory=dict)
    """By incoming lane shorter than MIN_APPROACH_M, lane that leads to it -> distance from its end to the stop line, m.

    A vehicle that stops at the signal may still be on one of them.
    """
    begin_s: float = 0.0
    end_s: float | None = None
    additional: tuple[Path, ...] = ()
    """The additional files with signal programs or schedules, in order."""


def of_city(city: City) -> StreetNetwork:
    """The street that city.toml's [network] names. Raises InputError."""
    for key, path in (("sumocfg", city.network.sumocfg), ("net", city.network.net)):
        if path is not None:
            if not path.is_file():
                raise InputError(
                    f"{city.path}: [network] {key}: there is no file {path}; fix its path, which is relative to "
                    "city.toml"
                )
            begin_s = city.network.begin_s
            return of_sumocfg(path, begin_s) if key == "sumocfg" else read(path, begin_s=begin_s or 0.0)
    raise InputError(f"{city.path}: [network] has neither sumocfg nor net; add one of them")


def signals_of(city: City, tl: TL, street: StreetNetwork) -> list[SignalNetwork]:
    """The signals of a TL in the network. Raises InputError if one is missing."""
    for signal in tl.signals:
        if signal not in street.signals:
            raise InputError(
                f"{city.path}: [tl.{tl.name}] signal {signal} is not in {street.net_file}; "
                f"it has {', '.join(sorted(street.signals))}"
            )
    return [street.signals[signal] for signal in tl.signals]


def of_sumocfg(path: Path, begin_s: float | None = None) -> StreetNetwork:
    """Read the network, signal programs of additional files, begin and end of a .sumocfg. Raises InputError.

    `begin_s`: first simulated second (default: the .sumocfg's).
    """
    values = sumo_files.options(path)
    if values.get(MESOSCOPIC, "").lower() in ("true", "t", "1", "on", "yes", "x", "+"):
        raise InputError(
            f"{path}: {MESOSCOPIC} simulates roads and not lanes, so that no policy sees a vehicle; remove {MESOSCOPIC}"
        )
    net = values.get("net-file")
    if not net:
        raise InputError(f"{path}: net-file is missing; add it to <input>")
    begin, end = (_time(path, key, values[key]) if values.get(key) else None for key in ("begin", "end"))
    listed = sumo_files.listed_files(path, "additional-files")
    additional = [file for outer in listed for file in sumo_files.with_includes(outer)]
    return read(
        path.resolve().parent / net,
        additional,
        (begin or 0.0) if begin_s is None else begin_s,
        None if end is None or end < 0 else end,
    )


def _time(path: Path, key: str, text: str) -> float:
    """A time of a .sumocfg, s. Raises InputError."""
    try:
        value = seconds(text)
    except ValueError:
        raise InputError(f"{path}: {key} = {text!r} is not a time that SUMO reads; write {time_hint(text)}") from None
    if key == "begin" and value < 0:
        raise InputError(f"{path}: begin = {text!r} is negative, which SUMO refuses; write 0 or a later second")
    return value


def read(
    net_file: Path, additional: list[Path] | None = None, begin_s: float = 0.0, end_s: float | None = None
) -> StreetNetwork:
    """Read a .net.xml (or .gz) and the signal programs of additional files.

    Args:
        net_file: the network.
        additional: files that SUMO loads after it, in order.
        begin_s: first simulated second.
        end_s: second at which a simulation ends, if the configuration has one.

    Raises:
        InputError: a file is missing, not XML or not a SUMO network.
    """
    reader = _NetworkReader(net_file, begin_s)
    read_elements(net_file, reader.add_element, "write the file again with netconvert")
    if not reader.junctions.requests:
        raise InputError(f"{net_file}: is not a SUMO network: it has no junctions; name a .net.xml instead")
    for path in additional or []:
        read_elements(path, functools.partial(reader.add_additional, path), "fix it")
    return replace(reader.finish(end_s), additional=tuple(reader.with_programs))


def _phase(attributes: Mapping[str, str]) -> ProgramPhase:
    """A phase of a `tlLogic`, with SUMO's defaults. Raises KeyError, ValueError."""
    duration_s = seconds(attributes["duration"]) if "duration" in attributes else math.nan
    low_s = seconds(attributes["minDur"]) if "minDur" in attributes else duration_s
    no_high_s = UNBOUNDED_S if "minDur" in attributes else duration_s
    high_s = seconds(attributes["maxDur"]) if "maxDur" in attributes else no_high_s
    return ProgramPhase(attributes["state"], duration_s, low_s, high_s)


class _NetworkReader:
    """Collects lanes, connections, programs and junctions of a network file."""

    def __init__(self, net_file: Path, begin_s: float) -> None:
        self.net_file, self.begin_s = net_file, begin_s
        self.lanes = LaneGraph()
        self.shape: dict[str, str] = {}
        self.programs: dict[str, dict[str, Program]] = {}
        self.active: dict[str, str] = {}
        self.connections: dict[str, list[Connection]] = {}
        self.junctions = Junctions()
        self.crossed_roads: dict[str, tuple[str, ...]] = {}
        """By lane of a pedestrian crossing, the roads that it crosses."""
        self.street_names: dict[str, str] = {}
        """By road."""
        self.schedules: dict[str, tuple[str, list[ProgramSwitch]]] = {}
        """By WAUT, (its first program, its switches)."""
        self.schedules_of: dict[str, list[str]] = {}
        """By signal, the WAUTs that it follows."""
        self.with_programs: dict[Path, None] = {}
        """The additional files with programs or schedules, in order."""

    def add_element(self, element: ET.Element) -> None:
        attributes = element.attrib
        if element.tag == "lane":
            self.lanes.length_m[attributes["id"]] = float(attributes["length"])
            self.lanes.limit_mps[attributes["id"]] = float(attributes["speed"])
            self.shape[attributes["id"]] = attributes.get("shape", "")
        elif element.tag == "edge":
            self.add_edge(element)
        elif element.tag == "tlLogic":
            self.add_program(element, None)
        elif element.tag == "connection":
            self.add_connection(attributes)
        elif element.tag == "junction" and attributes.get("type") != "internal":
            self.junctions.add_junction(element)
        else:
            self.add_schedule(element)

    def add_edge(self, element: ET.Element) -> None:
        attributes = element.attrib
        if "name" in attributes:
            self.street_names[attributes["id"]] = attributes["name"]
        if attributes.get("function") == "crossing":
            for lane in element.iter("lane"):
                self.crossed_roads[lane.attrib["id"]] = tuple(attributes.get("crossingEdges", "").split())

    def add_additional(self, path: Path, element: ET.Element) -> None:
        """Add an element of an additional file."""
        if element.tag in ("tlLogic", "WAUT", "wautJunction"):
            self.with_programs[path] = None
        if element.tag == "tlLogic":
            self.add_program(element, path)
        else:
            self.add_schedule(element)

    def add_schedule(self, element: ET.Element) -> None:
        """Add a WAUT, or a signal that follows one."""
        attributes = element.attrib
        if element.tag == "WAUT":
            reference_s, period_s = (seconds(attributes.get(key, "0")) for key in ("refTime", "period"))
            switches = []
            for switch in element.iter("wautSwitch"):
                at_s = reference_s + seconds(switch.attrib["time"])
                at_s = at_s % period_s if period_s > 0 else at_s
                switches.append(ProgramSwitch(at_s, switch.attrib["to"], max(period_s, 0.0)))
            self.schedules[attributes["id"]] = attributes["startProg"], switches
        elif element.tag == "wautJunction":
            self.schedules_of.setdefault(attributes["junctionID"], []).append(attributes["wautID"])

    def add_connection(self, attributes: dict[str, str]) -> None:
        from_lane = f"{attributes['from']}_{attributes['fromLane']}"
        to_lane = f"{attributes['to']}_{attributes['toLane']}"
        via = attributes.get("via", "")
        if attributes["from"].startswith(":") and via:
            # a left turn that waits inside the junction continues on a second lane
            self.junctions.continuation[from_lane] = via
        if not (attributes["from"].startswith(":") or attributes["to"].startswith(":")):
            self.junctions.add_connection(from_lane, to_lane)
            self.lanes.add_connection(from_lane, to_lane, "tl" in attributes)
        # a pedestrian crossing is its own internal lane; the opposite direction (linkIndex2) starts on it
        crossing = next((lane for lane in (from_lane, to_lane) if lane in self.crossed_roads), "")
        if crossing:
            self.lanes.add_walking_area(crossing, attributes["to" if crossing == from_lane else "from"])
        if "tl" in attributes:
            index, turn = int(attributes["linkIndex"]), attributes.get("dir", "s")
            link = Connection(attributes["tl"], index, from_lane, to_lane, via or crossing, turn)
            self.connections.setdefault(link.signal, []).append(link)

    def add_program(self, element: ET.Element, path: Path | None) -> None:
        signal = element.attrib["id"]
        program_id = element.attrib.get("programID", UNNAMED_PROGRAM)
        phases = [_phase(phase.attrib) for phase in element.iter("phase")]
        offset = element.attrib.get("offset", "0")
        loaded = self.programs.get(signal, {}).get(program_id)
        if not phases and loaded is not None:
            # tlsCoordinator writes only offsets; SUMO keeps the phases that it has loaded before
            phases = list(loaded.phases)
        is_coordinated = any(
            param.get("key") == "coordinated" and param.get("value", "").lower() in ("true", "1")
            for param in element.iter("param")
        ) or any("earliestEnd" in phase.attrib or "latestEnd" in phase.attrib for phase in element.iter("phase"))
        program = Program(
            program_id,
            element.attrib.get("type", "static"),
            int(self.begin_s if offset == "begin" else seconds(offset)),
            tuple(phases),
            is_coordinated,
        )
        if path is not None and signal not in self.programs:
            raise InputError(
                f"{path}: has a program for signal {signal}, which is not in the network; remove it or use its network"
            )
        programs = self.programs.setdefault(signal, {})
        if program.id != OFF:
            programs[program.id] = program
        self.active[signal] = program.id

    def finish(self, end_s: float | None) -> StreetNetwork:
        signals = {
            signal: self._signal(signal, programs, connections)
            for signal, programs in self.programs.items()
            if (connections := self.connections.get(signal))
        }
        incoming = {lane for signal in signals.values() for lane in signal.lanes if not is_internal(lane)}
        short = [lane for lane in sorted(incoming) if self.lanes.length_m[lane] < MIN_APPROACH_M]
        behind = {lane: self.lanes.behind(lane, MIN_APPROACH_M) for lane in short}
        return StreetNetwork(self.net_file, signals, self.lanes.length_m, behind, self.begin_s, end_s)

    def _signal(self, signal: str, programs: dict[str, Program], connections: list[Connection]) -> SignalNetwork:
        active, switches = self._schedule(signal)
        states = [phase.state for program in programs.values() for phase in program.phases]
        # SUMO accepts states with more characters than there are links
        size = max([connection.index + 1 for connection in connections] + [len(state) for state in states])
        by_link: list[list[Connection]] = [[] for _ in range(size)]
        for connection in connections:
            by_link[connection.index].append(connection)
        try:
            movements = [tuple(self._movement(connection) for connection in of_link) for of_link in by_link]
            foes, yields, permissive = conflicts(size, connections, self.junctions, self.shape)
            path_m, invalid_path = self._path_m(size, connections)
        except (KeyError, IndexError, ValueError) as error:
            raise InputError(
                f"{self.net_file}: signal {signal}'s lanes have malformed shapes ({error!r}); write it again with "
                "netconvert"
            ) from None
        together = green_together(size, states)
        links = tuple(tuple((link.from_lane, link.to_lane) for link in of_link) for of_link in by_link)
        speeds_mps = [self._speeds(pairs) for pairs in links]
        return SignalNetwork(
            signal,
            links,
            tuple(dict.fromkeys(lane for pairs in links for lane, _ in pairs)),
            tuple(programs[key] for key in sorted(programs)),
            newest_program(switches, self.begin_s) or active,
            foes,
            yields & together,
            permissive & together,
            tuple(max(speeds, default=0.0) for speeds in speeds_mps),
            tuple(self._crossing_m(pairs) for pairs in links),
            tuple(path_m),
            tuple(min(speeds, default=0.0) for speeds in speeds_mps),
            tuple(switches),
            invalid_path,
            self.lanes,
            tuple(movements),
        )

    def _schedule(self, signal: str) -> tuple[str, list[ProgramSwitch]]:
        """(program that a signal begins with, the switches of the WAUTs that it follows). Raises InputError."""
        active, switches = self.active[signal], list[ProgramSwitch]()
        for schedule in self.schedules_of.get(signal, []):
            if schedule not in self.schedules:
                raise InputError(
                    f"{self.net_file}: signal {signal} follows the schedule {schedule}, which no file defines; add its "
                    "<WAUT>"
                )
            active, schedule_switches = self.schedules[schedule]
            switches += schedule_switches
        return active, switches

    def _movement(self, connection: Connection) -> Movement:
        """The movement of a connection. Raises KeyError, IndexError or ValueError if a shape is malformed."""
        ends = connection.from_lane, connection.to_lane
        crossing = next((lane for lane in ends if lane in self.crossed_roads), None)
        if crossing is None:
            heading = heading_deg(points(self.shape[connection.from_lane]), at_end=True)
            road = road_of(connection.from_lane)
            return Movement(road, connection.turn or "s", heading, street=self.street_names.get(road, ""))
        roads = self.crossed_roads[crossing]
        street = " and ".join(dict.fromkeys(self.street_names[road] for road in roads if road in self.street_names))
        road = next((road for road in roads if f"{road}_0" in self.shape), "")
        if not road:
            return Movement("", "", 0.0, roads, street)
        return Movement(road, "", leg_deg(points(self.shape[crossing]), points(self.shape[f"{road}_0"])), roads, street)

    def _crossing_m(self, pairs: Sequence[tuple[str, str]]) -> float:
        """Length of the pedestrian crossing of a link, m; 0 without one."""
        lanes = [lane for pair in pairs for lane in pair if lane in self.crossed_roads]
        return max((self.lanes.length_m[lane] for lane in lanes), default=0.0)

    def _speeds(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Speed limits of the incoming vehicle lanes of a link, m/s."""
        return [self.lanes.limit_mps[a] for a, b in pairs if not {a, b} & self.crossed_roads.keys()]

    def _path_m(self, size: int, connections: list[Connection]) -> tuple[list[float], str]:
        """(by link, length of its longest vehicle path over the junction in m; text about an invalid path or "")."""
        path_m, invalid_path = [0.0] * size, ""
        for connection in connections:
            if not {connection.from_lane, connection.to_lane} & self.crossed_roads.keys():
                length_m = path_length_m(connection, self.junctions.continuation, self.shape)
                if length_m <= MAX_PATH_M:
                    path_m[connection.index] = max(path_m[connection.index], length_m)
                elif not invalid_path:
                    lane = connection.from_lane + (f" over lane {connection.via}" if connection.via else "")
                    invalid_path = f"the path from lane {lane} is {length_m:.3g} m long, so its points are wrong"
        return path_m, invalid_path
