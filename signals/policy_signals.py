"""The signals of a TL as its policy sees them: the program with its phases, and the greens that it chooses from.

Which program: the one that [tl.NAME] names, else the one that runs at the begin time, which need not be the network's
first one. Real networks often load the real programs from an additional file and keep a guess of netconvert as program
0. sumo-rl always takes the first program, so policies that it trained keep that one.

Which greens: states that differ only in pedestrian crossings are one green, and a state that the program repeats (the
log of an adaptive system has steps of 1 s) counts once. sumo-rl counts every green phase, so its policies do, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from city import names
from city.config import TL
from city.errors import InputError
from city.network import Program, SignalNetwork, StreetNetwork, green_states
from protos import policy_pb2 as pb

MAX_NAMED_TLS = 5
"""Number of TLs that a line about programs names."""


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
        if trained is not None:
            program = _named_program(
                tl,
                network,
                trained,
                "which the policy was trained on",
                "add it to the network, or train the policy again",
            )
        elif tl.program is not None:
            program = _named_program(
                tl, network, tl.program, f"which [tl.{tl.name}] names", "set program to one that it has"
            )
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
    """The program with an id. Raises InputError; `source` is its text about where the id comes from."""
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
    """The green states of a program; of those that are equal for vehicles, the one that serves the most crossings."""
    best: dict[str, str] = {}
    for state in green_states(phase.state for phase in program.phases):
        vehicles = "".join(c for c, crossing_m in zip(state, network.crossing_m, strict=False) if not crossing_m)
        # a state that only lets pedestrians walk is a green of its own
        key = vehicles if set("Gg") & set(vehicles) else state
        if key not in best or _green_links(state) > _green_links(best[key]):
            best[key] = state
    return list(best.values())


def _green_links(state: str) -> int:
    return sum(c in "Gg" for c in state)


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
    """True if a program's greens differ from those of the policy's program."""
    return set(distinct_greens(signal.network, signal.program)) != set(distinct_greens(signal.network, program))
