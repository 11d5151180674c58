"""The start of a run, stated once in its record, so that the run can be decided again without the city's files."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from city import config as city_config
from city import network
from city.network import Program, ProgramPhase
from city.version import VERSION
from controller.assembly import ControlledTls, Start, lanes_to_read
from controller.recording.detectors import Detector
from controller.sumo.connection import LanesToRead, TrackedLanes
from controller.sumo.network import RunningSignal
from protos import policy_pb2 as pb
from protos import record_pb2 as record
from signals.movement_names import MovementGroup, MovementNames


@dataclass(frozen=True, kw_only=True)
class RunStart(ControlledTls):
    """Street, contracts, settings and running programs at a run's begin."""

    start: Start
    phases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By TL, the phase numbers of city.toml by movement."""
    detectors: tuple[Detector, ...] = ()
    """Those whose vehicles are read, in the order of the events' detectors."""

    @cached_property
    def to_read(self) -> LanesToRead:
        return lanes_to_read(self)

    def tracked_lanes(self) -> TrackedLanes:
        """The rows of the lanes in readings, as the connection has them."""
        lanes = TrackedLanes()
        lanes.track_lanes(self.to_read)
        return lanes

    @property
    def network_files(self) -> dict[str, Path]:
        """By a name of its own, the network's file, and the additional files with signal programs."""
        paths = (self.street.net_file, *self.street.additional)
        return {f"network/{k}-{path.name}": path for k, path in enumerate(paths)}


def encode(run: RunStart, run_id: str, begin_unix_ns: int, file_number: int) -> record.City:
    """The message of a run's start."""
    return record.City(
        greenserve_version=VERSION,
        run=run_id,
        file_number=file_number,
        begin_unix_ns=begin_unix_ns,
        begin_s=run.start.now,
        sumo_step_s=run.start.sumo_step_s,
        has_traffic=run.start.has_traffic,
        driver=run.driver or "",
        safety=json.dumps(dataclasses.asdict(run.safety)),
        controller=json.dumps(dataclasses.asdict(dataclasses.replace(run.control, record=None))),
        contracts=run.contracts,
        signals=[
            encode_signal(signal, running, run.names.get(signal, MovementNames()))
            for signal, running in run.start.signals.items()
        ],
        lanes=run.tracked_lanes().lanes,
        network_begin_s=run.street.begin_s,
        network_files=run.network_files,
        phases=json.dumps(run.phases) if run.phases else "",
        detectors=[record.Detector(**dataclasses.asdict(detector)) for detector in run.detectors],
    )


def plan_digest(contracts: Iterable[pb.PolicyContract], signals: Iterable[record.RunningSignal]) -> str:
    """Digest of TLs, their lanes and programs: the traffic of two runs with the same one can be compared."""
    own = record.City(
        contracts=[
            pb.PolicyContract(tl=each.tl, signals=[pb.Signal(id=s.id, lane_ids=s.lane_ids) for s in each.signals])
            for each in contracts
        ],
        signals=[record.RunningSignal(id=each.id, programs=each.programs) for each in signals],
    )
    return hashlib.sha256(own.SerializeToString(deterministic=True)).hexdigest()


def decode(city: record.City, network_files: Mapping[str, Path]) -> RunStart:
    """The start of a recorded run.

    Args:
        city: its message.
        network_files: by name in `city.network_files`, the file with the attachment's content.

    Raises InputError if the network cannot be read, KeyError or ValueError for a message that this version did not
    write.
    """
    net, *additional = (network_files[name] for name in city.network_files)
    return RunStart(
        street=network.read(net, additional, city.network_begin_s),
        contracts=tuple(city.contracts),
        safety=city_config.Safety(**_settings(city.safety, city_config.Safety)),
        control=city_config.Controller(**_settings(city.controller, city_config.Controller)),
        driver=city.driver or None,
        start=Start(
            city.begin_s,
            city.sumo_step_s,
            city.has_traffic,
            {signal.id: _decode_signal(signal) for signal in city.signals},
        ),
        names=movement_names_of(city),
        phases=_phases(city.phases),
        detectors=tuple(Detector(each.id, each.signal, each.function, each.stop_lane) for each in city.detectors),
    )


def of_tls(
    tls: ControlledTls,
    start: Start,
    detectors: tuple[Detector, ...] = (),
    phases: Mapping[str, Mapping[str, int]] = {},
) -> RunStart:
    """The start of a run that controls these TLs."""
    return RunStart(**vars(tls), start=start, detectors=detectors, phases=phases)


def _settings(text: str, kind: Any) -> dict[str, Any]:
    """The settings of a table; ValueError for keys that this version does not know."""
    values = json.loads(text)
    known = {each.name for each in dataclasses.fields(kind)}
    if not isinstance(values, dict) or values.keys() - known:
        raise ValueError(f"it has settings that this version does not know: {text:.100}")
    return values


def _phases(text: str) -> dict[str, dict[str, int]]:
    """By TL, phase numbers by movement. ValueError, TypeError or AttributeError for anything else."""
    phases: dict[str, dict[str, int]] = json.loads(text) if text else {}
    for tl, numbers in phases.items():
        for name, number in numbers.items():
            if not (isinstance(number, int) and 1 <= number <= city_config.MAX_PHASE):
                raise ValueError(f"{tl} has phases {name} = {number!r:.40}, which is not a phase number")
    return phases


def movement_names_of(city: record.City) -> dict[str, MovementNames]:
    """By signal, the names of its movements; none in a record that has none."""
    return {
        signal.id: MovementNames(
            tuple(
                MovementGroup(
                    each.name, each.approach, each.kind, each.heading_deg, tuple(each.links), tuple(each.lanes)
                )
                for each in signal.movements
            ),
            dict(signal.state_names),
        )
        for signal in city.signals
    }


def encode_signal(signal: str, running: RunningSignal, names: MovementNames) -> record.RunningSignal:
    """The message of a signal as it was when control began. `names`: of its movements."""
    programs = [
        record.Program(
            id=program.id,
            type=program.type,
            offset_s=program.offset_s,
            phases=[
                pb.Phase(state=p.state, duration_s=p.duration_s, min_s=p.min_s, max_s=p.max_s) for p in program.phases
            ],
        )
        for program in running.programs.values()
    ]
    return record.RunningSignal(
        id=signal,
        shown=running.shown,
        fallback_program=running.fallback_program_id,
        programs=programs,
        movements=[record.MovementGroup(**dataclasses.asdict(group)) for group in names.groups],
        state_names=names.stated,
    )


def _decode_signal(signal: record.RunningSignal) -> RunningSignal:
    programs = {
        program.id: Program(
            program.id,
            program.type,
            program.offset_s,
            tuple(ProgramPhase(p.state, p.duration_s, p.min_s, p.max_s) for p in program.phases),
        )
        for program in signal.programs
    }
    return RunningSignal(signal.fallback_program, signal.shown, programs)
