"""Check that city.toml, the network files, the contracts and the running SUMO agree."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from city import names
from city.config import City
from city.errors import InputError
from city.network import (
    MESOSCOPIC,
    OFF,
    OFF_PROGRAM,
    SEQUENTIAL_TYPES,
    Program,
    ProgramPhase,
    SignalNetwork,
    StreetNetwork,
)
from controller.sumo.connection import ONLINE, OWNER_KEY
from protos import policy_pb2 as pb
from serving.contract import ContractError, check
from signals import dialects
from signals.dialects.street import approaches
from signals.fallback.plan import FallbackPlan, FallbackSchedule
from signals.safety.conflicts import check_phases

MAX_NAMED = 6
"""Signals, lanes or programs named in one error; the others are counted."""
TOLERANCE = 0.01
"""Difference in m, m/s or a share of traffic that rounding explains: files hold two decimals."""
_PROGRAM_TYPES = {0: "static", 3: "actuated", 4: "NEMA", 5: "delay_based", 13: OFF}


@dataclass(frozen=True)
class RunningSignal:
    """A signal in the running simulation."""

    fallback_program_id: str
    shown: str
    programs: Mapping[str, Program]
    """By id, in SUMO's order."""


def running_signals(api: Any, street: StreetNetwork, signals: Sequence[str]) -> dict[str, RunningSignal]:
    """Read signals from SUMO and compare them with the network file.

    Raises InputError if a signal is missing, or its links differ from the file's: the
    conflict rules come from the file.
    """
    ids = set(api.trafficlight.getIDList())
    running: dict[str, RunningSignal] = {}
    for signal in signals:
        if signal not in ids:
            raise InputError(f"signal {signal} is not in the running simulation; it has {_list(sorted(ids))}")
        if signal not in street.signals:
            raise InputError(
                f"{street.net_file}: has no signal {signal}, but SUMO does; start SUMO and the controller on the same "
                "network"
            )
        _check_links(api, street, street.signals[signal])
        offsets_s = {program.id: program.offset_s for program in street.signals[signal].programs}
        programs = {}
        for logic in api.trafficlight.getAllProgramLogics(signal):
            phases = tuple(ProgramPhase(p.state, p.duration, p.minDur, p.maxDur) for p in logic.phases)
            kind = _PROGRAM_TYPES.get(int(logic.type), str(logic.type))
            programs[logic.programID] = Program(logic.programID, kind, offsets_s.get(logic.programID, 0), phases)
        program = api.trafficlight.getProgram(signal)
        owner = api.simulation.getParameter("", f"{OWNER_KEY}.{signal}")
        if owner:
            raise InputError(
                f"signal {signal} is controlled by another controller, {owner}; "
                "stop that controller or leave the signal's TL out with --infer-tl; if the process has ended, start "
                "SUMO again"
            )
        if program == ONLINE:
            # a client left the signal frozen: its plan is the program that the files schedule now
            program = street.signals[signal].scheduled_program(float(api.simulation.getTime()))
        running[signal] = RunningSignal(program, api.trafficlight.getRedYellowGreenState(signal), programs)
    return running


def check_options(api: Any) -> None:
    """Raise InputError if the running SUMO has an option that takes away what control needs."""
    if api.simulation.getOption(MESOSCOPIC) == "true":
        raise InputError(
            f"SUMO runs with {MESOSCOPIC}, which simulates roads and not lanes, so that no policy sees a vehicle; "
            f"start it without {MESOSCOPIC}"
        )


def other_programs(running: Mapping[str, RunningSignal], street: StreetNetwork, now: float) -> str:
    """A line about signals that run another program than the files say at second `now`; "" if none does."""
    differing = []
    for signal, in_sumo in running.items():
        network, program = street.signals[signal], in_sumo.fallback_program_id
        if not network.may_run(program, now):
            differing.append(f"{signal} ({program!r} instead of {network.scheduled_program(now)!r})")
    if not differing:
        return ""
    return (
        f"SUMO runs other programs than the files say: {_list(differing)}; greens and conflicts come from the files, "
        "the fallback plan is what SUMO runs; if these programs are meant, name their additional file in the .sumocfg"
    )


def define_off_programs(api: Any, signals: Iterable[SignalNetwork]) -> None:
    """Make SUMO define the program "off" of signals that their schedule (WAUT) switches to it.

    Otherwise SUMO defines it at the first such switch, and then switches the signal even
    while a client sets its states. A switch to "off" and back without a step changes nothing.
    """
    for signal in signals:
        if any(switch.program == OFF for switch in signal.switches):
            program = api.trafficlight.getProgram(signal.id)
            api.trafficlight.setProgram(signal.id, OFF)
            api.trafficlight.setProgram(signal.id, program)


