"""`greenserve city init`: a first city.toml for a SUMO network, with every signal a TL."""

import argparse
import copy
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.sax.saxutils import quoteattr

from city import network, sumo_files, toml_text, whole_files
from city.arguments import Parser, simulated_second
from city.config import STREET_MAX_RED_S
from city.errors import InputError, refuse
from city.names import MAX_SIGNAL_NAME, canonical, key
from city.network import UNNAMED_PROGRAM, Program, SignalNetwork, StreetNetwork
from city.sumo_files import elements, read_elements

MAX_REASONS = 20
"""Signals whose reasons one error line has."""
REPAIRED_PROGRAMS = "repaired.add.xml"
"""Name of the additional file with repaired programs."""
SUMO_RL = "sumo-rl"
RESERVED_NAMES = ("all", "city")
"""`--tl all` means every TL, and `city` is the fleet's name by default."""
STREET = "street"
"""The dialect of the pretrained policy, which takes the greens of the program that runs."""
_MAX_RED = (
    f"\nmax_red_s = {STREET_MAX_RED_S:g}     # a link with a longer red is served next, also if its detector fails"
)
_MAX_RED_OF_CROSSINGS = """
# max_red_s = 120     # a crossing with a longer red is served next: dialect street alone observes pedestrians"""
SUMO_RL_OPTIONS = {"time-to-teleport": "-1", "max-depart-delay": "-1", "waiting-time-memory": "1000"}
"""Options that sumo-rl's environment passes to SUMO."""


