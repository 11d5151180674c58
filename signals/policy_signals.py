"""The signals of a TL as its policy sees them: the program with its phases, and the greens that it chooses from.

Which program: the one that [tl.NAME] names, else the one that runs at the begin time, which need not be the network's
first one. Real networks often load the real programs from an additional file and keep a guess of netconvert as program
0. sumo-rl always takes the first program, so policies that it trained keep that one.

Which greens: states that differ only in pedestrian crossings are one green, and a state that the program repeats (the
log of an adaptive system has steps of 1 s) counts once. A state that only leads from one green to the next is none:
one with red-amber, or one shorter than a green may be whose links are green before or after it anyway. sumo-rl counts
every green phase, so its policies do, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from city import names
from city.config import TL, Safety
from city.errors import InputError
from city.network import Program, SignalNetwork, StreetNetwork, green_states, is_green
from protos import policy_pb2 as pb

MAX_NAMED_TLS = 5
"""Number of TLs that a line about programs names."""
MIN_GREEN_S = Safety.min_green_s
"""A state that a program never shows for this long may be a transition."""


@dataclass(frozen=True)
class PolicySignal:
    """A signal, and the part of its programs that a policy refers to."""

    network: SignalNetwork
    program: Program
    greens: tuple[str, ...]
    """States that an action may choose, in the program's order."""

    @property
    def id(self) -> str:
        return self.network.id


def of_tl(
    tl: TL,
    networks: Sequence[SignalNetwork],
    takes_first: bool = False,
    trained_programs: Mapping[str, str] | None = None,
) -> list[PolicySignal]:
    """The signals of a TL.

    Args:
        tl: its table of city.toml.
        networks: its signals in the network, in order.
        takes_first: whether the policy's trainer takes the first program and all its green phases, as sumo-rl does.
        trained_programs: signal -> program, if the training recorded them; they must be those of [tl.NAME], if it has
            any.

    Raises:
        InputError: a signal lacks the program.
    """
    signals = []
    for network in networks:
        trained = (trained_programs or {}).get(network.id)
        if trained is not None and tl.program is not None and trained != tl.program:
            raise InputError(
                f"{tl.name}: the policy was trained on program {trained!r} of signal {network.id}, but [tl.{tl.name}] "
                f"has program = {tl.program!r}; remove the key, or train it again"
            )
        if (name := tl.program if trained is None else trained) is not None:
            source, remedy = (
                (f"which [tl.{tl.name}] names", "set program to one that it has")
                if trained is None
                else ("which the policy was trained on", "add it to the network, or train the policy again")
            )
            program = _named_program(tl, network, name, source, remedy)
        else:
            program = network.first_program if takes_first else running_program(network)
        follows_sumo_rl = takes_first and program is network.first_program
        greens = (
            green_states(phase.state for phase in program.phases)
            if follows_sumo_rl
            else distinct_greens(network, program)
        )
        signals.append(PolicySignal(network, program, tuple(greens)))
    return signals


def _named_program(tl: TL, network: SignalNetwork, name: str, source: str, remedy: str) -> Program:
    for program in network.programs:
        if program.id == name:
            return program
    programs = ", ".join(repr(program.id) for program in network.programs) or "none"
    raise InputError(f"{tl.name}: signal {network.id} has no program {name!r}, {source}; it has {programs}; {remedy}")


def running_program(network: SignalNetwork) -> Program:
    """The program that runs at the begin time; if that one has no green, the next one of the schedule that has some.

    Raises InputError if the signal has no program.
    """
    scheduled = [network.active_program, *(switch.program for switch in sorted(network.switches, key=lambda s: s.at_s))]
    by_id = {program.id: program for program in network.programs}
    candidates = [by_id[name] for name in scheduled if name in by_id]
    return next(
        (program for program in candidates if program.greens and not program.is_blinking), network.first_program
    )


def distinct_greens(network: SignalNetwork, program: Program) -> list[str]:
    """The greens of a program; of those that are equal for vehicles, the one that serves the most crossings."""
    best: dict[str, str] = {}
    for state in lasting_greens(network, program):
        key = _vehicle_state(network, state)
        if key not in best or len(_green_links(state)) > len(_green_links(best[key])):
            best[key] = state
    return list(best.values())


def lasting_greens(network: SignalNetwork, program: Program) -> list[str]:
    """The green states of a program, without those that only lead from one green to the next."""
    transitions = _transitions(network, program)
    states = green_states(phase.state for phase in program.phases)
    return [state for state in states if _green_links(state) and _vehicle_state(network, state) not in transitions]


@dataclass
class _Run:
    key: str
    seconds: float
    green_links: dict[int, bool]
    """Link -> whether it is protected (G)."""