def _check_links(api: Any, street: StreetNetwork, signal: SignalNetwork) -> None:
    running = []
    for link in api.trafficlight.getControlledLinks(signal.id):
        running.append(sorted({(pair[0], pair[1]) for pair in link if pair}))
    in_file = [sorted(set(link)) for link in signal.links]
    # states may be longer than the number of links: either side may omit the empty ones
    while running and not running[-1]:
        running.pop()
    while in_file and not in_file[-1]:
        in_file.pop()
    if running == in_file:
        return
    missing = {lane for link in in_file for lane, _ in link} - {lane for link in running for lane, _ in link}
    detail = f"; lanes only in the file: {_list(sorted(missing))}" if missing else ""
    raise InputError(
        f"signal {signal.id}: SUMO runs {len(running)} links and {street.net_file} has {len(in_file)}, or their lanes "
        f"differ{detail}; start SUMO and the controller on the same network"
    )


def check_contracts_match_city(city: City, contracts: Mapping[str, pb.PolicyContract]) -> None:
    """Raise InputError unless the contracts are those of the city's TLs and no signal is in two of them."""
    owner: dict[str, str] = {}
    for tl, contract in contracts.items():
        settings = city.tls[tl]
        expected = {
            "signals": (list(settings.signals), list(contract.signal_ids)),
            "dialect": (dialects.find(settings.dialect, f"{city.path}: [tl.{tl}]").name, contract.observation.dialect),
            # the exporter read settings that city.toml leaves out from the checkpoint's file name
            "state": (settings.state or contract.observation.state, contract.observation.state),
            "action": (settings.action or contract.action.kind, contract.action.kind),
        }
        for key, (in_city, in_contract) in expected.items():
            if not contract.missing and in_city != in_contract:
                raise InputError(
                    f"{tl}: {city.path} has {key} {_joined(in_city)}, but its model was exported for "
                    f"{_joined(in_contract)}; export it again (greenserve export --tl {tl}) or fix city.toml"
                )
        for signal in contract.signal_ids:
            if signal in owner:
                raise InputError(
                    f"signal {signal} is in the contracts of both {owner[signal]} and {tl}; control one of them"
                )
            owner[signal] = tl