def parser(dialects: Sequence[str], prog: str) -> Parser:
    """The flags of the command line."""
    parser = Parser(prog=prog, description="Describe a city for all commands.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    summary = "write a first city.toml for a network: every signal that a policy can control is a TL"
    init = commands.add_parser("init", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    street = init.add_mutually_exclusive_group(required=True)
    street.add_argument("--net", type=Path, metavar="FILE", help="SUMO network (.net.xml, also .gz)")
    street.add_argument(
        "--sumocfg", type=Path, metavar="FILE", help="existing SUMO configuration, instead of --net and --route"
    )
    init.add_argument(
        "--route",
        type=Path,
        metavar="FILE",
        help="demand; also writes a .sumocfg of network and demand, with sumo-rl's options",
    )
    init.add_argument(
        "--dialect", default=SUMO_RL, choices=dialects, help=f"observation and action of every TL (default: {SUMO_RL})"
    )
    init.add_argument(
        "--begin-time", type=simulated_second, default=0.0, metavar="TIME",
        help="time at which a simulation begins, s or h:m:s such as 07:30:00 (default: 0)",
    )  # fmt: skip
    init.add_argument(
        "--num-seconds",
        type=int,
        metavar="S",
        help="simulated time (default: until the demand has left; train and evaluate need an end)",
    )
    init.add_argument(
        "--repair", action="store_true",
        help="for signals that give G to two foes, write an additional file with programs that give g to the one that "
        "yields by SUMO's right of way, and a .sumocfg that loads it",
    )  # fmt: skip
    init.add_argument(
        "--out", type=Path, default=Path("city.toml"), metavar="FILE", help="file to write (default: ./city.toml)"
    )
    return parser


@dataclass(frozen=True)
class Choice:
    """The greens from which a policy chooses at a signal."""

    program: str
    """Id of the program."""
    greens: Sequence[str]


@dataclass(frozen=True)
class Repair:
    """A signal's running program, repaired."""

    signal: SignalNetwork
    """The signal as it is with the repaired program."""
    original: Program
    states: Mapping[str, str]
    """State of the original program -> the state with g."""

    @property
    def program(self) -> Program:
        return self.signal.plan

    @property
    def links(self) -> list[int]:
        """The links that show g instead of G in some phase."""
        return sorted({k for a, b in self.states.items() for k in range(len(a)) if a[k] != b[k]})


def main(
    argv: list[str],
    dialects: Sequence[str],
    choose: Callable[[SignalNetwork], Choice],
    yielding_states: Callable[[SignalNetwork], Mapping[str, str]],
    prog: str = "greenserve city",
    advice: Callable[[Path], Sequence[str]] = lambda path: (),
) -> int:
    """Write city.toml and print which signals were renamed or left out. Exit code: 0; 2 if the input is wrong.

    `choose`: what a policy chooses from at a signal; raises InputError if there is nothing to choose.
    `yielding_states`: by state of a signal's program with green foes, the state with g for the one that yields.
    `advice`: lines to print about the city.toml that was written.
    """
    args = parser(dialects, prog).parse_args(argv)
    _check_flags(args)
    print(_init(args, choose, yielding_states))
    for line in advice(args.out):
        print(line)
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    is_too_short = args.num_seconds is not None and args.num_seconds < 1
    refuse(
        (args.begin_time < 0 or is_too_short, "--begin-time must be at least 0, and --num-seconds at least 1"),
        (args.sumocfg and args.route, "--sumocfg names its own demand; leave --route out, or pass --net"),
        (
            args.repair and not (args.route or args.sumocfg),
            "--repair needs a .sumocfg that loads the repaired programs; pass --route or --sumocfg",
        ),
        (
            not args.route and (args.begin_time or args.num_seconds),
            "--begin-time and --num-seconds are for the .sumocfg that is written with --route; pass it, or leave them "
            "out",
        ),
    )


def _init(
    args: argparse.Namespace,
    choose: Callable[[SignalNetwork], Choice],
    yielding_states: Callable[[SignalNetwork], Mapping[str, str]],
) -> str:
    """Write city.toml, and a .sumocfg if demand is given; return a summary. Raises InputError, and overwrites
    nothing."""
    out: Path = args.out
    folder, source = out.resolve().parent, args.net or args.sumocfg
    if not source.is_file():
        raise InputError(f"{source}: no such file; pass another {'--net' if args.net else '--sumocfg'}")
    street = network.read(args.net) if args.net else network.of_sumocfg(args.sumocfg)
    original, repairs = street, _repairs(street, choose, yielding_states) if args.repair else {}
    street = replace(street, signals=street.signals | {name: each.signal for name, each in repairs.items()})
    choices, left_out = _choices(street, choose)
    tls = tl_names(choices)
    if not tls:
        reasons = list(left_out.values())
        reason = "; ".join(reasons[:MAX_REASONS]) or "it has no signal"
        if len(reasons) > MAX_REASONS:
            reason += f"; and {len(reasons) - MAX_REASONS} more signals"
        raise InputError(f"{source}: no signal can be controlled ({reason}); pass another network")
    if not out.parent.is_dir():
        raise InputError(f"{out}: there is no folder {out.parent}; create it, or pass another --out")
    programs = out.with_name(REPAIRED_PROGRAMS) if repairs else None
    files = _configuration(args, programs)
    sumocfg = next(iter(files), args.sumocfg)
    if programs is not None:
        files[programs] = repaired_file(original, list(repairs.values()))
    files[out] = city_toml(source, sumocfg, street, tls, choices, left_out, args.dialect, folder)
    _write_all(files, out)
    lines = [f"{signal} -> TL {tl}" for tl, signal in tls.items() if tl != signal]
    lines += [_describe_repair(signal, repair) for signal, repair in repairs.items()]
    lines += [f"left out: {reason}" for reason in left_out.values()]
    if repairs:
        lines.append(f"repaired programs run only in a SUMO that loads them: start it with -c {sumocfg}")
    elif args.repair:
        lines.append("nothing to repair: no signal gives G to two foes of which one yields")
    count = f"{len(tls)} TL{'s' * (len(tls) > 1)}"
    return "\n".join([*lines, f"wrote {' and '.join(map(str, files))}: {count} of dialect {args.dialect}"])


def _configuration(args: argparse.Namespace, programs: Path | None) -> dict[Path, str]:
    """The .sumocfg to write and its text; empty if an existing one is used as it is. Raises InputError.

    `programs`: additional file that it loads.
    """
    out: Path = args.out
    if args.route is None:
        if programs is None:
            return {}
        repaired = args.sumocfg.with_name(f"{args.sumocfg.stem}.repaired.sumocfg")
        return {repaired: _with_additional_file(args.sumocfg, programs)}
    for depth, element in elements(args.route):
        if depth == 0 and element.tag not in ("routes", "additional"):
            raise InputError(
                f"{args.route}: is not a route file: its root is <{element.tag}>, not <routes>; pass another --route"
            )
        element.clear()
    sumocfg = out.with_name(args.net.name.split(".")[0] + ".sumocfg")
    if sumocfg == out:
        raise InputError(f"--out {out}: the .sumocfg has the same name; pass another --out, such as city.toml")
    folder = out.resolve().parent
    return {sumocfg: sumo_configuration(args.net, [args.route], folder, args.begin_time, args.num_seconds, programs)}


def _choices(
    street: StreetNetwork, choose: Callable[[SignalNetwork], Choice]
) -> tuple[dict[str, Choice], dict[str, str]]:
    """(signal -> what a policy chooses from, signal -> why a policy cannot control it)."""
    choices, left_out = {}, {}
    for signal in street.signals.values():
        try:
            choices[signal.id] = choose(signal)
        except InputError as error:
            left_out[signal.id] = str(error)
    return choices, left_out


def _repairs(
    street: StreetNetwork,
    choose: Callable[[SignalNetwork], Choice],
    yielding_states: Callable[[SignalNetwork], Mapping[str, str]],
) -> dict[str, Repair]:
    """By signal that a policy can control only with a repaired program, the repair."""
    states = {signal.id: yielding_states(signal) for signal in street.signals.values()}
    repairs = {name: repair(street.signals[name], own) for name, own in states.items() if own}
    _, left_out = _choices(replace(street, signals={name: each.signal for name, each in repairs.items()}), choose)
    return {name: each for name, each in repairs.items() if name not in left_out}


def repair(signal: SignalNetwork, states: Mapping[str, str]) -> Repair:
    """Repair the program that runs: it shows g instead of G to links that yield.

    SUMO refuses a second program with the same id, so each has an id of its own; it is loaded last, and so it runs.
    `states`: state -> the state with g, for those that change.
    """
    original, ids = signal.plan, {program.id for program in signal.programs}
    name = "repaired" if original.id == UNNAMED_PROGRAM else f"{original.id}-repaired"
    while name in ids:
        name += "-again"
    phases = tuple(replace(phase, state=states.get(phase.state, phase.state)) for phase in original.phases)
    programs = sorted((*signal.programs, replace(original, id=name, phases=phases)), key=lambda program: program.id)
    return Repair(replace(signal, programs=tuple(programs), active_program=name), original, states)


def repaired_file(street: StreetNetwork, repairs: Sequence[Repair]) -> str:
    """The text of the additional file with the repaired programs, else as in their own files. Raises InputError."""
    wanted = {(each.signal.id, each.original.id): each for each in repairs}
    found: dict[tuple[str, str], ET.Element] = {}

    def read(element: ET.Element) -> None:
        place = element.get("id", ""), element.get("programID", UNNAMED_PROGRAM)
        if element.tag == "tlLogic" and place in wanted:
            if element.find("phase") is not None:
                found[place] = copy.deepcopy(element)
            else:  # a file of offsets (tlsCoordinator)
                found[place].set("offset", element.get("offset", "0"))

    for path in (street.net_file, *street.additional):
        read_elements(path, read, "fix it")
    root = ET.Element("additional")
    for place, logic in found.items():
        logic.set("programID", wanted[place].program.id)
        for phase in logic.iter("phase"):
            phase.set("state", wanted[place].states.get(phase.attrib["state"], phase.attrib["state"]))
        root.append(logic)
    ET.indent(root, "    ")
    return f"{ET.tostring(root, 'unicode')}\n"


def _describe_repair(signal: str, repair: Repair) -> str:
    links = ", ".join(map(str, repair.links))
    return (
        f"repaired {signal}: program {repair.program.id!r} is {repair.original.id!r} with g instead of G for links "
        f"that yield by SUMO's right of way: {links}"
    )


def _with_additional_file(sumocfg: Path, file: Path) -> str:
    """The text of a .sumocfg in the same folder that also loads a file, last. Raises InputError."""
    parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
    with sumo_files.opened(sumocfg) as source:
        root = ET.parse(source, parser).getroot()
    path = _relative(file, sumocfg.resolve().parent)
    option = next((each for each in root.iter() if sumo_files.long_name(each.tag) == "additional-files"), None)
    if option is None:
        section = root.find("input")
        option = ET.SubElement(root if section is None else section, "additional-files", value="")
    key = "value" if "value" in option.attrib else "v"
    option.set(key, ",".join(filter(None, (option.get(key), path))))
    return f"{ET.tostring(root, 'unicode')}\n"


def _write_all(files: Mapping[Path, str], out: Path) -> None:
    """Write all files or none; existing ones are not overwritten. Raises InputError."""
    for path, text in files.items():
        if path.exists():
            remedy = (
                "pass it as --sumocfg instead of --net and --route"
                if path.suffix == ".sumocfg" and path != out
                else "pass another --out, or remove it"
            )
            raise InputError(f"{path}: exists already, and is not overwritten; {remedy}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{path}: cannot be written: a name in it is not UTF-8; rename the files") from None
    try:
        for path, text in files.items():
            whole_files.write(path, text)
    except InputError:
        for path in files:
            path.unlink(missing_ok=True)
        raise


def tl_names(signals: Iterable[str]) -> dict[str, str]:
    """TL name -> signal, in the signals' order.

    A name is the signal's id, with hyphens for characters that a folder's name should not have. A signal with an id of
    more than MAX_SIGNAL_NAME characters, such as those of joined junctions, gets a number: TL001.
    """
    names: dict[str, str] = {}
    used_keys = set(RESERVED_NAMES)
    number_of_long = 0
    for signal in signals:
        is_long = len(signal) > MAX_SIGNAL_NAME
        number_of_long += is_long
        short = re.sub(r"[^A-Za-z0-9._]+", "-", signal).strip("-._") or "signal"
        name = canonical(f"TL{number_of_long:03d}" if is_long else short)
        number, unique = 1, name
        while key(unique).lower() in used_keys:
            number += 1
            unique = f"{name}-{number}"
        names[unique] = signal
        used_keys.add(key(unique).lower())
    return names


def city_toml(
    source: Path,
    sumocfg: Path | None,
    street: StreetNetwork,
    tls: Mapping[str, str],
    choices: Mapping[str, Choice],
    left_out: Mapping[str, str],
    dialect: str,
    folder: Path,
) -> str:
    """The text of city.toml.

    Args:
        source: network or .sumocfg that the file is made from.
        sumocfg: SUMO configuration, if there is one.
        street: the network.
        tls: TL name -> signal.
        choices: by signal.
        left_out: signal -> why a policy cannot control it.
        dialect: of every TL.
        folder: base of the file's paths.
    """
    street_file = (
        f"{'net' if sumocfg is None else 'sumocfg'} = {toml_text.string(_relative(sumocfg or source, folder))}"
    )
    demand = (
        "" if sumocfg else '\n# sumocfg = "..."  # network and demand, to simulate: greenserve city init --route FILE'
    )
    signals = "\n".join(_tl_table(tl, street.signals[signal], choices[signal], dialect) for tl, signal in tls.items())
    has_crossings = any(any(street.signals[signal].crossing_m) for signal in tls.values())
    max_red = _MAX_RED if dialect == STREET else _MAX_RED_OF_CROSSINGS if has_crossings else ""
    signals += "".join(f"\n# Left out: {toml_text.comment(reason)}" for reason in left_out.values()) + (
        "\n" if left_out else ""
    )
    return f"""\
# Made by greenserve city init from {toml_text.comment(source.name)}. Every key: docs/reference/city-toml.md

# The street. Paths are relative to this file.
[network]
{street_file}{demand}

# Where training wrote its checkpoints. The name of a checkpoint, or of its folder, contains the TL's name and
# the model number, such as trial_3 or 50000_steps.
[training]
model_path = "checkpoints"
# padding = "supersuit"  # one policy for TLs of several sizes, padded by SuperSuit

# Where greenserve export writes models, and where greenserve serve serves them.
[serving]
models_dir = "models"
address = "127.0.0.1:8500"

# Minimum times for every policy. A yellow lasts at least 3 s, and longer where the approach
# allows more than 50 km/h; it and the red before a foe's green are not shorter than in the signal's own
# program. A policy that was trained with shorter changes loses green time to them: greenserve check prints
# the times to train with.
[safety]
min_yellow_s = 3
min_green_s = 4
# all_red_s = "computed"  # red until the last vehicle has cleared the junction; or a number of seconds
# floors = "dialect"      # exactly the times of training: only to compare with training{max_red}

# Without an answer of its policy, a TL holds its state for hold_s, then runs its own program.
[controller]
deadline_ms = 500
hold_s = 15
# http_address = "127.0.0.1:9108"  # /metrics, /healthz and /livez

# One table for each TL.
{signals}"""


def _tl_table(tl: str, signal: SignalNetwork, choice: Choice, dialect: str) -> str:
    lanes, greens = len(signal.lanes), len(choice.greens)
    # the id also in the table's header, because a search for the signal shows this line
    alias = f"  # {toml_text.comment(signal.id)}" if len(signal.id) > MAX_SIGNAL_NAME else ""
    lines = [
        f"[tl.{toml_text.key(tl)}]{alias}",
        f"signals = [{toml_text.string(signal.id)}]",
        f"dialect = {toml_text.string(dialect)}",
    ]
    if dialect == SUMO_RL:
        lines[1] += f"  # {greens} green phases, {lanes} lanes: an observation of size {greens + 1 + 2 * lanes}"
        # sumo-rl's defaults, under sumo-rl's names
        lines += ["delta_time = 5", "yellow_time = 2", "min_green = 5"]
    if dialect == STREET:
        return "\n".join(lines) + "\n"
    first = signal.first_program
    if choice.program != first.id and set(choice.greens) != {first.phases[k].state for k in first.greens}:
        reason = (
            f"it runs at the begin time; a policy of sumo-rl is trained on the first, {toml_text.comment(first.id)}"
        )
        lines.append(f"program = {toml_text.string(choice.program)}  # {reason}")
    return "\n".join(lines) + "\n"


def sumo_configuration(
    net: Path,
    routes: Sequence[Path],
    folder: Path,
    begin_s: float,
    seconds: float | None,
    additional: Path | None = None,
    sumo_options: Mapping[str, str] = SUMO_RL_OPTIONS,
) -> str:
    """The text of a .sumocfg.

    Args:
        net: network.
        routes: demand.
        folder: base of the file's paths.
        begin_s: first simulated second.
        seconds: simulated time (default: until the demand has left).
        additional: file with programs.
        sumo_options: further options, by their names.
    """
    file = f"\n        <additional-files value={quoteattr(_relative(additional, folder))}/>" if additional else ""
    end = f'        <end value="{begin_s + seconds:.15g}"/>\n' if seconds is not None else ""
    options = "\n".join(f"        <{key} value={quoteattr(value)}/>" for key, value in sumo_options.items())
    route_files = ",".join(_relative(route, folder) for route in routes)
    return f"""\
<configuration>
    <input>
        <net-file value={quoteattr(_relative(net, folder))}/>
        <route-files value={quoteattr(route_files)}/>{file}
    </input>
    <time>
        <begin value="{begin_s:.15g}"/>
{end}    </time>
    <processing>
        <!-- as sumo-rl's environment sets them: vehicles wait in a jam and before it, instead of being removed -->
{options}
    </processing>
</configuration>
"""


def _relative(path: Path, folder: Path) -> str:
    absolute = path.resolve()
    return os.path.relpath(absolute, folder) if absolute.is_relative_to(folder) else str(absolute)