def _transitions(network: SignalNetwork, program: Program) -> set[str]:
    """The vehicle states of a program that only lead from one of its greens to the next.

    Each of their links is green, and protected if it is here, in the nearest green that lasts, before or behind: so
    no link loses its only green.
    """
    runs = _runs(network, program)
    lasting = {run.key for run in runs if is_green(run.key) and "u" not in run.key and not run.seconds < MIN_GREEN_S}
    places = [k for k, run in enumerate(runs) if run.key in lasting]
    result, needed = set[str](), set[str]()
    for k, run in enumerate(runs):
        if run.key in lasting or not places:
            continue
        around = (max(places, key=lambda p: (p - k) % len(runs)), min(places, key=lambda p: (p - k) % len(runs)))
        shown = [runs[place].green_links for place in around]
        is_served = all(
            any(link in links and links[link] >= protected for links in shown)
            for link, protected in run.green_links.items()
        )
        (result if is_served else needed).add(run.key)
    return result - needed


def _runs(network: SignalNetwork, program: Program) -> list[_Run]:
    runs: list[_Run] = []
    for phase in program.phases:
        key, links = _vehicle_state(network, phase.state), _green_links(phase.state)
        if runs and runs[-1].key == key:
            runs[-1].seconds += phase.max_s
            runs[-1].green_links |= links
        else:
            runs.append(_Run(key, phase.max_s, links))
    if len(runs) > 1 and runs[0].key == runs[-1].key:
        last = runs.pop()
        runs[0].seconds += last.seconds
        runs[0].green_links |= last.green_links
    return runs


def _vehicle_state(network: SignalNetwork, state: str) -> str:
    """The part of a state that vehicles see; the whole state if it only lets pedestrians walk, a green of its own."""
    vehicles = "".join(c for c, crossing_m in zip(state, network.crossing_m, strict=False) if not crossing_m)
    return vehicles if _green_links(vehicles) else state


def _green_links(state: str) -> dict[int, bool]:
    """Green link -> whether it is protected (G)."""
    return {link: c == "G" for link, c in enumerate(state) if c in "Gg"}


def signal_messages(signals: Sequence[PolicySignal]) -> list[pb.Signal]:
    """The `signals` field of a contract."""
    result = []
    for signal in signals:
        program = signal.program
        phases = [
            pb.Phase(state=p.state, duration_s=p.duration_s, min_s=p.min_s, max_s=p.max_s) for p in program.phases
        ]
        message = pb.Signal(
            id=signal.id, lane_ids=signal.network.lanes, program_id=program.id, offset_s=program.offset_s, phases=phases
        )
        if list(signal.greens) != greens_of(message):
            message.greens.extend(signal.greens)
        result.append(message)
    return result


def greens_of(signal: pb.Signal) -> list[str]:
    """The states that an action of a contract may choose for one of its signals."""
    return list(signal.greens) or green_states(phase.state for phase in signal.phases)


def of_contract(contract: pb.PolicyContract, street: StreetNetwork) -> list[PolicySignal]:
    """The signals of a contract that matches the street. Raises InputError if one lacks the contract's program."""
    networks = [(street.signals[signal.id], signal) for signal in contract.signals]
    return [PolicySignal(network, network.program(s.program_id), tuple(greens_of(s))) for network, s in networks]


def describe_programs(chosen: Iterable[tuple[str, Sequence[PolicySignal]]]) -> tuple[str, str]:
    """(information, warning) about TLs whose greens are not those of the first program, or of the program that runs.

    `chosen`: (TL, its signals). A text without a TL is "".
    """
    not_first, not_running = [], []
    for tl, signals in chosen:
        for signal in signals:
            running, first = running_program(signal.network), signal.network.first_program
            name = repr(signal.program.id)
            if _has_other_greens(signal, running):
                not_running.append(f"{tl} (program {name}, but {running.id!r} runs)")
            elif _has_other_greens(signal, first):
                not_first.append(f"{tl} (program {name}, not {first.id!r})")
    information = (
        "greens of the program that runs at the begin time, not of the network's first: "
        f"{names.listed(not_first, MAX_NAMED_TLS)}"
    )
    warning = (
        f"greens of a program that does not run at the begin time: {names.listed(not_running, MAX_NAMED_TLS)}; if the "
        'policy was not trained on it, name the running one in its table of city.toml (program = "...") and train and '
        "export it again"
    )
    return information if not_first else "", warning if not_running else ""


def _has_other_greens(signal: PolicySignal, program: Program) -> bool:
    return set(distinct_greens(signal.network, signal.program)) != set(distinct_greens(signal.network, program))