def _joined(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def check_contract_matches_network(
    contract: pb.PolicyContract, street: StreetNetwork, is_recorded: bool = False
) -> None:
    """Raise InputError unless the network file has the signals, lanes and phases of the contract, without conflicts.

    `is_recorded`: the network is that of the run, and an earlier version may have described its lanes in another way.
    """
    try:
        check(contract)
        dialects.of(contract).check_contract(contract)
    except ContractError as error:
        raise InputError(str(error)) from None
    for expected in contract.signals:
        signal = street.signals.get(expected.id)
        where = f"{contract.tl}: signal {expected.id}"
        if signal is None:
            raise InputError(
                f"{contract.tl}: the network {street.net_file} has no signal {expected.id}, which the policy controls; "
                "use the network of training"
            )
        differs = f"{where} differs from training"
        remedy = f"export it again (greenserve export --tl {contract.tl})"
        _check_lanes(differs, signal, expected, street, remedy)
        if not is_recorded and expected.approaches and (lane := _differing_lane(expected.approaches, signal)):
            raise InputError(
                f"{differs}: lane {lane} has other links, speed limits, lanes upstream or exits in {street.net_file}; "
                f"{remedy}"
            )
        program = next((program for program in signal.programs if program.id == expected.program_id), None)
        if program is None:
            raise InputError(
                f"{where} has no program {expected.program_id!r}, which the policy was trained on; add the additional "
                "file that defines it to the sumocfg, or train it again"
            )
        _check_phases_of_training(contract, differs, program, expected, "now")
        check_phases(where, signal, expected.program_id, [phase.state for phase in expected.phases])


def _check_lanes(differs: str, signal: SignalNetwork, expected: pb.Signal, street: StreetNetwork, remedy: str) -> None:
    """Raise InputError unless a signal has the lanes of training, and they are as long as at the export."""
    if list(signal.lanes) != list(expected.lane_ids):
        missing = [lane for lane in expected.lane_ids if lane not in signal.lanes]
        new = [lane for lane in signal.lanes if lane not in expected.lane_ids]
        raise InputError(
            f"{differs}: {len(expected.lane_ids)} lanes in training, {len(signal.lanes)} in {street.net_file} "
            f"(missing: {_list(missing)}; new: {_list(new)}); train it again or use the network of training"
        )
    for lane in (lane for approach in expected.approaches for lane in (*approach.upstream, *approach.exits)):
        length_m = street.lane_length_m.get(lane.lane_id)
        if length_m is None or abs(length_m - lane.length_m) > TOLERANCE:
            now = "is missing" if length_m is None else f"is {length_m:g} m long"
            raise InputError(
                f"{differs}: lane {lane.lane_id} was {lane.length_m:g} m long, and {now} in {street.net_file}; {remedy}"
            )


def _differing_lane(exported: Sequence[pb.Approach], signal: SignalNetwork) -> str:
    """The first incoming lane that differs from the exported contract; "" if none."""
    now = approaches(signal)
    if not any(lane.walking_areas for lane in exported):
        now = [lane for lane in now if not lane.walking_areas]  # an older export did not observe pedestrians
    if len(exported) != len(now):
        return next(iter({lane.lane_id for lane in exported} ^ {lane.lane_id for lane in now}), exported[0].lane_id)
    pairs = zip(exported, now, strict=True)
    return next((old.lane_id for old, new in pairs if not _is_same(old, new)), "")


def _is_same(exported: pb.Approach, now: pb.Approach) -> bool:
    (exported_names, exported_numbers), (names, numbers) = _parts(exported), _parts(now)
    return exported_names == names and np.allclose(exported_numbers, numbers, rtol=0.0, atol=TOLERANCE)


def _parts(approach: pb.Approach) -> tuple[tuple[object, ...], Sequence[tuple[float, ...]]]:
    """Names and numbers of an incoming lane, its links, the lanes upstream and the exits."""
    lanes = (*approach.upstream, *approach.exits)
    ids = [lane.lane_id for lane in lanes]
    numbers = [(lane.distance_m, lane.share, lane.length_m, lane.limit_mps) for lane in lanes]
    return (approach.lane_id, list(approach.links), len(approach.upstream), ids, list(approach.walking_areas)), numbers


def check_sumo_matches_contract(
    contract: pb.PolicyContract, running: Mapping[str, RunningSignal], api: Any, street: StreetNetwork
) -> None:
    """Raise InputError unless SUMO runs the programs, phases and lane lengths of the files and the contract."""
    for expected in contract.signals:
        signal, in_sumo = street.signals[expected.id], running[expected.id]
        where = f"{contract.tl}: signal {expected.id}"
        program = in_sumo.programs.get(expected.program_id)
        if program is None:
            raise InputError(
                f"{where}: SUMO has no program {expected.program_id!r}, only {_list(list(in_sumo.programs))}; "
                "start it with the additional file that defines it"
            )
        if in_sumo.fallback_program_id not in (*in_sumo.programs, OFF):
            raise InputError(
                f"{where}: its plan {in_sumo.fallback_program_id!r} is not among SUMO's programs "
                f"{_list(list(in_sumo.programs))}; start SUMO and the controller on the same network"
            )
        _check_phases_of_training(contract, where, program, expected, "in the running simulation")
        if len(in_sumo.shown) != len(signal.links):
            raise InputError(
                f"{where}: SUMO shows a state of {len(in_sumo.shown)} links, but {street.net_file} has "
                f"{len(signal.links)}; start SUMO and the controller on the same network"
            )
        for lane in expected.lane_ids:
            length_m = float(api.lane.getLength(lane))
            if abs(length_m - street.lane_length_m[lane]) > TOLERANCE:
                raise InputError(
                    f"{where}: lane {lane} is {length_m:g} m in SUMO and {street.lane_length_m[lane]:g} m in "
                    f"{street.net_file}; start SUMO and the controller on the same network"
                )


def _check_phases_of_training(
    contract: pb.PolicyContract, where: str, program: Program, expected: pb.Signal, place: str
) -> None:
    if dialects.of(contract).runs_plan(contract) and program.type not in SEQUENTIAL_TYPES:
        raise InputError(
            f"{where}: its program {expected.program_id!r} has type {program.type} {place}, which does not run its "
            f"phases in sequence; use the program of training, of type {', '.join(SEQUENTIAL_TYPES)}"
        )
    if [phase.state for phase in program.phases] != [phase.state for phase in expected.phases]:
        raise InputError(
            f"{where}: its program {expected.program_id!r} has other phases {place} than in training; "
            "train it again or use the program it was trained on"
        )
    durations = [(phase.duration_s, phase.min_s, phase.max_s) for phase in program.phases]
    if dialects.of(contract).runs_plan(contract) and durations != [
        (p.duration_s, p.min_s, p.max_s) for p in expected.phases
    ]:
        raise InputError(
            f"{where}: its plan {expected.program_id!r} has other durations {place} than in training, "
            "which its actions refer to; train it again or use the program it was trained on"
        )


def fallback_schedule(running: RunningSignal, signal: SignalNetwork, now: float) -> FallbackSchedule:
    """The signal's fallback plans from second `now` on. Raises InputError if SUMO lacks a program of the schedule."""
    later = {}
    for switch in signal.switches:
        if switch.program not in (*running.programs, OFF):
            raise InputError(
                f"signal {signal.id}: its schedule (WAUT) switches to program {switch.program!r}, but SUMO has only "
                f"{_list(list(running.programs))}; start SUMO and the controller on the same network"
            )
        later[switch.program] = _fallback_plan(running, signal, switch.program)
    first = _fallback_plan(running, signal, running.fallback_program_id)
    return FallbackSchedule(first, now, signal.switches, later)


def _fallback_plan(running: RunningSignal, signal: SignalNetwork, program_id: str) -> FallbackPlan:
    """A program as a fallback plan, synchronised if it is static and the files contain its offset."""
    program = running.programs.get(program_id, OFF_PROGRAM)
    has_offset = any(in_file.id == program.id for in_file in signal.programs)
    return FallbackPlan(program, is_synchronised=has_offset and program.type == "static")


def _list(items: Sequence[str]) -> str:
    return names.listed(items, MAX_NAMED) or "none"
